"""The part of `orch` that runs on a node: standard library only, Python 3.6 or newer, run with ``-I
-S``.

These files are not sent to a node one by one. `orchestrator.plan.bundle` joins a part and
everything it imports into one text with one shared namespace. A name may therefore be defined in
one part only, and parts import each other only by
``from noderun.PART import NAME``. There are six such texts, each named after its last part.

``serve`` is the node runner. It works in two ways.

1. From standard input of an ssh channel, so that nothing has to be installed first: the source,
   then one JSON request line
   ``{"op": …, "nonce": …}``. The answer starts with the line ``ORCH <nonce>``, which separates it from the output of login
   scripts, and continues with JSON lines; a line with ``"bytes": n`` is followed by n raw bytes. Operations: ``find_operation``
   in ``serve``.
2. As a fork of itself: the supervisor, ``orch-supervisor`` in a process list, one per run and node.
   Detached from ssh, it holds
   the node's name, starts the launch script at the agreed instant, reaps all its descendants, and writes ``exit.json``. It
   listens on an abstract socket; the controller reaches it through `op_line`. If nobody renews the lease before it
   expires, the supervisor ends the run.

   Under Slurm it is a fork of the ``spawner``, an operation that does not end, in a step of its own.

``rank`` wraps each rank of a run, as ``rank_wrapper.py -- ARGV…``: it gives the rank its own log
files and records how it ended. It imports few parts and few modules, because all ranks of a node
start at the same moment.

``telemetry`` samples the node while a run lasts, in a process that the supervisor forks.
Preflight starts ``container_probe`` in a container, and ``orch check --audit`` runs ``host_audit``.
``node_test`` is for nodes without a controller: ``orch accept sentinel`` writes it as a file.

Modules that only some requests need are imported inside those requests, and so are parts: a request
on a new connection starts this program anew. Where it is sent to a connection, a part is compiled
when it is first imported.

Only processes with a verified identity are signalled: descendants of the supervisor, members of the
control group that it created for the run (where it is allowed to), and processes whose environment
has the run's marker ORCH_RUN_ID.
"""

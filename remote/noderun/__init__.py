"""The node's side of `orch`, in parts: standard library only, python3.6 or newer, run with ``-I -S``.

These files never reach a node as they are. `orchestrator.bundle` joins a part and all that it imports into one text, in which
they share one namespace; so no name may stand in two parts, and parts import each other by ``from noderun.PART import NAME``
alone. There are two such texts, named by the part that they end with.

``serve`` is the node runner. It works in two ways.

1. From standard input of an ssh channel, so that nothing has to be installed first: the source, then one JSON request line
   ``{"op": …, "nonce": …}``. The answer starts with the line ``ORCH <nonce>``, which tells it from whatever a login script
   prints, and goes on with JSON lines; after a line with ``"bytes": n`` follow n raw bytes. Operations: the table in ``serve``.
2. By a fork of its own: the keeper, ``orch-keeper`` among processes, one per run and node. Detached from ssh, it holds the
   node's lock, starts the launch script at the agreed instant, reaps whatever descends from it, and writes ``exit.json``. It
   listens on ``keeper.sock``; the controller speaks to it through `op_line`. Nobody renewing it for one lease means the end of
   the run.

``rank`` wraps each rank of a run, as ``rank_wrapper.py -- ARGV…``: it gives the rank its own log files and records how it
ended. It imports few parts and few modules, because all ranks of a node start at the same moment.

What only some requests need is imported by these: each of many requests on many nodes starts this program anew.

Processes are ended by proven identity only: descendants of the keeper, members of the control group that it made for the run
where it may, or bearers of the run's marker ORCH_RUN_ID.
"""

"""The connections of one command: one per host, opened together, reconnected when one breaks,
closed at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from orchestrator.errors import Faults, OrchError, TransportError
from orchestrator.inventory import Host, Redaction
from orchestrator.nodes.fanout import each, each_or_raise
from orchestrator.nodes.headroom import make_room
from orchestrator.nodes.node import LEADER, Node, boot_arguments
from orchestrator.plan.payload import runner_source
from orchestrator.transport import Transport, Trust
from orchestrator.transport.connections import Connections
from orchestrator.transport.slurm import Spawners

_PREPARING = 16
_STAY_S, _STAY_S_PER_HOST = 60.0, 0.2
"""How long a runner waits for the next request: until every host has answered this one, and the
slowest of them too.
"""

_HOLD_S = 30.0
"""A pod of a job ends when nothing has run in it for two minutes, and a runner that waits is ended
after one: in between it is given another request.
"""


class Cluster:
    """Connections to hosts by name. Use as a context manager; leaving it closes every connection.

    ``redaction`` is applied to everything that nodes say, and to their errors; the bytes of logs
    are collected as they are.
    """

    def __init__(self, hosts: Sequence[Host], trust: Trust, redaction: Redaction) -> None:
        self.hosts = tuple(hosts)
        self.trust = trust
        self.redaction = redaction
        self.nodes: dict[str, Node] = {}
        self._connections = Connections(trust)
        self._spawners = Spawners(boot_arguments(runner_source()), LEADER + runner_source())
        self._by_name = {host.name: host for host in self.hosts}
        self._closed = threading.Event()
        self._holder: threading.Thread | None = None

    def open(self) -> Cluster:
        """Connect to all hosts at the same time. Raises Faults naming every unreachable host with
        its cause, and ConfigError, before any host is contacted, for unusable keys and files or
        limits of this process."""
        self._prepare()
        missing = self._missing()
        # This is local work, sometimes with `ssh -G`: more threads would only slow each other down.
        connect = each_or_raise(
            missing, lambda name: self._connections.prepare(self._by_name[name]), _PREPARING
        )
        nodes, errors = each(missing, lambda name: self._node(connect[name]))
        if errors:
            for error in errors.values():
                error.is_of_all = not (self.nodes or nodes)
            raise Faults(list(errors.values()))
        self.nodes.update(nodes)
        return self

    def open_what_answers(self) -> dict[str, OrchError]:
        """Connect to every reachable host; return the errors of the others by host name. Otherwise
        like `open`.
        """
        self._prepare()
        results, errors = each(self._missing(), self._connect)
        self.nodes.update(results)
        return errors

    def reconnect(self, name: str) -> Node:
        """Replace the connection to one host with a new one, verified like the first."""
        old = self.nodes.pop(name, None)
        if old:
            old.transport.close()
        self.nodes[name] = self._connect(name)
        return self.nodes[name]

    def fate(self, name: str) -> TransportError | None:
        """Return what is known of a silent host by whoever runs it: Kubernetes of its pods; None if
        there is nobody to ask, or nothing to tell.
        """
        try:
            if self._by_name[name].transport == "kubectl":
                self._connect(name)
        except TransportError as error:
            return error
        return None

    def keep(self, hosts: Sequence[Host]) -> Cluster:
        """Close the connections to all hosts but these, which are the hosts of this cluster from
        now on, in this order.
        """
        names = {host.name for host in hosts}
        gone = [self.nodes.pop(name) for name in list(self.nodes) if name not in names]
        each(range(len(gone)), lambda place: gone[place].close())
        self.hosts = tuple(hosts)
        self._by_name = {host.name: host for host in hosts}
        return self

    def ready_for_runs(self, hosts: Sequence[Host]) -> None:
        """Start what runs on these hosts need besides connections: under Slurm the step in which
        runs are kept.

        Raises RunError if that does not start. May be called before each run.
        """
        self._spawners.ensure(hosts)

    def close(self) -> None:
        """Close every connection."""
        self._closed.set()
        each(self.nodes, lambda name: self.nodes[name].close())
        self.nodes.clear()
        self._spawners.close()
        self._connections.close()

    def _hold(self) -> None:
        """Keep runners in the pods that no run uses, while a run on others lasts."""
        late: set[Node] = set()
        while not self._closed.wait(_HOLD_S):
            pods = [node for node in dict(self.nodes).values() if node.host.transport == "kubectl"]
            _, errors = each([node for node in pods if node.rests or node in late], _call_on)
            late = set(errors)

    def _prepare(self) -> None:
        make_room(len(self.hosts), sum(host.transport != "ssh" for host in self.hosts))
        if self._holder is None and any(host.transport == "kubectl" for host in self.hosts):
            self._holder = threading.Thread(target=self._hold, name="pods", daemon=True)
            self._holder.start()

    def _missing(self) -> list[str]:
        return [
            host.name
            for host in self.hosts
            if host.name not in self.nodes or not self.nodes[host.name].transport.alive
        ]

    def _connect(self, name: str) -> Node:
        return self._node(lambda: self._connections.connect(self._by_name[name]))

    def _node(self, connect: Callable[[], Transport]) -> Node:
        try:
            return Node(
                connect(),
                runner_source(),
                self.redaction,
                round(_STAY_S + _STAY_S_PER_HOST * len(self.hosts)),
            )
        except OrchError as error:  # an ssh server may say anything
            error.message, error.hint = (
                self.redaction.text(error.message),
                self.redaction.text(error.hint),
            )
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _call_on(node: Node) -> None:
    node.ask("status", timeout_s=_HOLD_S)

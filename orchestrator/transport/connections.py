"""The connections of one command, each by the transport that the inventory names for its host: `Connections`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from orchestrator.inventory import Host
from orchestrator.transport.protocols import Connector, Transport
from orchestrator.transport.trust import Trust

__all__ = ["Connections"]


class Connections:
    """A `Connector` that hands each host to the connector of its transport, which is made when the first host needs it."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._lock = threading.Lock()
        self._connectors: dict[str, Connector] = {}

    def prepare(self, host: Host) -> Callable[[], Transport]:
        """Check everything that needs no packet; return a function that connects."""
        return self._of(host).prepare(host)

    def connect(self, host: Host) -> Transport:
        """Connect to a host."""
        return self._of(host).connect(host)

    def close(self) -> None:
        """Free what the connections shared, after they are closed."""
        with self._lock:
            connectors, self._connectors = self._connectors, {}
        for connector in connectors.values():
            connector.close()

    def _of(self, host: Host) -> Connector:
        with self._lock:
            if host.transport not in self._connectors:
                self._connectors[host.transport] = _connector(host.transport, self._trust)
            return self._connectors[host.transport]


def _connector(transport: str, trust: Trust) -> Connector:
    """Return a connector by its name in inventories (`orchestrator.inventory.hosts.TRANSPORTS`).

    Each is imported when it is needed, because it may load a large library.
    """
    if transport == "ssh":
        from orchestrator.transport.ssh import SshConnector

        return SshConnector(trust)
    if transport == "openssh":
        from orchestrator.transport.openssh import OpensshConnector

        return OpensshConnector(trust)
    if transport == "srun":
        from orchestrator.transport.slurm import SrunConnector

        return SrunConnector()
    raise AssertionError(f"the inventory accepts a transport that is not made here: {transport}")

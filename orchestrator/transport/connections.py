"""The connections of one command, each by the transport that the inventory names for its host:
`Connections`.

A host whose transport is ``ssh`` takes ``openssh`` by itself if paramiko cannot do what its server
needs, as for a password.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.inventory.reserved import LAB_VARIABLE
from orchestrator.transport.protocols import Connector, OtherTransportNeeded, Transport
from orchestrator.transport.trust import Trust

_OTHER = {"ssh": "openssh"}
"""The transport that may do what another cannot."""

_log = logging.getLogger("orchestrator.transport")


class Connections:
    """A `Connector` that hands each host to the connector of its transport, which is made when the
    first host needs it.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._lock = threading.Lock()
        self._connectors: dict[str, Connector] = {}
        self._chosen: dict[str, str] = {}
        self._said: set[str] = set()

    def prepare(self, host: Host) -> Callable[[], Transport]:
        """Check everything that needs no packet; return a function that connects."""
        try:
            connect = self._of(host).prepare(host)
        except OtherTransportNeeded as error:
            self._choose_other(host, error, contacted=False)
            return self._of(host).prepare(host)

        return lambda: self._connect_or_other(host, connect)

    def connect(self, host: Host) -> Transport:
        """Connect to a host."""
        return self._connect_or_other(host, lambda: self._of(host).connect(host))

    def _connect_or_other(self, host: Host, connect: Callable[[], Transport]) -> Transport:
        try:
            return connect()
        except OtherTransportNeeded as error:
            self._choose_other(host, error, contacted=True)
            return self._of(host).connect(host)

    def close(self) -> None:
        """Free what the connections shared, after they are closed."""
        with self._lock:
            connectors, self._connectors = self._connectors, {}
        for connector in connectors.values():
            connector.close()

    def _of(self, host: Host) -> Connector:
        _refuse_outside_its_lab(host)
        with self._lock:
            transport = self._chosen.get(host.name, host.transport)
            if transport not in self._connectors:
                self._connectors[transport] = _connector(transport, self._trust)
            return self._connectors[transport]

    def _choose_other(self, host: Host, error: OtherTransportNeeded, *, contacted: bool) -> None:
        """Choose the other transport for a host, and say so once for each reason. Raises the error
        if there is none.
        """
        with self._lock:
            other = _OTHER.get(self._chosen.get(host.name, host.transport))
            if other is None or shutil.which("ssh") is None:
                if contacted:
                    raise error
                raise ConfigError(
                    error.message,
                    kind=error.kind,
                    where=error.where,
                    hint=error.hint,
                    host=host.name,
                ) from error
            self._chosen[host.name] = other
            is_new = error.message not in self._said
            self._said.add(error.message)
        if is_new:
            where = f"{host.name}: {error.where}" if error.where else host.name
            _log.warning(
                "%s: %s; connecting through the program ssh (transport: %s)",
                where,
                error.message,
                other,
            )


def _refuse_outside_its_lab(host: Host) -> None:
    """Raise ConfigError for a node of a namespace lab outside that lab, where its address may
    belong to a real machine.
    """
    if LAB_VARIABLE in host.vars and not os.environ.get("ORCH_LAB"):
        message, hint = (
            "it is a node of a lab, whose address is valid only inside the lab",
            "run the command in the lab: orch lab exec -- orch …",
        )
        raise ConfigError(message, where=f"host {host.name}", hint=hint)


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
    if transport == "kubectl":
        from orchestrator.transport.kubectl import KubectlConnector

        return KubectlConnector()
    raise AssertionError(f"the inventory accepts a transport that is not made here: {transport}")

"""Servers, and hosts that reach them and know nothing of the developer's own SSH settings: `Rig`."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport import Trust
from orchestrator.transport.kubectl import KubectlConnector
from orchestrator.transport.openssh import OpensshConnector
from orchestrator.transport.protocols import Connector
from orchestrator.transport.ssh import SshConnector
from tests.contract.podserver import PodServer
from tests.contract.sshd import Sshd

__all__ = ["Keys", "Rig"]


_PUMP = """
import os, socket, sys, threading
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        line.sendall(data)
    line.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := line.recv(65536):
    os.write(1, data)
"""


Server = TypeVar("Server", bound=Sshd)


@dataclass(frozen=True)
class Keys:
    """Key files that are made once: the one that servers let in, one that they do not, and one of a
    server.
    """

    client: Path
    stranger: Path
    server: Path


class Rig:
    """Servers, and hosts that reach them, for one test."""

    def __init__(self, directory: Path, keys: Keys, transport: str = "ssh") -> None:
        self.transport = transport
        self.directory = directory
        self.keys = keys
        self.known_hosts = directory / "known_hosts"
        self.known_hosts.touch()
        self.config = directory / "ssh_config"
        self.store = directory / "store"
        self._numbers = itertools.count(1)
        self._open = ExitStack()

    def configure(self, text: str = "") -> None:
        """Write the ssh configuration of all hosts; what comes first wins."""
        lines = (
            text,
            "Host *",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile none",
            "IdentityAgent none",
        )
        self.config.write_text("\n".join(lines) + "\n")

    def proxy_command(self) -> str:
        """Return the line of the ssh configuration that reaches every host through a process."""
        script = self.directory / "pump.py"
        script.write_text(_PUMP)
        return f"ProxyCommand {sys.executable} {script} %h %p"

    def serve(
        self, *options: str, known: bool = True, kind: type[Server] = Sshd, **settings: Any
    ) -> Server:  # type: ignore[assignment]
        """Start a server that lets the client key in; ``known`` puts its key into the known-hosts
        file.
        """
        number = next(self._numbers)
        if self.transport == "kubectl":
            kind = PodServer  # type: ignore[assignment]
        settings = {"host_keys": [self.keys.server], "authorized": [self.keys.client], **settings}
        server = kind(
            self.directory / f"sshd{number}", f"127.0.0.{number + 1}", options=options, **settings
        )
        self._open.enter_context(server)
        if isinstance(server, PodServer):
            files = {"KUBECONFIG": server.kubeconfig, "KUBECACHEDIR": self.directory / "kubecache"}
            variables = {name: str(path) for name, path in files.items()}
            self._open.enter_context(patch.dict(os.environ, variables))
        if known:
            with self.known_hosts.open("a") as stream:
                stream.write(server.known_hosts_lines())
        return server

    def host(self, server: Sshd, name: str = "lab1", **ssh: Any) -> Host:
        """Return the inventory's view of a server; ``ssh`` overrides its settings."""
        if isinstance(server, PodServer):
            return Host(name, server.address, transport="kubectl", vars={"pod": server.pod})
        settings = SshSettings(
            user=server.user,
            port=server.port,
            key=str(self.keys.client),
            config=str(self.config),
            connect_timeout_s=60.0,  # at a load of 40 a key exchange has taken more than 10 s
        )
        return Host(name, server.address, ssh=replace(settings, **ssh), transport=self.transport)

    def behind(self, server: Sshd, *jumps: Sshd, **ssh: Any) -> Host:
        """Return the inventory's view of a server that is reached through ``jumps``, one behind the
        other.
        """
        return self.host(
            server,
            jump=",".join(f"{jump.user}@{jump.address}:{jump.port}" for jump in jumps),
            **ssh,
        )

    def trust(self, *, accept_new: bool = False) -> Trust:
        """Return a trust with this rig's store."""
        return Trust(self.store, accept_new)

    def connect(self, server: Sshd | Host, *, accept_new: bool = False) -> Any:
        """Connect, by the host's transport and no other; the line is closed when the test ends."""
        host = server if isinstance(server, Host) else self.host(server)
        trust = self.trust(accept_new=accept_new)
        connectors: dict[str, Callable[[], Connector]] = {
            "ssh": lambda: SshConnector(trust),
            "openssh": lambda: OpensshConnector(trust),
            "kubectl": KubectlConnector,
        }
        connector = connectors[host.transport]()
        self._open.callback(connector.close)
        transport = connector.connect(host)
        self._open.callback(transport.close)
        return transport

    def close(self) -> None:
        """Close lines, stop servers."""
        self._open.close()

"""Connections through jump hosts: Fabric's, with orch's own client and without Fabric's
configuration files.
"""

from __future__ import annotations

import time
from typing import Any

import fabric
import paramiko

from orchestrator.transport.ssh.config import Endpoint
from orchestrator.transport.ssh.line import Client, Line
from orchestrator.transport.ssh.wire import Wire
from orchestrator.transport.trust import Trust


class Through(Line, fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A connection to an endpoint that is reached through another one, ``gateway``."""

    def __init__(self, endpoint: Endpoint, trust: Trust, gateway: Line) -> None:
        # Unless lazy, Fabric reads its system and user files; the empty SSHConfig keeps it from
        # reading ssh's.
        config = fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())
        fabric.Connection.__init__(
            self,
            endpoint.address.replace(":", "_"),
            user=endpoint.user,
            port=endpoint.port,
            config=config,
            gateway=gateway,
            forward_agent=False,
            connect_kwargs={},
            inline_ssh_env=False,
        )
        self.host = endpoint.address  # Fabric would split an IPv6 address
        self.endpoint = endpoint
        self.client = Client(endpoint, trust)

    def connect_once(self) -> None:
        """Connect through a channel of the jump host."""
        fabric.Connection.open(self)

    def open_gateway(self) -> Any:
        """Return a channel from the jump host to this endpoint, with a timeout, which Fabric's own
        method does not have.
        """
        endpoint: Endpoint = self.endpoint
        wire: Wire = self.gateway.client.wire
        via = self.gateway.endpoint.label
        target = (endpoint.address, endpoint.port)
        try:
            limit_s = max(0.1, self.deadline - time.monotonic())
            return wire.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=limit_s)
        except paramiko.ChannelException as error:
            if error.code == 1:
                text = f"{via} refuses to forward connections to port {endpoint.port}"
                raise endpoint.error(
                    "host_unreachable", text, "see AllowTcpForwarding in its sshd_config"
                ) from error
            text = f"{via} cannot reach it on port {endpoint.port} ({wire.refusal or error.text})"
            raise endpoint.error("host_unreachable", text) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            text = "closed the connection"
            if wire.is_active():
                text = f"did not reach port {endpoint.port} in time"
            raise endpoint.error("host_unreachable", f"{via} {text}") from error

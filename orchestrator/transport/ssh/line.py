"""One connection while it is made and open: the server proves its key, the key is verified, and
only then orch logs in.
"""

from __future__ import annotations

import random
import time
from itertools import count
from typing import Any

import paramiko

from orchestrator.errors import TransportError
from orchestrator.transport.ssh.config import Endpoint
from orchestrator.transport.ssh.dial import dial
from orchestrator.transport.ssh.hostkeys import judge, read_known_keys
from orchestrator.transport.ssh.identity import Identity, authenticate, identities
from orchestrator.transport.ssh.wire import Dropped, Wire
from orchestrator.transport.trust import HostKey, Trust


class Line:
    """A connection to one endpoint, open or not; its subclasses connect directly or through a jump
    host.
    """

    endpoint: Any = None  # declared, because Fabric keeps unknown attributes in its configuration
    deadline: Any = None
    gateway: Any = None
    client: Any = None

    def open(self) -> None:
        """Connect, and retry until the deadline if the server drops connections because it has too
        many.
        """
        if self.client.is_open:
            return
        self.endpoint.tell(self.endpoint.summary)
        with identities(self.endpoint) as offered:
            self.client.offered = offered
            self.deadline = time.monotonic() + self.endpoint.connect_timeout_s
            if self.gateway:
                self.gateway.open()
                # The time of the jump host's log-in does not count against this host's limit;
                # everything else does.
                self.deadline += self.gateway.login_s
            dropped: Dropped | None = None
            for attempt in count():
                self.client.deadline = self.deadline
                try:
                    self.connect_once()
                except Dropped as error:
                    dropped = error
                    pause_s = random.uniform(0.5, 1.5) * min(0.1 * 2**attempt, 1.0)
                    if time.monotonic() + pause_s >= self.deadline:
                        raise
                    time.sleep(pause_s)
                except TransportError as error:
                    # An attempt that the limit cuts short says less than the one before it.
                    if dropped and time.monotonic() >= self.deadline:
                        raise dropped from error
                    raise
                else:
                    return

    def connect_once(self) -> None:
        """Connect, through the jump host if there is one, which is already connected."""
        raise NotImplementedError

    @property
    def login_s(self) -> float:
        """Seconds that the log-ins took, at jump hosts too."""
        return float(self.client.login_s) + (self.gateway.login_s if self.gateway else 0.0)

    def close(self) -> None:
        """Close the first hop first: the connections through it then end too, however full their
        buffers are.
        """
        if self.gateway:
            self.gateway.close()
        self.client.close()


class Client(paramiko.SSHClient):
    """Paramiko's client, in a safe order: the server proves its key, the key is verified, and only
    then orch logs in.
    """

    def __init__(self, endpoint: Endpoint, trust: Trust) -> None:
        super().__init__()
        self.set_missing_host_key_policy(paramiko.RejectPolicy())
        self.endpoint = endpoint
        self.trust = trust
        self.offered: list[Identity] = []
        self.deadline = 0.0
        self.login_s = 0.0
        self.fingerprint = ""

    @property
    def is_open(self) -> bool:
        """Return whether the connection is up, as far as this side knows."""
        return isinstance(self._transport, Wire) and bool(self._transport.is_active())

    @property
    def wire(self) -> Wire:
        """The protocol engine, once `connect` has returned."""
        assert isinstance(self._transport, Wire)
        return self._transport

    def connect(self, *, sock: Any = None, **_: Any) -> None:  # type: ignore[override]  # Fabric's only caller passes these
        """Connect by ``deadline``, over ``sock`` if there is a jump host."""
        lines = read_known_keys(
            (*self.endpoint.known_hosts, self.trust.store), self.endpoint.known_as
        )
        if not sock:
            self.endpoint.tell(
                f"connecting: {self.endpoint.proxy_command or f'TCP port {self.endpoint.port}'}"
            )
        wire = Wire(sock or dial(self.endpoint, self.deadline), lines.types())
        try:
            wire.shake_hands(self.endpoint, self.deadline)
            offered = wire.get_remote_server_key()
            key = HostKey(offered.get_name(), offered.asbytes())
            self.endpoint.tell(f"key exchange: {wire.agreed}; the host key is {key}")
            judge(self.endpoint, self.trust, key)
            started = time.monotonic()
            authenticate(wire, self.endpoint, self.offered)
            self.login_s = time.monotonic() - started
        except BaseException:
            wire.hang_up()
            raise
        self.fingerprint = key.fingerprint
        self._transport = wire

    def close(self) -> None:
        """Close the connection and wait for its thread."""
        if isinstance(self._transport, Wire):
            self._transport.hang_up()

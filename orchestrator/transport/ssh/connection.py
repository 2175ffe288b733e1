"""The only module that makes SSH connections: `connect` returns a `Transport`.

Paramiko implements the protocol and Fabric connects through jump hosts (`jump`), but by default
both trust any host key and try any key that they find. The client of this package therefore
verifies the host key first (`hostkeys`), logs in only with the configured key, and uses no
configuration except the one that `config` resolved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.errors import ConfigError, TransportError
from orchestrator.inventory import Host
from orchestrator.transport.completion import run_to_end
from orchestrator.transport.protocols import OtherTransportNeeded, Result
from orchestrator.transport.ssh.channel import Channel, open_channel
from orchestrator.transport.ssh.config import Endpoint, resolve
from orchestrator.transport.ssh.dial import greets
from orchestrator.transport.ssh.hostkeys import read_known_keys, refuse_authorities
from orchestrator.transport.ssh.identity import identities
from orchestrator.transport.ssh.line import Client, Line
from orchestrator.transport.ssh.quoting import remote_command
from orchestrator.transport.ssh.wire import Wire
from orchestrator.transport.trust import Trust


def prepare(host: Host, trust: Trust) -> Endpoint:
    """Resolve ``host``, and check everything that needs no packet: keys and known-hosts files, also
    of its jump hosts.

    Raises ConfigError for a key that is missing or readable by others, and for a damaged file;
    OtherTransportNeeded if there is no usable key, for a passphrase, and for a host that only a
    certificate authority knows.
    """
    endpoint = resolve(host)
    step: Endpoint | None = endpoint
    while step:
        try:
            with identities(step):
                lines = read_known_keys((*step.known_hosts, trust.store), step.known_as)
        except OtherTransportNeeded:
            raise
        except (TransportError, ConfigError) as error:
            where = error.where or step.label
            raise ConfigError(
                error.message, kind=error.kind, where=where, hint=error.hint, host=host.name
            ) from error
        refuse_authorities(step, lines)
        damaged = [entry.place for entry in lines.entries if entry.key is None]
        if damaged:
            message = "the line about this host is damaged"
            raise ConfigError(
                message, where=damaged[0], hint="repair or remove that line", host=host.name
            )
        step = step.via
    return endpoint


def connect(host: Host, trust: Trust, endpoint: Endpoint | None = None) -> Transport:
    """Connect to ``host``, verify its host key, log in; first to its jump hosts in the same way,
    one after the other.

    ``endpoint`` is the result of `prepare`, if it was called before. ``host_keys: accept-new`` in
    the inventory has the same effect as ``trust.accept_new``, also for the host's jump hosts.

    Raises ConfigError before anything is contacted; TransportError host_unreachable,
    host_key_unknown, host_key_changed, host_key_revoked, algorithm_refused or auth_failed. Takes at
    most the connect timeout plus 30 s for each authentication.
    """
    accept_new = trust.accept_new or host.ssh.host_keys == "accept-new"
    line = line_to(endpoint or resolve(host), replace(trust, accept_new=accept_new))
    try:
        line.open()
    except BaseException:
        line.close()
        raise
    return Transport(host, line)


class SshConnector:
    """Connections by paramiko, which share nothing but how host keys are verified."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def prepare(self, host: Host) -> Callable[[], Transport]:
        """Resolve a host and check its keys and files; return a function that connects."""
        endpoint = prepare(host, self._trust)
        return lambda: connect(host, self._trust, endpoint)

    def connect(self, host: Host) -> Transport:
        """Connect to a host."""
        return connect(host, self._trust)

    def close(self) -> None:
        """Free nothing."""


class Transport:
    """One open connection to a host. Several threads may use it at once; sshd allows ten commands
    at a time (MaxSessions).
    """

    def __init__(self, host: Host, line: Line) -> None:
        self.host = host
        self._line = line
        self._wire: Wire = line.client.wire

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float) -> Result:
        """Run a command to its end; send ``input`` while its output is read.

        The end is when the command has ended, and it and all processes that it left behind have
        closed its output. Raises TransportError node_lost if the connection breaks or ``timeout_s``
        passes, RunError output_limit above 256 MiB.
        """
        command = remote_command(argv)

        def start(deadline: float) -> Channel:
            return open_channel(self.host, self._wire, command, deadline, take_all=True)

        return run_to_end(self.host, argv, input, timeout_s, start, lambda: self.alive)

    def greets(self, is_needed: Callable[[], bool]) -> bool:
        """Return True if the host's SSH server answers on a new connection; a lossy network may
        delay this one for seconds.

        Tries as long as ``is_needed`` returns True. Returns False for hosts behind a jump host or a
        ProxyCommand, which cannot be tested in this way. Raises TransportError host_unreachable if
        the host's name does not resolve.
        """
        endpoint = self._line.endpoint
        return not (endpoint.via or endpoint.proxy_command) and greets(endpoint, is_needed)

    def popen(self, argv: Sequence[str], *, timeout_s: float) -> Channel:
        """Start a command and return the channel to it; ``timeout_s`` limits the start alone."""
        return open_channel(
            self.host,
            self._wire,
            remote_command(argv),
            time.monotonic() + timeout_s,
            take_all=False,
        )

    @property
    def alive(self) -> bool:
        """Return whether the connection is up as far as this side knows; a frozen node looks alive."""
        return bool(self._wire.is_active())

    @property
    def unread(self) -> bool:
        """Return whether data has arrived that the connection's thread had no processor time to
        read.

        False if it broke.
        """
        return self.alive and self._wire.unread

    @property
    def host_key(self) -> str:
        """The fingerprint of the host's key: two names with one key are one machine."""
        return str(self._line.client.fingerprint)

    @property
    def via(self) -> str:
        """The last jump host on the way to the host, as messages name it; empty without one."""
        if not self._line.gateway:
            return ""
        return str(self._line.gateway.endpoint.label)

    def close(self) -> None:
        """Disconnect at once, also from jump hosts, and free threads and sockets. May be called
        again, from any thread.
        """
        self._line.close()


class Direct(Line):
    """A connection without a jump host."""

    def __init__(self, endpoint: Endpoint, trust: Trust) -> None:
        self.endpoint = endpoint
        self.client = Client(endpoint, trust)

    def connect_once(self) -> None:
        """Connect."""
        self.client.connect()


def line_to(endpoint: Endpoint, trust: Trust) -> Line:
    """Return the connection to an endpoint, not yet open."""
    if not endpoint.via:
        return Direct(endpoint, trust)
    from orchestrator.transport.ssh.jump import (
        Through,
    )  # it imports Fabric, which most commands do not need

    return Through(endpoint, trust, line_to(endpoint.via, trust))

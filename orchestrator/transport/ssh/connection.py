"""The one place that makes SSH connections: `connect`, and what it returns, a `Transport`.

Paramiko speaks the protocol, Fabric connects through jump hosts (`jump`), but both as delivered trust
any host key and try any key they find. So there is one client that judges first (`hostkeys`), logs in
with the configured key alone, and reads no configuration but the one `config` resolved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import ConfigError, RunError, TransportError
from orchestrator.inventory.hosts import Host
from orchestrator.transport.ssh.channel import Channel, open_channel
from orchestrator.transport.ssh.config import Endpoint, resolve
from orchestrator.transport.ssh.dial import greets
from orchestrator.transport.ssh.hostkeys import Trust, known_keys
from orchestrator.transport.ssh.identity import identities
from orchestrator.transport.ssh.line import Client, Line
from orchestrator.transport.ssh.quoting import remote_command
from orchestrator.transport.ssh.wire import Wire

__all__ = ["Result", "Transport", "connect", "prepare"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a command: an exit code, or the name of a signal (``SIGKILL``), and both outputs as they came."""

    code: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes


def prepare(host: Host, trust: Trust) -> Endpoint:
    """Find the way to ``host``, and look at all of it that needs no packet: its keys, its known-hosts files, its jump hosts'.

    Raises ConfigError for a file that is missing, too open, locked or damaged.
    """
    endpoint = resolve(host)
    step: Endpoint | None = endpoint
    while step:
        try:
            with identities(step):
                known = known_keys((*step.known_hosts, trust.store), step.known_as)
        except (TransportError, ConfigError) as error:
            where = error.where or step.label
            raise ConfigError(error.message, kind=error.kind, where=where, hint=error.hint, host=host.name) from error
        if damaged := [entry.place for entry in known.entries if entry.key is None]:
            message = "the line about this host is damaged"
            raise ConfigError(message, where=damaged[0], hint="mend or remove that line", host=host.name)
        step = step.via
    return endpoint


def connect(host: Host, trust: Trust, endpoint: Endpoint | None = None) -> Transport:
    """Open a line to ``host``: find it, judge its key, log in; jump hosts likewise, one after the other.

    ``endpoint`` is the way to it, where `prepare` has found it already.

    ``host_keys: accept-new`` of the inventory counts like that of ``trust``, for the jump hosts in front of that host too.

    Raises ConfigError before anything is contacted; TransportError host_unreachable, host_key_unknown, host_key_changed,
    host_key_revoked, algorithm_refused or auth_failed. Takes at most the connect timeout plus 30 s for each authentication.
    """
    accept_new = trust.accept_new or host.ssh.host_keys == "accept-new"
    line = line_to(endpoint or resolve(host), replace(trust, accept_new=accept_new))
    try:
        line.open()
    except BaseException:
        line.close()
        raise
    return Transport(host, line)


class Transport:
    """One open line to one host. Several threads may use it at once; sshd allows ten commands at a time (MaxSessions)."""

    def __init__(self, host: Host, line: Line) -> None:
        self.host = host
        self._line = line
        self._wire: Wire = line.client.wire

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float) -> Result:
        """Run a command to its end, feeding it ``input`` while its output is read.

        The end is when the command is over and its output closed, by it and by whatever it left behind. Raises TransportError
        node_lost when the line breaks or ``timeout_s`` passes, RunError output_limit above 256 MiB.
        """
        deadline = time.monotonic() + timeout_s
        channel = open_channel(self.host, self._wire, remote_command(argv), deadline, take_all=True)
        try:
            try:
                channel.send_until(input, deadline)
            except TransportError:
                if not self.alive:
                    raise  # else it ended, or closed its input, without reading it all, which is its own business
            channel.shutdown_write()
            code, signal = channel.ending(max(0.0, deadline - time.monotonic()))
            stdout, stderr, too_much = channel.received()
        except TimeoutError:
            text = f"{argv[0]} was not done within {timeout_s:g} s"
            raise TransportError(text, kind="node_lost", host=self.host.name) from None
        finally:
            channel.close()
        if too_much:
            raise RunError(f"{argv[0]} wrote more than can be kept", kind="output_limit", host=self.host.name)
        return Result(code, signal, stdout, stderr)

    def greets(self, wanted: Callable[[], bool]) -> bool:
        """Tell whether the host's server answers beside this line, which a lossy network may hold up for seconds.

        It is asked as long as the answer is ``wanted``. Behind a jump host or a ProxyCommand there is no asking; then it says
        no. Raises TransportError host_unreachable where its name does not resolve.
        """
        endpoint = self._line.endpoint
        return not (endpoint.via or endpoint.proxy_command) and greets(endpoint, wanted)

    def popen(self, argv: Sequence[str], *, timeout_s: float) -> Channel:
        """Start a command and return the channel to it; ``timeout_s`` limits the start alone."""
        return open_channel(self.host, self._wire, remote_command(argv), time.monotonic() + timeout_s, take_all=False)

    @property
    def alive(self) -> bool:
        """Whether the line is up as far as this side knows; a frozen node looks alive."""
        return bool(self._wire.is_active())

    @property
    def unread(self) -> bool:
        """Whether something has come that the line's thread had no processor to take. Of a line that is gone nothing is."""
        return self.alive and self._wire.unread

    @property
    def host_key(self) -> str:
        """The fingerprint of the host's key: two names with one key are one machine."""
        return str(self._line.client.fingerprint)

    @property
    def via(self) -> str:
        """The jump host that the line runs through last, as messages name it; empty where there is none."""
        return str(self._line.gateway.endpoint.label) if self._line.gateway else ""

    def close(self) -> None:
        """Hang up at once, jump hosts included, and free threads and sockets. May be called again, and from any thread."""
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
    """Return the line to an endpoint, not open yet."""
    if not endpoint.via:
        return Direct(endpoint, trust)
    from orchestrator.transport.ssh.jump import Through  # and with it Fabric, which most commands can start without

    return Through(endpoint, trust, line_to(endpoint.via, trust))

"""The interface of every transport: `Connector`, `Transport`, `Channel`.

A `Connector` belongs to one command and makes its connections; a `Transport` is one connection to
one host; a `Channel` is one command on that host. All of them may be used from several threads at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.errors import TransportError
from orchestrator.inventory import Host
from orchestrator.transport.streams import Taker


class OtherTransportNeeded(TransportError):  # noqa: N818  # no error where there is another transport
    """A connector cannot do what a server needs, and another one may; the message says what that
    is.
    """


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a command: an exit code, or the name of a signal (``SIGKILL``), and the bytes
    of both outputs.
    """

    code: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes


class Channel(Protocol):
    """One remote command, bytes only. Several threads may use it: the data of one `send` stays
    together.
    """

    def send(self, data: bytes) -> None:
        """Send all of ``data`` to the command's standard input. Raises TransportError node_lost if
        the connection broke.

        Also raises node_lost, with another message, if the command ended or closed its input.
        """

    def recv(self, timeout_s: float) -> bytes:
        """Return the next bytes of the command's output, as many as have arrived; ``b""`` at its
        end.

        Raises TimeoutError if none arrive in time, TransportError node_lost if the connection
        broke.
        """

    def pour(self, taker: Taker, timeout_s: float) -> None:
        """Pass output to ``taker`` as it arrives, in the thread that receives it, until ``taker``
        is done.

        Raises EOFError if the output ends earlier, TimeoutError and TransportError as `recv` does,
        and errors of ``taker``.
        """

    def listen(self, listener: Callable[[bytes], None] | None) -> None:
        """Pass output to ``listener`` as it arrives, in the thread that receives it; ``b""`` at the
        end.

        The listener must not wait. After the end `recv` shows whether the command ended or the
        connection broke. With None,
        `recv` gets the output again.
        """

    @property
    def ended(self) -> bool:
        """Return whether the command's output ended by itself; False if the connection broke."""

    def stderr_tail(self) -> bytes:
        """Return the last bytes, at most 8 KiB, that the command has written to standard error."""

    def ending(self, timeout_s: float) -> tuple[int | None, str | None]:
        """Wait for the end of output and command; return its exit code, or the name of the signal
        that ended it.

        Both are None if the other side reports neither. Raises TimeoutError, or TransportError
        node_lost.
        """

    def shutdown_write(self) -> None:
        """Close the command's standard input. Does nothing if it is already closed."""

    def close(self) -> None:
        """Close the channel. The command continues, unless it ends when its input closes."""


class Transport(Protocol):
    """One open connection to a host."""

    @property
    def host(self) -> Host:
        """The host."""

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float) -> Result:
        """Run a command to its end; send ``input`` while its output is read.

        The end is when the command has ended, and it and all processes that it left behind have
        closed its output. Raises TransportError node_lost if the connection breaks or ``timeout_s``
        passes, RunError output_limit above 256 MiB.
        """

    def popen(self, argv: Sequence[str], *, timeout_s: float) -> Channel:
        """Start a command and return the channel to it; ``timeout_s`` limits the start alone."""

    def greets(self, is_needed: Callable[[], bool]) -> bool:
        """Return True if the host answers on another, new connection; a lossy network may delay
        this one for seconds.

        Tries as long as ``is_needed`` returns True. Returns False for a host that cannot be tested
        in this way. Raises TransportError host_unreachable if the host's name does not resolve.
        """

    @property
    def alive(self) -> bool:
        """Return whether the connection is up as far as this side knows; a frozen node looks alive."""

    @property
    def unread(self) -> bool:
        """Return whether data has arrived that its thread had no processor time to read.

        False if the connection broke.
        """

    @property
    def host_key(self) -> str:
        """A key that tells machines apart: two names with one value are one machine.

        Empty if the transport cannot know.
        """

    @property
    def via(self) -> str:
        """The last hop between this machine and the host, as messages name it: a jump host. Empty
        without one.
        """

    def close(self) -> None:
        """Disconnect at once and free threads, sockets and processes. May be called again, from any
        thread.
        """


class Connector(Protocol):
    """The connections of one command by one transport."""

    def prepare(self, host: Host) -> Callable[[], Transport]:
        """Check everything that needs no packet; return a function that connects, as `connect`
        does.

        Raises ConfigError for what makes a connection impossible, such as a missing key;
        OtherTransportNeeded.
        """

    def connect(self, host: Host) -> Transport:
        """Connect to a host. Raises TransportError, OtherTransportNeeded, and ConfigError as
        `prepare` does.
        """

    def close(self) -> None:
        """Free what the connections of the command share, after they are closed. May be called
        again.
        """

"""The receiving side of a channel, the same on every transport: `Receiver`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from orchestrator.errors import TransportError
from orchestrator.transport.streams import OUTPUT_LIMIT_BYTES, STDERR_TAIL_BYTES, Inbox, Taker

Stream = TypeVar("Stream", bound=Inbox)


class Receiver(Generic[Stream]):
    """The output of a command, in two inboxes that another thread fills.

    A subclass sends, and explains why a connection broke.
    """

    def __init__(self, stdout: Stream, stderr: Inbox) -> None:
        self._stdout = stdout
        self._stderr = stderr

    def recv(self, timeout_s: float) -> bytes:
        """Return the next bytes of the command's output, as many as have arrived; ``b""`` at its
        end.

        Raises TimeoutError if none arrive in time, TransportError node_lost if the connection
        broke.
        """
        data = self._stdout.take(timeout_s)
        if not data and not self._stdout.ended:
            raise self._ended_error()
        return data

    def pour(self, taker: Taker, timeout_s: float) -> None:
        """Pass output to ``taker`` as it arrives, in the thread that receives it, until ``taker``
        is done.

        Raises EOFError if the output ends earlier, TimeoutError and TransportError as `recv` does,
        and errors of ``taker``.
        """
        if not self._stdout.pour(taker, timeout_s):
            raise EOFError if self._stdout.ended else self._ended_error()

    def listen(self, listener: Callable[[bytes], None] | None) -> None:
        """Pass output to ``listener`` as it arrives, in the thread that receives it, which it must
        not block.

        ``b""`` is the end; then `recv` shows whether the command ended or the connection broke.
        With None, `recv` gets the output again.
        """
        self._stdout.listen(listener)

    @property
    def ended(self) -> bool:
        """Return whether the command's output ended by itself; False if the connection broke."""
        return self._stdout.ended

    def stderr_tail(self) -> bytes:
        """Return the last bytes, at most 8 KiB, that the command has written to standard error."""
        return self._stderr.tail(STDERR_TAIL_BYTES)

    def read_output(self) -> tuple[bytes, bytes, bool]:
        """Return standard output and standard error of a channel with ``take_all``, and whether one
        exceeded the limit.
        """
        too_much = any(stream.total > OUTPUT_LIMIT_BYTES for stream in (self._stdout, self._stderr))
        return (
            self._stdout.tail(OUTPUT_LIMIT_BYTES),
            self._stderr.tail(OUTPUT_LIMIT_BYTES),
            too_much,
        )

    def _ended_error(self) -> TransportError:
        """Return the reason for the end of the connection or of the command's input."""
        raise NotImplementedError

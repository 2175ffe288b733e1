"""One output stream of a command, and the limits that hold on every transport.

Bytes are handled in the thread that receives them, so that nothing waits for a second thread or a
poll: standard output up to a limit, and more only when it is read; standard error always, but only
its end is kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

STALL_S = 60.0
"""A node that accepts no data for this long is lost."""

STDERR_TAIL_BYTES = 8192
OUTPUT_LIMIT_BYTES = 256 << 20
"""Bytes of each stream that a channel with ``take_all`` keeps."""

Taker = Callable[[memoryview], "memoryview | None"]
"""Gets bytes as they arrive, valid until it returns. Returns None to get more, or when done the
bytes that it does not use.
"""


class Inbox:
    """One output stream of a command, filled by the thread that receives it.

    With ``keep``, only about the last ``keep`` bytes are kept, and the node may always send more.
    Without it nothing is dropped, and the node may send more only after `take`: `make_room` says
    how much.
    """

    def __init__(self, keep: int | None) -> None:
        self.ended = False  # reported by the server, in contrast to a broken connection
        self.finished = False
        self.total = 0
        self.signal: str | None = None
        self._keep = keep
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._closed = False
        self._listener: Callable[[bytes], None] | None = None
        self._pour: _Pour | None = None

    @property
    def command_is_over(self) -> bool:
        """Whether what has come says that the command has ended."""
        return False

    def make_room(self, size: int) -> None:
        """Let the other side send so many more bytes; does nothing unless a subclass limits it."""

    def feed(self, data: bytes | memoryview) -> None:
        """Add data, whose buffer the caller may reuse afterwards: called by the thread that
        receives.
        """
        with self._changed:
            self.total += len(data)
            rest = self._pass_on(memoryview(data)) if self._pour else bytes(data)
            listener = self._listener  # a call may remove it
            if rest and listener:
                listener(rest)
            elif rest:
                self._keep_back(rest)
            waiting = len(rest) if self._keep is None and not listener else 0
        if len(data) > waiting:
            self.make_room(len(data) - waiting)

    def close(self) -> None:
        """Mark the end of the stream: called both at its end and when the connection breaks."""
        with self._changed:
            first, self._closed = not self._closed, True
            self._changed.notify_all()
            if first and self._listener:
                self._listener(b"")

    def listen(self, listener: Callable[[bytes], None] | None) -> None:
        """Pass all data to ``listener`` from now on, beginning with data not yet taken; ``b""`` at
        the end of the stream.

        The listener is called in the receiving thread, which does nothing else meanwhile, so it
        must not wait. With None, new data is kept for `take` again.
        """
        with self._changed:
            if listener is None:
                self._listener = None
                return
            data, self._size = b"".join(self._chunks), 0
            self._chunks.clear()
            self._listener = listener
            if data:
                listener(data)
            if self._closed:
                listener(b"")
        if data and self._keep is None:
            self.make_room(len(data))

    def _keep_back(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        while self._keep is not None and self._size - len(self._chunks[0]) >= self._keep:
            self._size -= len(self._chunks.popleft())
        self._changed.notify_all()

    def __len__(self) -> int:
        return self._size

    def take(self, timeout_s: float) -> bytes:
        """Return all data that has arrived; wait for the first byte; ``b""`` at the end of the
        stream. Raises TimeoutError.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._chunks or self._closed, timeout_s):
                raise TimeoutError
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
        if data and self._keep is None:
            self.make_room(len(data))
        return data

    def pour(self, taker: Taker, timeout_s: float) -> bool:
        """Pass data to ``taker`` until it is done; return False if the stream ended earlier.

        The taker is called in the receiving thread: passing bytes to another thread takes longer
        than writing them to a file. Raises TimeoutError if no data arrives for ``timeout_s``, and
        errors of ``taker``.
        """
        with self._changed:
            chunks = list(self._chunks)
            self._chunks.clear()
            self._size = 0
            pour = self._pour = _Pour(taker)
            unused = [rest for chunk in chunks if (rest := self._pass_on(memoryview(chunk)))]
            for rest in unused:
                self._keep_back(rest)
        if used := sum(map(len, chunks)) - sum(map(len, unused)):
            self.make_room(used)
        with self._changed:
            while not (pour.over or self._closed):
                total = self.total
                if (
                    not self._changed.wait_for(lambda: pour.over or self._closed, timeout_s)
                    and self.total == total
                ):
                    break
            self._pour = None
        if pour.error:
            raise pour.error
        if not (pour.over or self._closed):
            raise TimeoutError
        return pour.over

    def _pass_on(self, data: memoryview) -> bytes:
        """Pass data to the taker unless it is done; return the bytes that it does not use."""
        assert self._pour
        rest = bytes(self._pour.take(data))
        if self._pour.over:
            self._changed.notify_all()
        return rest

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait for the end of the stream; return False if it has not ended in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    def tail(self, size: int) -> bytes:
        """Return the last bytes, which stay in the buffer."""
        last: list[bytes] = []
        with self._changed:
            for chunk in reversed(self._chunks):
                if size <= 0:
                    break
                last.append(chunk[-size:])
                size -= len(chunk)
        return b"".join(reversed(last))


class _Pour:
    """The delivery of bytes to a taker, until it is done or fails."""

    def __init__(self, taker: Taker) -> None:
        self.over = False
        self.error: Exception | None = None
        self._taker = taker

    def take(self, data: memoryview) -> memoryview:
        """Pass ``data`` to the taker and return the bytes that it does not use."""
        if self.over:
            return data
        try:
            rest = self._taker(data)
        except Exception as error:  # `Inbox.pour` raises it again in its own thread
            self.error, rest = error, data
        self.over = rest is not None
        return data[:0] if rest is None else rest

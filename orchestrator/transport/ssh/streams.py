"""The two directions of a channel: `Inbox` takes what comes, `Outbox` keeps what goes in an order that servers bear."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paramiko.common import cMSG_CHANNEL_WINDOW_ADJUST
from paramiko.message import Message

__all__ = ["Inbox", "Outbox", "Taker"]

Taker = Callable[[memoryview], "memoryview | None"]
"""Is given bytes as they come, each good until it returns; returns None while it wants more, and at its end what it leaves."""


class Inbox:
    """One output stream of a channel, filled by the connection's thread in place of paramiko's buffer.

    ``keep`` bytes at most are kept, the oldest are dropped, and the node may always send more; without it nothing is dropped
    and the node may send more only as `take` makes room.
    """

    def __init__(self, channel: Any, keep: int | None) -> None:
        self.ended = False  # by the server's word, in contrast to a line that broke
        self.finished = False
        self.total = 0
        self.signal: str | None = None
        self._channel = channel
        self._keep = keep
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._closed = False
        self._listener: Callable[[bytes], None] | None = None
        self._pour: _Pour | None = None

    def feed(self, data: bytes | memoryview) -> None:
        """Add data, which is the caller's again afterwards: called by paramiko."""
        with self._changed:
            self.total += len(data)
            rest = self._poured(memoryview(data)) if self._pour else bytes(data)
            listener = self._listener  # by what it is told it may come to an end
            if rest and listener:
                listener(rest)
            elif rest:
                self._keep_back(rest)
            waiting = len(rest) if self._keep is None and not listener else 0
        if len(data) > waiting:
            self._open_window(len(data) - waiting)

    def close(self) -> None:
        """Say that nothing more will come: called by paramiko, both at the end and when the line breaks."""
        with self._changed:
            first, self._closed = not self._closed, True
            self._changed.notify_all()
            if first and self._listener:
                self._listener(b"")

    def listen(self, listener: Callable[[bytes], None] | None) -> None:
        """Hand over all that comes from now on, what has come and was not taken first; ``b""`` once the stream is over.

        It is called in the connection's thread, which nothing else is served by meanwhile, so it must not wait. With None what
        comes from now on is kept for `take` again.
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
            self._open_window(len(data))

    def _keep_back(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        while self._keep is not None and self._size - len(self._chunks[0]) >= self._keep:
            self._size -= len(self._chunks.popleft())
        self._changed.notify_all()

    def set_event(self, event: Any) -> None:
        """Refuse to be polled."""
        raise NotImplementedError("nobody polls this channel")

    def __len__(self) -> int:
        return self._size

    def take(self, timeout_s: float) -> bytes:
        """Return all that has come, waiting for the first byte; nothing once the stream is over. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._chunks or self._closed, timeout_s):
                raise TimeoutError
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
        if data and self._keep is None:
            self._open_window(len(data))
        return data

    def pour(self, taker: Taker, timeout_s: float) -> bool:
        """Have what comes taken until ``taker`` wants no more; False where the stream was over before.

        It is called in the connection's thread: to hand bytes to another takes longer than to write them down. Raises
        TimeoutError where nothing comes for so long, and what ``taker`` raises.
        """
        with self._changed:
            chunks = list(self._chunks)
            self._chunks.clear()
            self._size = 0
            pour = self._pour = _Pour(taker)
            left = [rest for chunk in chunks if (rest := self._poured(memoryview(chunk)))]
            for rest in left:
                self._keep_back(rest)
        if taken := sum(map(len, chunks)) - sum(map(len, left)):
            self._open_window(taken)
        with self._changed:
            while not (pour.over or self._closed):
                total = self.total
                if not self._changed.wait_for(lambda: pour.over or self._closed, timeout_s) and self.total == total:
                    break
            self._pour = None
        if pour.error:
            raise pour.error
        if not (pour.over or self._closed):
            raise TimeoutError
        return pour.over

    def _poured(self, data: memoryview) -> bytes:
        """Have data taken, as much as is still wanted; return the rest."""
        assert self._pour
        rest = bytes(self._pour.take(data))
        if self._pour.over:
            self._changed.notify_all()
        return rest

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until nothing more can come; False if something still may."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    def tail(self, size: int) -> bytes:
        """Return the last bytes kept, without taking them."""
        with self._changed:
            return b"".join(self._chunks)[-size:] if size else b""

    def _open_window(self, size: int) -> None:
        more = self._channel._check_add_window(size)
        if more > 0:
            message = Message()
            message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self._channel.remote_chanid)
            message.add_int(more)
            self._channel.transport._send_user_message(message)


class _Pour:
    """Bytes on their way to a taker, until it wants no more or fails."""

    def __init__(self, taker: Taker) -> None:
        self.over = False
        self.error: Exception | None = None
        self._taker = taker

    def take(self, data: memoryview) -> memoryview:
        """Have as much of ``data`` taken as is wanted and return the rest."""
        if self.over:
            return data
        try:
            rest = self._taker(data)
        except Exception as error:  # it is raised again in the thread that waits for these bytes
            self.error, rest = error, data
        self.over = rest is not None
        return data[:0] if rest is None else rest


class Outbox:
    """What is sent on one channel, with nothing after its last message.

    Paramiko decides under a lock what to send, and sends outside it. So the answer to the server's CLOSE, which its own thread
    gives, overtakes data or an end-of-file on their way from ours, and sshd ends the whole connection over a message for a
    channel that is no more: one line in twenty, with eight short commands at a time. Here the last message waits until
    whoever is sending has done so; paramiko's thread itself never waits.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._senders = 0
        self._last: list[Message] = []

    def send(self, data: bytes | memoryview) -> int:
        """Send some of ``data`` and return how much; as `paramiko.Channel.send`."""
        with self._sending():
            return int(self._channel.send(data))

    def shutdown_write(self) -> None:
        """Send the end of file; as `paramiko.Channel.shutdown_write`."""
        with self._sending():
            self._channel.shutdown_write()

    def close(self) -> None:
        """Close the channel from this side."""
        with self._channel.lock:
            last = self._channel._close_internal()
        self.finish(last)

    def finish(self, last: Iterable[Message | None]) -> None:
        """Send the last messages, now or when nobody is sending any more. The channel has been marked closed already."""
        with self._lock:
            self._last += [message for message in last if message is not None]
            ready = self._take_last()
        self._emit(ready)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        with self._lock:
            self._senders += 1
        try:
            yield
        finally:
            with self._lock:
                self._senders -= 1
                ready = self._take_last()
            self._emit(ready)

    def _take_last(self) -> list[Message]:
        ready: list[Message] = []
        if not self._senders:
            ready, self._last = self._last, ready
        return ready

    def _emit(self, messages: list[Message]) -> None:
        for message in messages:
            self._channel.transport._send_user_message(message)

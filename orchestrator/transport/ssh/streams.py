"""The two directions of a channel: `WindowInbox` receives, `Outbox` sends in an order that servers
accept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paramiko.common import cMSG_CHANNEL_WINDOW_ADJUST
from paramiko.message import Message

from orchestrator.transport.streams import Inbox


class WindowInbox(Inbox):
    """One output stream of a channel, filled by paramiko, whose buffer it replaces; it opens the
    channel's window again.
    """

    def __init__(self, channel: Any, keep: int | None) -> None:
        super().__init__(keep)
        self._channel = channel

    def set_event(self, event: Any) -> None:
        """Refuse to be polled."""
        raise NotImplementedError("this channel cannot be polled")

    def make_room(self, size: int) -> None:
        """Let the server send so many more bytes."""
        added = self._channel._check_add_window(size)
        if added > 0:
            message = Message()
            message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self._channel.remote_chanid)
            message.add_int(added)
            self._channel.transport._send_user_message(message)


class Outbox:
    """The sending side of one channel, which sends nothing after the channel's last message.

    Paramiko prepares messages under a lock, but sends them outside it. The answer to the server's
    CLOSE, from paramiko's thread, can therefore overtake data or an end-of-file from another
    thread, and sshd ends the whole connection because of a message for a closed channel: one
    connection in twenty, with eight short commands at a time. This class holds the last message
    back until all senders have finished; paramiko's thread itself never waits.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._senders = 0
        self._last: list[Message] = []

    def send(self, data: bytes | memoryview) -> int:
        """Send part of ``data`` and return the number of bytes, as `paramiko.Channel.send` does."""
        with self._sending():
            return int(self._channel.send(data))

    def shutdown_write(self) -> None:
        """Send the end of file, as `paramiko.Channel.shutdown_write` does."""
        with self._sending():
            self._channel.shutdown_write()

    def close(self) -> None:
        """Close the channel from this side."""
        with self._channel.lock:
            last = self._channel._close_internal()
        self.finish(last)

    def finish(self, last: Iterable[Message | None]) -> None:
        """Send the last messages, now or when all senders have finished. The channel is already
        marked as closed.
        """
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

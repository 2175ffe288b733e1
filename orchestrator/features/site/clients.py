"""The open connections of a server: how many, and how long each may take to send its request and to
take its answer.

A timeout of a socket begins again with every byte, so that whoever sends or reads slowly would keep
a connection for ever. Here each part has a deadline. If all places are taken, the client that has
kept the server waiting longest gives up its place: whoever sends a request at once and reads the
answer is served, whatever others do.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

_REQUEST, _PAGE, _ANSWER = range(3)
"""What a connection waits for: the client's request, our page, the client to take it."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Connections at a time, and seconds: for a client to send a request, to take the answer, and
    for all of a connection.
    """

    most: int = 64
    request_s: float = 10.0
    answer_s: float = 30.0
    total_s: float = 120.0


@dataclass(slots=True)
class _Client:
    opened_s: float
    since_s: float
    waits_for: int = _REQUEST


class Clients:
    """The clients of a server. Each is connected by a socket and answered in a thread, which calls
    `forget` at the end.
    """

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, _Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def came(self, connection: socket.socket) -> bool:
        """Admit a connection. If no place is free, end one that keeps the server waiting.

        Return False if there is none.
        """
        now = time.monotonic()
        with self._lock:
            if len(self._clients) >= self._limits.most:
                slow = [of for of, client in self._clients.items() if client.waits_for != _PAGE]
                if not slow:
                    return False
                self._drop(
                    min(
                        slow,
                        key=lambda of: (self._clients[of].waits_for, self._clients[of].since_s),
                    )
                )
            self._clients[connection] = _Client(now, now)
            return True

    def note_request(self, connection: socket.socket) -> None:
        """Note that the request is complete: from now on the client waits for us."""
        self._goes_on(connection, _PAGE)

    def note_answer(self, connection: socket.socket) -> None:
        """Note that the page is made: from now on we wait for the client to take it."""
        self._goes_on(connection, _ANSWER)

    def forget(self, connection: socket.socket) -> None:
        """Note that nobody answers a connection any more."""
        with self._lock:
            self._clients.pop(connection, None)

    def end_overdue(self) -> None:
        """End the connections whose time is over. One whose page is being made keeps its place
        until that has ended.
        """
        now = time.monotonic()
        allowed_s = {_REQUEST: self._limits.request_s, _ANSWER: self._limits.answer_s}
        with self._lock:
            for connection, client in list(self._clients.items()):
                if (
                    client.waits_for in allowed_s
                    and now - client.since_s > allowed_s[client.waits_for]
                ):
                    self._drop(connection)
                elif now - client.opened_s > self._limits.total_s:
                    _end(connection)

    def _goes_on(self, connection: socket.socket, waits_for: int) -> None:
        with self._lock:
            if client := self._clients.get(connection):  # it may have been ended in this moment
                client.waits_for, client.since_s = waits_for, time.monotonic()

    def _drop(self, connection: socket.socket) -> None:
        """End a connection. Its place is free at once: what its thread waits for ends with it."""
        del self._clients[connection]
        _end(connection)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # the client has gone
        connection.shutdown(socket.SHUT_RDWR)

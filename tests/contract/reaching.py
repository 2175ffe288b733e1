"""Hosts that are not reached: what is then said, and listeners that are no ssh servers or stand in
front of one.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from orchestrator.errors import TransportError
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport.ssh import connect
from tests.contract.rig import Rig
from tests.support.judge import LIMIT_S


def unreachable(rig: Rig, address: str, port: int, *, connect_timeout_s: float = 10.0) -> str:
    """Connect, expect that nobody is there, and return what is said."""
    key = str(rig.keys.client)
    ssh = SshSettings(
        port=port, key=key, config=str(rig.config), connect_timeout_s=connect_timeout_s
    )
    with pytest.raises(TransportError) as caught:
        connect(Host("lab1", address, ssh=ssh), rig.trust())
    assert (caught.value.kind, caught.value.host) == ("host_unreachable", "lab1")
    return str(caught.value)


@contextmanager
def listener(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve every connection with ``talk``, one after the other, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stopping = threading.Event()

        def serve() -> None:
            while not stopping.is_set():
                connection, _ = server.accept()
                with connection:
                    talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        stopping.set()
        socket.create_connection(server.getsockname()).close()
        thread.join(LIMIT_S)


def relay(connection: socket.socket, target: tuple[str, int]) -> None:
    """Pass bytes both ways until either side ends."""
    with socket.create_connection(target) as other:

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(65536):
                    sink.sendall(data)
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        back = threading.Thread(target=pump, args=(other, connection))
        back.start()
        pump(connection, other)
        back.join()


@contextmanager
def hanging_up(times: int, target: tuple[str, int]) -> Iterator[tuple[int, list[int]]]:
    """Close so many connections at once and relay those after them; yield the port, and a list that
    has an entry for each.
    """
    calls: list[int] = []

    def talk(connection: socket.socket) -> None:
        calls.append(1)
        if len(calls) > times:
            relay(connection, target)

    with listener(talk) as port:
        yield port, calls

"""Whether a server is there beside a line that a lossy network holds up, and how that line sends
again what was lost.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from orchestrator.controller.peer import Peer
from orchestrator.controller.reattach import ask_beside
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.nodes.cluster import Cluster
from orchestrator.transport.ssh.config import Endpoint, resolve
from orchestrator.transport.ssh.dial import dial, greets
from tests.contract.rig import Rig
from tests.support.judge import LIMIT_S, wait_for
from tests.support.ports import free_port


def way_to(rig: Rig, port: int) -> Endpoint:
    return resolve(Host("lab1", "127.0.0.1", ssh=SshSettings(port=port, config=str(rig.config))))


def times(count: int) -> Callable[[], bool]:
    """Want to know as many times, however long a busy machine takes for each."""
    left = iter(range(count))
    return lambda: next(left, None) is not None


def for_seconds(length_s: float) -> Callable[[], bool]:
    until = time.monotonic() + length_s
    return lambda: time.monotonic() < until


@contextmanager
def taking(*words: bytes) -> Iterator[tuple[int, list[float]]]:
    """Take connections, say these words one to each and the last to all further ones, and keep them
    open.

    Yields the port and the instants at which connections came.
    """
    came: list[float] = []
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                stack.enter_context(connection)
                came.append(time.monotonic())
                connection.sendall(words[min(len(came), len(words)) - 1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1]), came
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT_S)


def test_a_server_greets(rig: Rig) -> None:
    server = rig.serve()
    line = rig.connect(server)
    assert line.greets(lambda: True)
    line.close()


def test_a_server_whose_greeting_is_lost_twice_is_asked_again(rig: Rig) -> None:
    with taking(b"", b"", b"SSH-2.0-third\r\n") as (port, came):
        assert greets(way_to(rig, port), lambda: True)
    assert len(came) == 3 and came[2] - came[0] > 0.7


def test_a_kernel_that_takes_connections_is_no_greeting(rig: Rig) -> None:
    with taking(b"") as (port, came):
        begin = time.monotonic()
        assert not greets(way_to(rig, port), times(3))
        took_s = time.monotonic() - begin
        wait_for(lambda: len(came) == 3, 5, "not asked three times")
    assert len(came) == 3 and took_s >= 1.0


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n", None], ids=["another server", "refused"]
)
def test_what_is_no_ssh_server_is_asked_until_nobody_wants_to_know(
    rig: Rig, said: bytes | None
) -> None:
    with taking(said or b"") as (port, _):
        begin = time.monotonic()
        assert not greets(way_to(rig, port if said else free_port("127.0.0.1")), for_seconds(1.0))
        assert time.monotonic() - begin >= 1.0


def test_at_most_three_questions_are_open_at_once(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not greets(way_to(rig, server.getsockname()[1]), times(5))
        ended = 0
        for _ in range(5):
            connection, _ = server.accept()
            with connection:
                connection.settimeout(LIMIT_S)
                ended += connection.recv(1) == b""
    assert ended == 5


def test_a_line_asks_for_even_pauses_and_for_a_congestion_control_that_allows_them(
    rig: Rig,
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        dial(way_to(rig, server.getsockname()[1]), time.monotonic() + LIMIT_S) as one,
    ):
        assert (
            one.getsockopt(socket.IPPROTO_TCP, 16) == 1
        )  # TCP_THIN_LINEAR_TIMEOUTS of linux/tcp.h
        assert not one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr")


class Late:
    """A transport whose server greets at the moment at which the node itself answers."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def greets(self, wanted: Callable[[], bool]) -> bool:
        assert wanted()
        self.peer.heard(20.0)
        return True


def test_a_greeting_that_comes_with_the_answer_excuses_no_later_silence() -> None:
    peer = Peer("lab1", None, last_answer=10.0, asking=True)
    cluster = SimpleNamespace(nodes={"lab1": SimpleNamespace(transport=Late(peer))})
    ask_beside(cast(Cluster, cluster), peer)
    assert (peer.greeted_at, peer.asking) == (0.0, False)

"""Lines that break, freeze or are closed: whoever reads or writes is told at once."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

from orchestrator.errors import TransportError
from orchestrator.transport import streams
from orchestrator.transport.ssh import Transport
from tests.contract.lines.shell import of_paramiko, sh
from tests.contract.rig import Rig
from tests.support.judge import LIMIT_S


def test_a_line_that_breaks_is_node_lost_for_reader_and_writer_at_once(
    rig: Rig, transport: str
) -> None:
    server = rig.serve()
    line = rig.connect(server)
    channel = line.popen(["cat"], timeout_s=LIMIT_S)
    channel.send(b"x")
    assert channel.recv(LIMIT_S) == b"x"
    server.kill_connections()
    with pytest.raises(TransportError, match="connection broke") as caught:
        channel.recv(LIMIT_S)
    assert (caught.value.kind, caught.value.host) == ("node_lost", "lab1")
    with pytest.raises(TransportError, match="connection broke"):
        for _ in range(1000):
            channel.send(bytes(100_000))
    if transport == "kubectl":  # each command has a connection of its own
        assert line.run(["echo", "again"], timeout_s=LIMIT_S).stdout == b"again\n"
        return
    assert not line.alive
    for call in (
        lambda: line.run(["true"], timeout_s=5),
        lambda: line.popen(["true"], timeout_s=5),
    ):
        with pytest.raises(TransportError, match="connection broke"):
            call()


def test_output_before_the_break_is_not_taken_for_the_end(rig: Rig) -> None:
    server = rig.serve()
    channel = rig.connect(server).popen(sh("echo half; sleep 30"), timeout_s=LIMIT_S)
    assert channel.recv(LIMIT_S) == b"half\n"
    server.kill_connections()
    with pytest.raises(TransportError):
        channel.recv(LIMIT_S)
    with pytest.raises(TransportError):
        channel.ending(LIMIT_S)


def test_a_run_over_a_line_that_breaks_is_node_lost(rig: Rig) -> None:
    server = rig.serve()
    line = rig.connect(server)
    threading.Timer(0.3, server.kill_connections).start()
    with pytest.raises(TransportError, match="connection broke") as caught:
        line.run(["sleep", "30"], timeout_s=LIMIT_S)
    assert caught.value.kind == "node_lost"


def test_sending_to_a_frozen_node_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALL_S", 1.0)
    server = rig.serve()
    channel = rig.connect(server).popen(["cat"], timeout_s=LIMIT_S)
    frozen = server.connections()
    for process in frozen:
        os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(TransportError) as caught:
            channel.send(bytes(64 << 20))
        assert caught.value.kind == "node_lost"
    finally:
        for process in frozen:
            os.kill(process, signal.SIGCONT)


@of_paramiko
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a setting of Linux")
def test_writes_to_a_cut_line_end_after_10_seconds_and_small_ones_leave_at_once_and_again_soon(
    line: Transport,
) -> None:
    sock = line._line.client.wire._wrapped._sock
    assert sock.getsockopt(socket.IPPROTO_TCP, 16) == 1, "TCP_THIN_LINEAR_TIMEOUTS"
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_closing_the_line_wakes_whoever_waits_on_it(rig: Rig) -> None:
    server = rig.serve()
    line = rig.connect(server)
    reader, writer = (
        line.popen(["sleep", "60"], timeout_s=LIMIT_S),
        line.popen(["sleep", "60"], timeout_s=LIMIT_S),
    )
    ended: list[str] = []

    def wait(what: str) -> None:
        try:
            if what == "read":
                reader.recv(LIMIT_S)
            else:
                writer.send(bytes(64 << 20))
        except TransportError:
            ended.append(what)

    threads = [threading.Thread(target=wait, args=(what,)) for what in ("read", "write")]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    line.close()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(ended) == ["read", "write"]


@of_paramiko
def test_closing_frees_threads_and_sockets(rig: Rig, no_leak: object) -> None:
    server = rig.serve()
    for _ in range(20):
        transport = rig.connect(server)
        transport.run(["true"], timeout_s=LIMIT_S)
        transport.popen(["sleep", "60"], timeout_s=LIMIT_S)
        transport.close()
        transport.close()
        assert not transport.alive

"""A channel over a real sshd: bytes both ways, as they come, kept where nobody reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.controller.peer import Interrupt, Peer
from orchestrator.controller.stage import Stage
from orchestrator.controller.watch import Watch
from orchestrator.plan.limits import Limits
from orchestrator.transport import Taker
from orchestrator.transport.ssh import Transport
from tests.contract.lines.shell import sh
from tests.contract.rig import Rig
from tests.support import judge
from tests.support.judge import LIMIT_S
from tests.support.rendering import rendered

EVERY_BYTE = bytes(range(256))


def test_a_channel_carries_bytes_both_ways_until_its_input_is_closed(line: Transport) -> None:
    channel = line.popen(["cat"], timeout_s=LIMIT_S)
    channel.send(EVERY_BYTE)
    received = b""
    while len(received) < 256:
        received += channel.recv(LIMIT_S)
    assert received == EVERY_BYTE
    with pytest.raises(TimeoutError):
        channel.recv(0.1)
    channel.shutdown_write()
    assert channel.recv(LIMIT_S) == b""
    assert channel.ending(LIMIT_S) == (0, None)
    channel.close()


def counted(count: int, write: Callable[[memoryview], Any]) -> Taker:
    """Take so many bytes and no more."""
    left = count

    def take(data: memoryview) -> memoryview | None:
        nonlocal left
        part, rest = data[:left], data[left:]
        left -= len(part)
        write(part)
        return rest if left == 0 else None

    return take


def test_so_many_bytes_of_output_are_written_as_they_come_and_what_follows_is_kept(
    line: Transport,
) -> None:
    channel = line.popen(
        sh(
            "printf first; sleep 0.2; head -c 9000000 /dev/zero; printf then; sleep 0.2; printf last"
        ),
        timeout_s=LIMIT_S,
    )
    assert channel.recv(LIMIT_S) == b"first"
    written = bytearray()
    channel.pour(counted(9_000_002, written.extend), 10)
    assert written == bytes(9_000_000) + b"th"
    assert b"".join(iter(lambda: channel.recv(LIMIT_S), b"")) == b"enlast"


def test_output_that_ends_stands_still_or_cannot_be_written_stops_the_writing(
    line: Transport,
) -> None:
    def full(data: memoryview) -> None:
        raise OSError(f"no room for {len(data)} bytes")

    with pytest.raises(EOFError):
        line.popen(sh("printf abc"), timeout_s=LIMIT_S).pour(counted(4, bytearray().extend), 10)
    with pytest.raises(TimeoutError):
        line.popen(sh("printf abc; exec sleep 30"), timeout_s=LIMIT_S).pour(
            counted(4, bytearray().extend), 0.3
        )
    with pytest.raises(OSError, match="no room for 3 bytes"):
        line.popen(sh("printf abc; exec sleep 30"), timeout_s=LIMIT_S).pour(counted(4, full), 10)
    slow = line.popen(sh("for n in 1 2 3 4; do printf $n; sleep 0.4; done"), timeout_s=LIMIT_S)
    slow.pour(
        counted(4, bytearray().extend), 0.7
    )  # it comes late as a whole, and never stands still for so long


def test_a_channel_keeps_the_end_of_standard_error_and_always_drains_it(line: Transport) -> None:
    channel = line.popen(
        sh("head -c 9000000 /dev/zero >&2; printf last >&2; echo done"), timeout_s=LIMIT_S
    )
    assert channel.recv(LIMIT_S) == b"done\n"
    assert channel.recv(LIMIT_S) == b""
    tail = channel.stderr_tail()
    assert len(tail) == 8192
    assert tail.endswith(b"\0last")


def test_output_that_nobody_reads_stops_the_command_and_loses_nothing(line: Transport) -> None:
    channel = line.popen(sh("head -c 30000000 /dev/zero; echo end"), timeout_s=LIMIT_S)
    time.sleep(0.5)
    assert len(channel._stdout) <= 8 << 20  # the window, not the 30 MB
    size = 0
    while data := channel.recv(LIMIT_S):
        size += len(data)
    assert size == 30_000_004


def test_sends_of_several_threads_are_not_mixed(line: Transport) -> None:
    channel = line.popen(["cat"], timeout_s=LIMIT_S)
    blocks = [bytes([number]) * 300_000 for number in range(1, 5)]
    threads = [threading.Thread(target=channel.send, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    received = b""
    while len(received) < 1_200_000:
        received += channel.recv(LIMIT_S)
    for thread in threads:
        thread.join()
    assert (
        sorted(received[start : start + 300_000] for start in range(0, 1_200_000, 300_000))
        == blocks
    )


def held_up(line: Transport) -> threading.Event:
    """Hold up the connection's thread, let more come, and return what lets the thread go on."""
    channel = line.popen(["cat"], timeout_s=LIMIT_S)
    came, go_on = threading.Event(), threading.Event()
    channel.listen(lambda _: (came.set(), go_on.wait(LIMIT_S)))
    assert not line.unread
    channel.send(b"first")
    assert came.wait(LIMIT_S)
    channel.send(b"then")
    return go_on


@pytest.mark.parametrize("way", ["direct", "behind a jump host", "by a ProxyCommand"])
def test_what_came_is_seen_beside_a_thread_that_is_held_up_from_reading_it(
    rig: Rig, transport: str, way: str
) -> None:
    if transport == "kubectl" and way != "direct":
        pytest.skip("kubectl knows proxies of its own")
    server = rig.serve()
    if way == "by a ProxyCommand":
        rig.configure(rig.proxy_command())
    line = rig.connect(rig.behind(server, rig.serve()) if way == "behind a jump host" else server)
    go_on = held_up(line)
    judge.wait_for(lambda: line.unread, 10, "nothing is seen")
    go_on.set()
    judge.wait_for(lambda: not line.unread, 10, "it stays unread")
    server.kill_connections()
    if transport != "kubectl":
        judge.wait_for(lambda: not line.alive, 10, "it stays alive")
    assert not line.unread


def test_a_node_whose_answer_lies_unread_is_not_lost(rig: Rig) -> None:
    line = rig.connect(rig.serve())
    cluster = cast(Any, SimpleNamespace(nodes={"gpu2": SimpleNamespace(transport=line)}))
    limits = Limits(lost_s=0.6, doubt_s=0.0)
    stage = Stage(
        cluster, limits, Interrupt(), journal=lambda *_, **__: None, observe=lambda _: None
    )
    watch = Watch(rendered("", {}), stage, tail="")
    peer = watch.peers["gpu2"] = Peer("gpu2", None)
    go_on = held_up(line)
    judge.wait_for(lambda: line.unread, 10, "nothing came")
    over = threading.Thread(target=watch.run)
    over.start()
    time.sleep(1.5)
    assert peer.error is None
    go_on.set()
    over.join(LIMIT_S)
    assert peer.error and peer.error.kind == "node_lost"

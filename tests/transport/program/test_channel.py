"""The channel over a local program: the same promises as a channel over SSH, which `tests/contract`
checks with a server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, RunError, TransportError
from orchestrator.inventory import Host
from orchestrator.transport import completion, receiver, streams
from orchestrator.transport.program import Outcome, ProgramChannel
from orchestrator.transport.program import channel as channel_module
from orchestrator.transport.streams import Inbox
from tests.support.judge import LIMIT_S, wait_for

HOST = Host("lab1", "127.0.0.1")


@pytest.fixture(autouse=True)
def _no_leak() -> Iterator[None]:
    def count() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = count()
    yield
    wait_for(lambda: count() <= before, 5, "threads or files are left")


def sh(script: str, **settings: bool) -> ProgramChannel:
    return ProgramChannel(HOST, ["sh", "-c", script], **settings)


def lost_if_255(code: int, stderr: bytes) -> Outcome:
    return TransportError("the connection broke", kind="node_lost") if code == 255 else (code, None)


def pid_of(channel: ProgramChannel) -> int:
    return channel._process.pid


def test_bytes_pass_both_ways_until_the_input_is_closed() -> None:
    channel = ProgramChannel(HOST, ["cat"])
    channel.send(bytes(range(256)))
    received = b""
    while len(received) < 256:
        received += channel.recv(LIMIT_S)
    assert received == bytes(range(256))
    with pytest.raises(TimeoutError):
        channel.recv(0.05)
    channel.shutdown_write()
    channel.shutdown_write()
    assert channel.recv(LIMIT_S) == b"" and channel.ended
    assert channel.ending(LIMIT_S) == (0, None)
    with pytest.raises(TransportError, match="accepts no more input"):
        channel.send(b"late")
    channel.close()


def test_output_that_nobody_reads_stops_the_program_and_loses_nothing() -> None:
    channel = sh("head -c 30000000 /dev/zero; echo end")
    wait_for(lambda: len(channel._stdout) >= 4 << 20, 10, "nothing comes")
    time.sleep(0.1)
    assert len(channel._stdout) <= 5 << 20
    assert sum(map(len, iter(lambda: channel.recv(LIMIT_S), b""))) == 30_000_004
    assert channel.ending(LIMIT_S) == (0, None)


def test_a_listener_hears_everything_and_the_end() -> None:
    heard: list[bytes] = []
    channel = sh("printf first; read x; printf then")
    assert channel.recv(LIMIT_S) == b"first"
    channel.listen(heard.append)
    channel.send(b"\n")
    assert channel.ending(LIMIT_S) == (0, None)
    wait_for(lambda: heard == [b"then", b""], 5, "the end is not told")


def test_a_lost_connection_is_told_from_a_command_that_ended() -> None:
    broken = ProgramChannel(HOST, ["sh", "-c", "echo half; exit 255"], lost_if_255)
    assert broken.recv(LIMIT_S) == b"half\n"
    for wait in (broken.recv, broken.ending):
        with pytest.raises(TransportError, match="connection broke") as caught:
            wait(LIMIT_S)
        assert (caught.value.kind, caught.value.host) == ("node_lost", "lab1")
    assert not broken.ended
    ended = ProgramChannel(HOST, ["sh", "-c", "exit 254"], lost_if_255)
    assert ended.recv(LIMIT_S) == b"" and ended.ended and ended.ending(LIMIT_S) == (254, None)


def test_a_program_that_somebody_kills_is_a_lost_connection() -> None:
    channel = ProgramChannel(HOST, ["sleep", "30"])
    os.kill(pid_of(channel), signal.SIGKILL)
    with pytest.raises(TransportError, match="connection broke"):
        channel.recv(LIMIT_S)


def test_a_command_runs_to_its_end_with_both_outputs() -> None:
    script = (
        "head -c 6000000 /dev/zero >&2; head -c 7000000 /dev/zero; head -c 1 /dev/zero >&2; exit 7"
    )
    done = completion.run_to_end(
        HOST, ["sh"], bytes(1 << 20), 20, lambda _: sh(script, take_all=True), lambda: True
    )
    assert (done.code, done.signal, len(done.stdout), len(done.stderr)) == (
        7,
        None,
        7_000_000,
        6_000_001,
    )


def test_a_command_that_takes_too_long_ends_the_wait_and_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "LEAVE_S", 0.1)
    started: list[ProgramChannel] = []

    def start(deadline: float) -> ProgramChannel:
        started.append(ProgramChannel(HOST, ["sleep", "30"], take_all=True))
        return started[0]

    with pytest.raises(TransportError, match=r"sleep did not finish within 0\.2 s") as caught:
        completion.run_to_end(HOST, ["sleep"], b"", 0.2, start, lambda: True)
    assert caught.value.kind == "node_lost"
    wait_for(lambda: started[0]._process.returncode == -signal.SIGKILL, 5, "it still runs")


def test_a_program_that_stays_when_its_command_is_over_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As kubectl does when its command has left input unread."""

    class Words(Inbox):
        command_is_over = property(lambda self: b"over" in self.tail(9))  # type: ignore[assignment]

    monkeypatch.setattr(channel_module, "_QUIET_S", 0.2)
    argv = ["sh", "-c", "echo over >&2; for i in 1 2 3; do sleep 0.1; echo $i; done; sleep 60"]
    channel = ProgramChannel(HOST, argv, lambda *_: (7, None), stderr=Words(99))
    assert channel.ending(LIMIT_S) == (7, None)
    assert channel.recv(LIMIT_S) == b"1\n2\n3\n"
    channel.close()
    wait_for(lambda: channel._process.returncode == -signal.SIGKILL, LIMIT_S, "it still runs")


def test_more_output_than_can_be_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "OUTPUT_LIMIT_BYTES", 1000)
    with pytest.raises(RunError) as caught:
        completion.run_to_end(
            HOST,
            ["head"],
            b"",
            20,
            lambda _: sh("head -c 300000 /dev/zero", take_all=True),
            lambda: True,
        )
    assert caught.value.kind == "output_limit"


def test_a_program_that_accepts_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALL_S", 0.2)
    channel = ProgramChannel(HOST, ["sleep", "30"])
    with pytest.raises(TransportError, match="it accepted no data for 0 s") as caught:
        channel.send(bytes(1 << 20))
    assert caught.value.kind == "node_lost"
    channel.close()
    channel.kill()


def test_a_channel_that_is_closed_lets_a_waiting_sender_and_reader_go() -> None:
    channel = ProgramChannel(HOST, ["sleep", "30"])
    ends: list[type[BaseException] | bytes] = []

    def send() -> None:
        try:
            channel.send(bytes(1 << 20))
        except TransportError as error:
            ends.append(type(error))

    threads = [
        threading.Thread(target=send),
        threading.Thread(target=lambda: ends.append(channel.recv(LIMIT_S))),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    channel.close()
    for thread in threads:
        thread.join(LIMIT_S)
    assert set(ends) == {TransportError, b""}


def test_what_lies_unread_is_seen_beside_a_thread_that_is_held_up() -> None:
    channel = ProgramChannel(HOST, ["cat"])
    came, go_on = threading.Event(), threading.Event()
    channel.listen(lambda data: (came.set(), go_on.wait(LIMIT_S)) if data else None)
    channel.send(b"first")
    assert came.wait(LIMIT_S) and not channel.unread
    channel.send(b"then")
    wait_for(lambda: channel.unread, 5, "nothing is seen")
    go_on.set()
    wait_for(lambda: not channel.unread, 5, "it stays unread")
    channel.kill()
    assert not channel.unread


def test_the_terminals_interrupt_does_not_reach_the_program_and_it_ends_with_the_controller(
    tmp_path: Path,
) -> None:
    code = (
        "import os, sys, time\nfrom orchestrator.inventory import Host\n"
        "from orchestrator.transport.program import ProgramChannel\n"
        "channel = ProgramChannel(Host('lab1', '127.0.0.1'), ['cat'])\n"
        "print(channel._process.pid, os.getsid(channel._process.pid), flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as controller:
        assert controller.stdout
        pid, session = map(int, controller.stdout.readline().split())
        assert pid == session != controller.pid
        controller.kill()
    wait_for(
        lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(),
        5,
        "it stays",
    )


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-ssh cannot be started"):
        ProgramChannel(HOST, ["no-such-ssh"])

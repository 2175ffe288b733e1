"""Commands over a real sshd: bytes, exit codes, signals, and what happens when the line breaks."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EOF
from paramiko.message import Message

from orchestrator.controller.peer import Interrupt, Peer
from orchestrator.controller.stage import Stage
from orchestrator.controller.watch import Watch
from orchestrator.errors import ConfigError, TransportError
from orchestrator.plan.limits import Limits
from orchestrator.transport import Taker, streams
from orchestrator.transport.ssh import Transport
from orchestrator.transport.ssh.wire import Wire
from tests.contract.rig import Rig
from tests.support import judge
from tests.support.rendering import rendered

EVERY_BYTE = bytes(range(256))

of_paramiko = pytest.mark.parametrize("transport", ["ssh"], indirect=True)


@pytest.fixture(params=["ssh", "openssh"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every transport that reaches a server by SSH."""
    return str(request.param)


def sh(script: str, *words: str) -> list[str]:
    return ["sh", "-c", script, "sh", *words]


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process}/stat").read_text().split(") ")[1].startswith("Z")


def test_a_command_returns_its_output_and_exit_code(line: Transport) -> None:
    result = line.run(sh("printf out; printf err >&2; exit 7"), timeout_s=10)
    assert (result.code, result.signal, result.stdout, result.stderr) == (7, None, b"out", b"err")


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_a_command_that_dies_of_a_signal_names_it(line: Transport, transport: str, name: str) -> None:
    result = line.run(sh(f"kill -{name} $$"), timeout_s=10)
    assert (result.code, result.signal) == ((None, f"SIG{name}") if transport == "ssh" else (255, None))  # ssh tells no signal
    assert line.alive


def test_a_missing_program_is_exit_127(line: Transport) -> None:
    assert line.run(["no-such-program-at-all"], timeout_s=10).code == 127


def test_input_and_output_of_20_mb_pass_at_the_same_time_unchanged(line: Transport) -> None:
    data = EVERY_BYTE * (20 * 1024 * 1024 // 256) + b"tail without newline"
    result = line.run(["cat"], input=data, timeout_s=60)
    assert result.code == 0
    assert result.stdout == data


def test_both_outputs_of_several_mb_arrive_complete(line: Transport) -> None:
    script = "head -c 6000000 /dev/zero >&2; head -c 7000000 /dev/zero; head -c 1 /dev/zero >&2"
    result = line.run(sh(script), timeout_s=60)
    assert (len(result.stdout), len(result.stderr)) == (7_000_000, 6_000_001)


@pytest.mark.parametrize(
    ("who", "transport"), [("server", "ssh"), ("client", "ssh"), ("server", "openssh")], indirect=["transport"]
)
def test_keys_are_exchanged_again_in_the_middle_of_a_transfer(rig: Rig, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    server = rig.serve("LogLevel DEBUG1", *(["RekeyLimit 1M"] if who == "server" else []))
    if who == "client":
        monkeypatch.setattr("paramiko.packet.Packetizer.REKEY_BYTES", 1 << 18)
    data = os.urandom(1 << 20) * 8
    line = rig.connect(server)
    assert line.run(["cat"], input=data, timeout_s=25).stdout == data
    channel = line.popen(["head", "-c", "8000000", "/dev/zero"], timeout_s=10)
    assert len(b"".join(iter(lambda: channel.recv(20), b""))) == 8_000_000
    assert server.log.count("SSH2_MSG_NEWKEYS received") > 5


@of_paramiko
def test_a_server_without_aes_gcm_is_understood_as_well(rig: Rig) -> None:
    line = rig.connect(rig.serve("Ciphers aes128-ctr"))
    data = os.urandom(5_000_000)
    assert line.run(["cat"], input=data, timeout_s=25).stdout == data


def test_input_that_the_command_does_not_want_is_no_error(line: Transport) -> None:
    result = line.run(["true"], input=bytes(8 << 20), timeout_s=20)
    assert result.code == 0


def test_many_commands_run_at_once_on_one_line(line: Transport) -> None:
    for _ in range(30):
        results: dict[int, bytes] = {}

        def one(number: int, results: dict[int, bytes] = results) -> None:
            results[number] = line.run(["echo", str(number)], timeout_s=20).stdout

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {number: f"{number}\n".encode() for number in range(8)}


@of_paramiko
@pytest.mark.parametrize("kind", [MSG_CHANNEL_DATA, MSG_CHANNEL_EOF])
def test_a_message_that_is_late_does_not_follow_the_end_of_its_channel(
    line: Transport, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    send = Wire._send_user_message

    def late(wire: Wire, message: Message) -> None:
        if message.asbytes()[0] == kind:
            time.sleep(0.2)
        send(wire, message)

    monkeypatch.setattr(Wire, "_send_user_message", late)
    for _ in range(2):
        assert line.run(["true"], input=b"unwanted", timeout_s=10).code == 0
    assert line.alive


def test_a_command_that_takes_too_long_ends_the_wait(line: Transport) -> None:
    started = time.monotonic()
    with pytest.raises(TransportError, match=r"sleep did not finish within 0\.3 s") as caught:
        line.run(["sleep", "30"], timeout_s=0.3)
    assert time.monotonic() - started < 2
    assert (caught.value.kind, caught.value.host) == ("node_lost", "lab1")
    assert line.run(["echo", "still here"], timeout_s=10).stdout == b"still here\n"


@of_paramiko  # the start of a program takes as long as such an acknowledgement
def test_the_first_command_of_a_line_waits_for_no_delayed_acknowledgement(rig: Rig) -> None:
    server = rig.serve()
    times = []
    for _ in range(8):
        line = rig.connect(server)
        started = time.perf_counter()
        line.run(["true"], timeout_s=10)
        times.append(time.perf_counter() - started)
        line.close()
    assert min(times) < 0.035, times  # such an acknowledgement takes 0.04


def test_a_command_does_not_wait_for_polls(line: Transport) -> None:
    line.run(["true"], timeout_s=10)
    times = []
    for _ in range(60):
        started = time.perf_counter()
        line.run(["true"], timeout_s=10)
        times.append(time.perf_counter() - started)
    # One poll of paramiko's takes 0.1. A busy machine makes many wait, and leaves a few alone.
    assert sorted(times)[5] < 0.035, times


def test_no_terminal_and_no_forwarding_is_asked_for(rig: Rig) -> None:
    server = rig.serve("LogLevel DEBUG1")
    line = rig.connect(server)
    assert line.run(["tty"], timeout_s=10).stdout == b"not a tty\n"
    requests = [text.split("req ")[-1] for text in server.log.splitlines() if "session_input_channel_req" in text]
    assert requests == ["exec"]


def test_words_of_login_scripts_come_back_as_they_are(rig: Rig) -> None:
    server = rig.serve()
    (server.home / ".bashrc").write_text("echo welcome to the lab\n")
    shell = rig.connect(server).run(["sh", "-c", 'basename "$SHELL"'], timeout_s=10).stdout
    if not shell.endswith(b"bash\n"):
        pytest.skip("the account's shell reads no .bashrc over ssh")
    assert shell == b"welcome to the lab\nbash\n"  # the node client's frames tell them apart


def test_a_channel_carries_bytes_both_ways_until_its_input_is_closed(line: Transport) -> None:
    channel = line.popen(["cat"], timeout_s=10)
    channel.send(EVERY_BYTE)
    received = b""
    while len(received) < 256:
        received += channel.recv(10)
    assert received == EVERY_BYTE
    with pytest.raises(TimeoutError):
        channel.recv(0.1)
    channel.shutdown_write()
    assert channel.recv(10) == b""
    assert channel.ending(10) == (0, None)
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


def test_so_many_bytes_of_output_are_written_as_they_come_and_what_follows_is_kept(line: Transport) -> None:
    channel = line.popen(
        sh("printf first; sleep 0.2; head -c 9000000 /dev/zero; printf then; sleep 0.2; printf last"), timeout_s=10
    )
    assert channel.recv(10) == b"first"
    written = bytearray()
    channel.pour(counted(9_000_002, written.extend), 10)
    assert written == bytes(9_000_000) + b"th"
    assert b"".join(iter(lambda: channel.recv(10), b"")) == b"enlast"


def test_output_that_ends_stands_still_or_cannot_be_written_stops_the_writing(line: Transport) -> None:
    def full(data: memoryview) -> None:
        raise OSError(f"no room for {len(data)} bytes")

    with pytest.raises(EOFError):
        line.popen(sh("printf abc"), timeout_s=10).pour(counted(4, bytearray().extend), 10)
    with pytest.raises(TimeoutError):
        line.popen(sh("printf abc; exec sleep 30"), timeout_s=10).pour(counted(4, bytearray().extend), 0.3)
    with pytest.raises(OSError, match="no room for 3 bytes"):
        line.popen(sh("printf abc; exec sleep 30"), timeout_s=10).pour(counted(4, full), 10)
    slow = line.popen(sh("for n in 1 2 3 4; do printf $n; sleep 0.4; done"), timeout_s=10)
    slow.pour(counted(4, bytearray().extend), 0.7)  # it comes late as a whole, and never stands still for so long


def test_a_channel_keeps_the_end_of_standard_error_and_always_drains_it(line: Transport) -> None:
    channel = line.popen(sh("head -c 9000000 /dev/zero >&2; printf last >&2; echo done"), timeout_s=10)
    assert channel.recv(20) == b"done\n"
    assert channel.recv(10) == b""
    tail = channel.stderr_tail()
    assert len(tail) == 8192
    assert tail.endswith(b"\0last")


def test_output_that_nobody_reads_stops_the_command_and_loses_nothing(line: Transport) -> None:
    channel = line.popen(sh("head -c 30000000 /dev/zero; echo end"), timeout_s=10)
    time.sleep(0.5)
    assert len(channel._stdout) <= 8 << 20  # the window, not the 30 MB
    size = 0
    while data := channel.recv(10):
        size += len(data)
    assert size == 30_000_004


def test_sends_of_several_threads_are_not_mixed(line: Transport) -> None:
    channel = line.popen(["cat"], timeout_s=10)
    blocks = [bytes([number]) * 300_000 for number in range(1, 5)]
    threads = [threading.Thread(target=channel.send, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    received = b""
    while len(received) < 1_200_000:
        received += channel.recv(10)
    for thread in threads:
        thread.join()
    assert sorted(received[start : start + 300_000] for start in range(0, 1_200_000, 300_000)) == blocks


def held_up(line: Transport) -> threading.Event:
    """Hold up the connection's thread, let more come, and return what lets the thread go on."""
    channel = line.popen(["cat"], timeout_s=10)
    came, go_on = threading.Event(), threading.Event()
    channel.listen(lambda _: (came.set(), go_on.wait(20)))
    assert not line.unread
    channel.send(b"first")
    assert came.wait(10)
    channel.send(b"then")
    return go_on


@pytest.mark.parametrize("way", ["direct", "behind a jump host", "by a ProxyCommand"])
def test_what_came_is_seen_beside_a_thread_that_is_held_up_from_reading_it(rig: Rig, way: str) -> None:
    server = rig.serve()
    if way == "by a ProxyCommand":
        rig.configure(rig.proxy_command())
    line = rig.connect(rig.behind(server, rig.serve()) if way == "behind a jump host" else server)
    go_on = held_up(line)
    judge.wait_for(lambda: line.unread, 10, "nothing is seen")
    go_on.set()
    judge.wait_for(lambda: not line.unread, 10, "it stays unread")
    server.kill_connections()
    judge.wait_for(lambda: not line.alive, 10, "it stays alive")
    assert not line.unread


def test_a_node_whose_answer_lies_unread_is_not_lost(rig: Rig) -> None:
    line = rig.connect(rig.serve())
    cluster = cast(Any, SimpleNamespace(nodes={"gpu2": SimpleNamespace(transport=line)}))
    limits = Limits(lost_s=0.6, doubt_s=0.0)
    stage = Stage(cluster, limits, Interrupt(), journal=lambda *_, **__: None, observe=lambda _: None)
    watch = Watch(rendered("", {}), stage, tail="")
    peer = watch.peers["gpu2"] = Peer("gpu2", None)
    go_on = held_up(line)
    judge.wait_for(lambda: line.unread, 10, "nothing came")
    over = threading.Thread(target=watch.run)
    over.start()
    time.sleep(1.5)
    assert peer.error is None
    go_on.set()
    over.join(20)
    assert peer.error and peer.error.kind == "node_lost"


def test_a_line_that_breaks_is_node_lost_for_reader_and_writer_at_once(rig: Rig) -> None:
    server = rig.serve()
    line = rig.connect(server)
    channel = line.popen(["cat"], timeout_s=10)
    channel.send(b"x")
    assert channel.recv(10) == b"x"
    cut = time.monotonic()
    server.kill_connections()
    with pytest.raises(TransportError, match="connection broke") as caught:
        channel.recv(10)
    assert (caught.value.kind, caught.value.host) == ("node_lost", "lab1")
    with pytest.raises(TransportError, match="connection broke"):
        for _ in range(1000):
            channel.send(bytes(100_000))
    assert time.monotonic() - cut < 3
    assert not line.alive
    for call in (lambda: line.run(["true"], timeout_s=5), lambda: line.popen(["true"], timeout_s=5)):
        with pytest.raises(TransportError, match="connection broke"):
            call()


def test_output_before_the_break_is_not_taken_for_the_end(rig: Rig) -> None:
    server = rig.serve()
    channel = rig.connect(server).popen(sh("echo half; sleep 30"), timeout_s=10)
    assert channel.recv(10) == b"half\n"
    server.kill_connections()
    with pytest.raises(TransportError):
        channel.recv(10)
    with pytest.raises(TransportError):
        channel.ending(10)


def test_a_run_over_a_line_that_breaks_is_node_lost(rig: Rig) -> None:
    server = rig.serve()
    line = rig.connect(server)
    threading.Timer(0.3, server.kill_connections).start()
    with pytest.raises(TransportError, match="connection broke") as caught:
        line.run(["sleep", "30"], timeout_s=20)
    assert caught.value.kind == "node_lost"


def test_sending_to_a_frozen_node_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALL_S", 1.0)
    server = rig.serve()
    channel = rig.connect(server).popen(["cat"], timeout_s=10)
    frozen = server.connections()
    for process in frozen:
        os.kill(process, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(TransportError) as caught:
            channel.send(bytes(64 << 20))
        assert caught.value.kind == "node_lost"
        assert time.monotonic() - started < 15
    finally:
        for process in frozen:
            os.kill(process, signal.SIGCONT)


@of_paramiko
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a setting of Linux")
def test_writes_to_a_cut_line_end_after_10_seconds_and_small_ones_leave_at_once_and_again_soon(line: Transport) -> None:
    sock = line._line.client.wire._wrapped._sock
    assert sock.getsockopt(socket.IPPROTO_TCP, 16) == 1, "TCP_THIN_LINEAR_TIMEOUTS"
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_closing_the_line_wakes_whoever_waits_on_it(rig: Rig) -> None:
    server = rig.serve()
    line = rig.connect(server)
    reader, writer = line.popen(["sleep", "60"], timeout_s=10), line.popen(["sleep", "60"], timeout_s=10)
    ended: list[str] = []

    def wait(what: str) -> None:
        try:
            if what == "read":
                reader.recv(60)
            else:
                writer.send(bytes(64 << 20))
        except TransportError:
            ended.append(what)

    threads = [threading.Thread(target=wait, args=(what,)) for what in ("read", "write")]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    started = time.monotonic()
    line.close()
    for thread in threads:
        thread.join(5)
    assert time.monotonic() - started < 3
    assert sorted(ended) == ["read", "write"]


def test_a_command_that_cannot_be_said_is_refused_before_it_is_sent(line: Transport) -> None:
    with pytest.raises(ConfigError, match="NUL"):
        line.run(["echo", "a\0b"], timeout_s=5)


def test_more_sessions_than_the_server_allows_name_the_setting(rig: Rig) -> None:
    line = rig.connect(rig.serve("MaxSessions 2"))
    held = [line.popen(["sleep", "60"], timeout_s=10) for _ in range(2)]
    with pytest.raises(TransportError, match="MaxSessions") as caught:
        line.popen(["true"], timeout_s=10)
    assert caught.value.kind == "host_unreachable"
    held[0].close()
    held[1].close()


def test_a_free_session_is_used_again_without_a_pause(rig: Rig) -> None:
    line = rig.connect(rig.serve("MaxSessions 2"))
    held = line.popen(["cat"], timeout_s=10)
    for _ in range(40):
        assert line.run(["true"], timeout_s=10).code == 0
    held.close()


@of_paramiko
def test_closing_frees_threads_and_sockets(rig: Rig, no_leak: object) -> None:
    server = rig.serve()
    for _ in range(20):
        transport = rig.connect(server)
        transport.run(["true"], timeout_s=10)
        transport.popen(["sleep", "60"], timeout_s=10)
        transport.close()
        transport.close()
        assert not transport.alive


def test_a_line_reports_the_key_that_tells_machines_apart(rig: Rig) -> None:
    one, two = rig.serve(), rig.serve()
    keys = {rig.connect(server).host_key for server in (one, two)}
    assert len(keys) == 1
    assert keys.pop().startswith("SHA256:")

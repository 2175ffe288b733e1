"""Commands over a real sshd: bytes, exit codes, signals and sessions."""

from __future__ import annotations

import os
import threading
import time

import pytest
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EOF
from paramiko.message import Message

from orchestrator.errors import ConfigError, TransportError
from orchestrator.transport.ssh import Transport
from orchestrator.transport.ssh.wire import Wire
from tests.contract.lines.shell import of_paramiko, of_ssh, sh
from tests.contract.rig import Rig
from tests.support.judge import LIMIT_S

EVERY_BYTE = bytes(range(256))


def test_a_command_returns_its_output_and_exit_code(line: Transport) -> None:
    result = line.run(sh("printf out; printf err >&2; exit 7"), timeout_s=LIMIT_S)
    assert (result.code, result.signal, result.stdout, result.stderr) == (7, None, b"out", b"err")


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_a_command_that_dies_of_a_signal_names_it(
    line: Transport, transport: str, name: str
) -> None:
    result = line.run(sh(f"kill -{name} $$"), timeout_s=LIMIT_S)
    assert (result.code, result.signal) == (
        (255, None) if transport == "openssh" else (None, f"SIG{name}")
    )  # the program ssh tells no signal
    assert line.alive


def test_a_missing_program_is_exit_127(line: Transport) -> None:
    assert line.run(["no-such-program-at-all"], timeout_s=LIMIT_S).code == 127


def test_input_and_output_of_20_mb_pass_at_the_same_time_unchanged(line: Transport) -> None:
    data = EVERY_BYTE * (20 * 1024 * 1024 // 256) + b"tail without newline"
    result = line.run(["cat"], input=data, timeout_s=LIMIT_S)
    assert result.code == 0
    assert result.stdout == data


def test_both_outputs_of_several_mb_arrive_complete(line: Transport) -> None:
    script = "head -c 6000000 /dev/zero >&2; head -c 7000000 /dev/zero; head -c 1 /dev/zero >&2"
    result = line.run(sh(script), timeout_s=LIMIT_S)
    assert (len(result.stdout), len(result.stderr)) == (7_000_000, 6_000_001)


@pytest.mark.parametrize(
    ("who", "transport"),
    [("server", "ssh"), ("client", "ssh"), ("server", "openssh")],
    indirect=["transport"],
)
def test_keys_are_exchanged_again_in_the_middle_of_a_transfer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    server = rig.serve("LogLevel DEBUG1", *(["RekeyLimit 1M"] if who == "server" else []))
    if who == "client":
        monkeypatch.setattr("paramiko.packet.Packetizer.REKEY_BYTES", 1 << 18)
    data = os.urandom(1 << 20) * 8
    line = rig.connect(server)
    assert line.run(["cat"], input=data, timeout_s=LIMIT_S).stdout == data
    channel = line.popen(["head", "-c", "8000000", "/dev/zero"], timeout_s=LIMIT_S)
    assert len(b"".join(iter(lambda: channel.recv(LIMIT_S), b""))) == 8_000_000
    assert server.log.count("SSH2_MSG_NEWKEYS received") > 5


@of_paramiko
def test_a_server_without_aes_gcm_is_understood_as_well(rig: Rig) -> None:
    line = rig.connect(rig.serve("Ciphers aes128-ctr"))
    data = os.urandom(5_000_000)
    assert line.run(["cat"], input=data, timeout_s=LIMIT_S).stdout == data


def test_input_that_the_command_does_not_want_is_no_error(line: Transport) -> None:
    result = line.run(["true"], input=bytes(8 << 20), timeout_s=LIMIT_S)
    assert result.code == 0


def test_many_commands_run_at_once_on_one_line(line: Transport) -> None:
    for _ in range(30):
        results: dict[int, bytes] = {}

        def one(number: int, results: dict[int, bytes] = results) -> None:
            results[number] = line.run(["echo", str(number)], timeout_s=LIMIT_S).stdout

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
        assert line.run(["true"], input=b"unwanted", timeout_s=LIMIT_S).code == 0
    assert line.alive


def test_a_command_that_takes_too_long_ends_the_wait(line: Transport) -> None:
    with pytest.raises(TransportError, match=r"sleep did not finish within 0\.3 s") as caught:
        line.run(["sleep", "infinity"], timeout_s=0.3)
    assert (caught.value.kind, caught.value.host) == ("node_lost", "lab1")
    assert line.run(["echo", "still here"], timeout_s=LIMIT_S).stdout == b"still here\n"


@of_ssh
def test_no_terminal_and_no_forwarding_is_asked_for(rig: Rig) -> None:
    server = rig.serve("LogLevel DEBUG1")
    line = rig.connect(server)
    assert line.run(["tty"], timeout_s=LIMIT_S).stdout == b"not a tty\n"
    requests = [
        text.split("req ")[-1]
        for text in server.log.splitlines()
        if "session_input_channel_req" in text
    ]
    assert requests == ["exec"]


@of_ssh
def test_words_of_login_scripts_come_back_as_they_are(rig: Rig) -> None:
    server = rig.serve()
    (server.home / ".bashrc").write_text("echo welcome to the lab\n")
    shell = rig.connect(server).run(["sh", "-c", 'basename "$SHELL"'], timeout_s=LIMIT_S).stdout
    if not shell.endswith(b"bash\n"):
        pytest.skip("the account's shell reads no .bashrc over ssh")
    assert shell == b"welcome to the lab\nbash\n"  # the node client's frames tell them apart


def test_a_command_that_cannot_be_said_is_refused_before_it_is_sent(line: Transport) -> None:
    with pytest.raises(ConfigError, match="NUL"):
        line.run(["echo", "a\0b"], timeout_s=5)


@of_ssh
def test_more_sessions_than_the_server_allows_name_the_setting(rig: Rig) -> None:
    line = rig.connect(rig.serve("MaxSessions 2"))
    held = [line.popen(["sleep", "60"], timeout_s=LIMIT_S) for _ in range(2)]
    with pytest.raises(TransportError, match="MaxSessions") as caught:
        line.popen(["true"], timeout_s=LIMIT_S)
    assert caught.value.kind == "host_unreachable"
    held[0].close()
    held[1].close()


@of_ssh
def test_a_free_session_is_used_again_without_a_pause(rig: Rig) -> None:
    line = rig.connect(rig.serve("MaxSessions 2"))
    held = line.popen(["cat"], timeout_s=LIMIT_S)
    for _ in range(40):
        assert line.run(["true"], timeout_s=LIMIT_S).code == 0
    held.close()


@of_ssh
def test_a_line_reports_the_key_that_tells_machines_apart(rig: Rig) -> None:
    one, two = rig.serve(), rig.serve()
    keys = {rig.connect(server).host_key for server in (one, two)}
    assert len(keys) == 1
    assert keys.pop().startswith("SHA256:")

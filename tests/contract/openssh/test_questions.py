"""Questions at the terminal: asked once for all hosts, and refused where nobody can answer."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.transport.openssh.answers import Answers
from orchestrator.transport.openssh.folder import MasterFolder
from tests.contract.bastion import Bastion, needs_pam
from tests.contract.openssh.asking import REACH, eavesdropper, environment, project, with_passwords
from tests.contract.rig import Rig
from tests.contract.sshd import make_key
from tests.support.judge import wait_for
from tests.support.terminal import Terminal


def without_terminal(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Reach the hosts of a project where nobody can be asked."""
    return subprocess.run(
        REACH,
        cwd=folder,
        env=environment(folder) | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )


@needs_pam
def test_a_bastion_asks_for_a_password_and_a_code_once_for_all_hosts(
    rig: Rig, tmp_path: Path
) -> None:
    gate = rig.serve(kind=Bastion)
    hosts = [rig.behind(rig.serve(), gate) for _ in range(3)]
    folder = project(rig, tmp_path / "project", *hosts)
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for(f"(jump host {gate.address}): (me@{gate.address}) Password: ")
        assert not terminal.echoes()
        terminal.press(
            "wrong\x15corrext\x7f\x7f\x7fect horse\r"
        )  # with a line that is cleared, and corrections
        terminal.wait_for("Verification code: ")
        code = gate.code()
        terminal.type(code)
        assert terminal.end() == 0, terminal.text
        assert terminal.echoes()
    assert "Password" not in terminal.text.partition("Verification")[2], terminal.text
    assert gate.password not in terminal.text and code not in terminal.text
    assert "reached all 3 hosts" in terminal.text
    assert gate.log.count("Accepted keyboard-interactive/pam for me") == 1


@needs_pam
def test_a_bastion_that_takes_no_keys_is_asked_by_ssh_though_nobody_named_it(
    rig: Rig, tmp_path: Path
) -> None:
    gate = rig.serve(kind=Bastion)
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), gate), transport="ssh")
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for(
            f"orch: node1: jump host {gate.address}: the host accepts no keys from user me, only keyboard-interactive; "
            "connecting through the program ssh (transport: openssh)\n"
        )
        terminal.wait_for("Password: ")
        terminal.type(gate.password)
        terminal.wait_for("Verification code: ")
        terminal.type(gate.code())
        assert terminal.end() == 0, terminal.text
    assert "reached 1 host" in terminal.text


def test_the_passphrase_of_a_key_is_asked_for_once_for_all_its_hosts(
    rig: Rig, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    hosts = [rig.host(rig.serve(authorized=[key]), key=str(key)) for _ in range(2)]
    folder = project(rig, tmp_path / "project", *hosts, transport="ssh")
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for(f"Enter passphrase for key '{key}': ")
        terminal.type("open sesame")
        assert terminal.end() == 0, terminal.text
    assert terminal.text.count("Enter passphrase") == 1 and "reached all 2 hosts" in terminal.text


@needs_pam
def test_a_wrong_password_is_asked_for_again_and_the_right_one_is_sent_elsewhere_only_at_a_word(
    rig: Rig, tmp_path: Path
) -> None:
    servers = [with_passwords(rig) for _ in range(2)]
    folder = project(rig, tmp_path / "project", *(rig.host(server) for server in servers))
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for("Password: ")
        terminal.type("wrong")
        terminal.wait_for("Password: ")
        terminal.type(Bastion.password)
        terminal.wait_for("Password: (Enter sends the one typed for node")
        # The server writes its log beside the next question.
        wait_for(
            lambda: (
                sum(server.log.count("Accepted keyboard-interactive") for server in servers) == 1
            ),
            10,
            "nobody let in",
        )
        terminal.type("")
        assert terminal.end() == 0, terminal.text
    assert terminal.text.count("Password: ") == 3
    assert (
        sum(server.log.count("Postponed keyboard-interactive for me") for server in servers) == 3
    )  # one more for the error


@needs_pam
def test_a_password_is_not_sent_to_the_next_server_that_asks_for_one(
    rig: Rig, tmp_path: Path
) -> None:
    """The second server asks in the same words, and writes down what it is told."""
    heard = tmp_path / "heard"
    gate, evil = with_passwords(rig), eavesdropper(rig, heard)
    rig.configure("Host *\nNumberOfPasswordPrompts 1")
    folder = project(rig, tmp_path / "project", rig.behind(evil, gate))
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for("Password: ")
        terminal.type(gate.password)
        terminal.wait_for(
            f"orch: node1: (me@{evil.address}) Password: (Enter sends the one typed for node1 (jump host"
        )
        terminal.type("nothing")
        assert terminal.end() == 3, terminal.text
    assert heard.read_text().split() == ["nothing"]


class _End(NamedTuple):
    """The server of a log-in."""

    name: str
    address: str
    known_as: str
    port: int = 22
    user: str = "me"


GATE, NODE, BESIDE = (
    _End("gate", "10.0.0.1", "gate"),
    _End("n1", "10.0.0.2", "10.0.0.2"),
    _End("n1", "10.0.0.2", "x", 2222),
)
OF_A_KEY = "Enter passphrase for key '/k': "


@pytest.mark.parametrize("version", ["OpenSSH_9.2p1 Debian", "OpenSSH_8.0p1"])
@pytest.mark.parametrize(
    ("first", "second", "is_sent"),
    [
        ((GATE, "me@gate's password: "), (GATE, "me@gate's password: "), (True, True)),
        ((GATE, "me@gate's password: "), (NODE, "me@10.0.0.2's password: "), (False, False)),
        ((GATE, "Password: "), (NODE, "Password: "), (False, False)),
        ((GATE, "me@gate's password: "), (NODE, "(me@n1) me@gate's password: "), (False, False)),
        ((NODE, "me@10.0.0.2's password: "), (BESIDE, "me@10.0.0.2's password: "), (False, False)),
        (
            (NODE, "me@gate's password: "),
            (BESIDE, "me@gate's password: "),
            (True, False),
        ),  # both through ssh -W gate
        (
            (GATE, OF_A_KEY),
            (NODE, OF_A_KEY),
            (True, False),
        ),  # before 8.5 the server may have asked this
        ((GATE, OF_A_KEY), (NODE, f"(me@n1) {OF_A_KEY}"), (False, False)),
        ((GATE, "(me@gate) Password: "), (GATE, "(me@gate) Verification code: "), (False, False)),
    ],
)
def test_an_answer_is_used_again_for_the_same_server_or_key_alone(
    version: str,
    first: tuple[_End, str],
    second: tuple[_End, str],
    is_sent: tuple[bool, bool],
    tmp_path: Path,
) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    program.chmod(0o700)
    asked: list[str] = []

    def ask(text: str) -> str:
        asked.append(text)
        return f"answer {len(asked)}"

    folder = MasterFolder()
    answers = Answers(folder)
    with pytest.MonkeyPatch.context() as patch, closing(folder), closing(answers):
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        patch.setattr("orchestrator.transport.terminal.ask", ask)
        for end, prompt in (first, second):
            with answers.login(end.name, end, may_ask=True) as login:  # type: ignore[arg-type]
                done = subprocess.run(
                    [str(folder.helper), prompt],
                    env={**os.environ, **answers.environment(login)},
                    capture_output=True,
                    text=True,
                    check=True,
                )
    is_again = is_sent[version != "OpenSSH_9.2p1 Debian"]
    assert (
        done.stdout == ("answer 1\n" if is_again else "answer 2\n") and len(asked) == 2 - is_again
    )


def test_a_very_long_question_is_shown_in_part_and_answered(
    _sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "orchestrator.transport.terminal.ask", lambda text: asked.append(text) or "yes"
    )
    folder = MasterFolder()
    answers = Answers(folder)
    with closing(folder), closing(answers), answers.login("gate", GATE, may_ask=True) as login:  # type: ignore[arg-type]
        argv = [str(folder.helper), "\x1b[2J" + "word " * 20_000]
        environment = {**os.environ, **answers.environment(login)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "yes\n", "")
    assert asked[0].startswith("orch: gate: ?[2Jword word ") and len(asked[0]) < 400


@needs_pam
def test_without_a_terminal_a_question_is_refused_with_what_to_do(rig: Rig, tmp_path: Path) -> None:
    gate = rig.serve(kind=Bastion)
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), gate))
    done = without_terminal(folder)
    assert done.returncode == 3
    assert (
        f"jump host {gate.address}: the host asks for '(me@{gate.address}) Password', and there is no"
        in done.stderr
    )
    assert "run orch at a terminal" in done.stderr and "Traceback" not in done.stderr


@needs_pam
def test_a_connection_of_the_user_that_does_not_answer_is_named(rig: Rig, tmp_path: Path) -> None:
    gate = rig.serve(kind=Bastion)
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), gate))
    socket = tmp_path / "cm"
    socket.touch()  # what the path of a master that was killed leads to does not answer either
    configuration = Path(rig.host(gate).ssh.config or "")
    configuration.write_text(f"{configuration.read_text()}\nControlPath {socket}\n")
    done = without_terminal(folder)
    assert done.returncode == 3 and f"the connection at {socket} does not answer" in done.stderr, (
        done.stderr
    )


@needs_pam
def test_without_a_terminal_the_users_own_program_is_asked(rig: Rig, tmp_path: Path) -> None:
    gate = rig.serve(kind=Bastion)
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), gate))
    window = tmp_path / "window"
    window.write_text(
        f"#!/bin/sh\ncase $1 in *Password:*) echo '{gate.password}';; *) echo {gate.code()};; esac\n"
    )
    window.chmod(0o700)
    done = without_terminal(folder, SSH_ASKPASS=str(window), DISPLAY=":9")
    assert done.returncode == 0 and "reached 1 host" in done.stdout + done.stderr, done


@needs_pam
def test_a_server_that_did_not_wait_for_the_answer_is_asked_again(rig: Rig, tmp_path: Path) -> None:
    gate = rig.serve("LoginGraceTime 3", kind=Bastion)
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), gate))
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for("Password: ")
        wait_for(lambda: not gate.connections(), 20, "the server waits")
        terminal.type(gate.password)
        terminal.wait_for("Password: ")
        terminal.type(gate.password)
        terminal.wait_for("code: ")
        terminal.type(gate.code())
        assert terminal.end() == 0, terminal.text


@needs_pam
def test_a_jump_host_that_refuses_is_asked_once_for_all_hosts_behind_it(
    rig: Rig, tmp_path: Path
) -> None:
    gate = rig.serve(kind=Bastion)
    hosts = [rig.behind(rig.serve(), gate) for _ in range(3)]
    folder = project(rig, tmp_path / "project", *hosts)
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        for _ in range(3):  # NumberOfPasswordPrompts
            terminal.wait_for("Password: ")
            terminal.type("wrong")
            terminal.wait_for("code: ")
            terminal.type(gate.code())
        assert terminal.end() == 3, terminal.text
        assert terminal.text.count("Password: ") == 3, terminal.text
        assert (
            f"orch: node[1-3]: jump host {gate.address}: the host refused user" in terminal.text
        ), terminal.text


@needs_pam
def test_an_interrupt_at_a_question_ends_a_bench_without_the_next_one(
    rig: Rig, tmp_path: Path
) -> None:
    gates = [rig.serve(kind=Bastion) for _ in range(2)]
    folder = project(rig, tmp_path / "project", *(rig.behind(rig.serve(), gate) for gate in gates))
    argv = [
        sys.executable,
        "-m",
        "orchestrator",
        "bench",
        "resnet50",
        "-f",
        "simulated",
        "--nodes",
        "2",
        "--no-baseline",
    ]
    terminal = Terminal(argv, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for("Password: ")
        terminal.press("\x03")
        assert terminal.end() == 130, terminal.text
        assert terminal.text.count("Password: ") == 1 and "Traceback" not in terminal.text, (
            terminal.text
        )


@needs_pam
def test_an_interrupt_at_the_question_ends_the_command_and_gives_the_terminal_back(
    rig: Rig, tmp_path: Path
) -> None:
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), rig.serve(kind=Bastion)))
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for("Password: ")
        terminal.press("\x03")
        assert terminal.end() != 0
        assert terminal.echoes() and "Traceback" not in terminal.text, terminal.text

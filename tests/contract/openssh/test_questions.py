"""Questions at the terminal: asked once for all hosts, and refused where nobody can answer."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from orchestrator.inventory.hosts import Host
from tests.contract.bastion import Bastion, needs_pam
from tests.contract.rig import Rig
from tests.contract.sshd import make_key
from tests.support.judge import wait_for
from tests.support.terminal import Terminal

REPOSITORY = Path(__file__).parents[3]


def project(rig: Rig, folder: Path, *hosts: Host, transport: str = "openssh") -> Path:
    """Write a project with an inventory of these hosts."""
    (folder / "inventory").mkdir(parents=True)
    lines = ["schema: 1", "defaults:", "  gpus: 0", f"  transport: {transport}", "hosts:"]
    for number, host in enumerate(hosts, 1):
        settings = {name: getattr(host.ssh, name) for name in ("user", "port", "key", "jump", "config")}
        ssh = ", ".join(f"{name}: {value if name == 'port' else repr(value)}" for name, value in settings.items() if value)
        lines.append(f"  node{number}: {{address: {host.address}, ssh: {{{ssh}}}, vars: {{workdir: {folder}/work{number}}}}}")
    (folder / "inventory" / "cluster.yaml").write_text("\n".join(lines) + "\n")
    return folder


def environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_RUNTIME_DIR") if name in os.environ}
    return kept | {"ORCH_PROJECT": str(folder), "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", "TERM": "dumb"}


REACH = [sys.executable, "-m", "orchestrator", "check", "--only", "reach"]


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
def test_a_bastion_asks_for_a_password_and_a_code_once_for_all_hosts(rig: Rig, tmp_path: Path) -> None:
    gate = rig.serve(kind=Bastion)
    hosts = [rig.behind(rig.serve(), gate) for _ in range(3)]
    folder = project(rig, tmp_path / "project", *hosts)
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for(f"(jump host {gate.address}): (me@{gate.address}) Password: ")
        assert not terminal.echoes()
        terminal.press("wrong\x15corrext\x7f\x7f\x7fect horse\r")  # with a line that is cleared, and corrections
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
def test_a_bastion_that_takes_no_keys_is_asked_by_ssh_though_nobody_named_it(rig: Rig, tmp_path: Path) -> None:
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


def test_the_passphrase_of_a_key_is_asked_for_once_for_all_its_hosts(rig: Rig, tmp_path: Path) -> None:
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
def test_a_wrong_password_is_asked_for_again_and_then_answers_for_the_next_host(rig: Rig, tmp_path: Path) -> None:
    servers = [rig.serve(kind=Bastion) for _ in range(2)]
    for server in servers:  # the password alone
        pam = server.directory / "etc" / "pam"
        pam.write_text("".join(line for line in pam.read_text().splitlines(keepends=True) if "google" not in line))
    folder = project(rig, tmp_path / "project", *(rig.host(server) for server in servers))
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for("Password: ")
        terminal.type("wrong")
        terminal.wait_for("Password: ")
        terminal.type(Bastion.password)
        assert terminal.end() == 0, terminal.text
    assert terminal.text.count("Password: ") == 2
    assert sum(server.log.count("Postponed keyboard-interactive for me") for server in servers) == 3  # one more for the error


@needs_pam
def test_without_a_terminal_a_question_is_refused_with_what_to_do(rig: Rig, tmp_path: Path) -> None:
    gate = rig.serve(kind=Bastion)
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), gate))
    done = without_terminal(folder)
    assert done.returncode == 3
    assert f"jump host {gate.address}: the host asks for '(me@{gate.address}) Password', and there is no" in done.stderr
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
    assert done.returncode == 3 and f"the connection at {socket} does not answer" in done.stderr, done.stderr


@needs_pam
def test_without_a_terminal_the_users_own_program_is_asked(rig: Rig, tmp_path: Path) -> None:
    gate = rig.serve(kind=Bastion)
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), gate))
    window = tmp_path / "window"
    window.write_text(f"#!/bin/sh\ncase $1 in *Password:*) echo '{gate.password}';; *) echo {gate.code()};; esac\n")
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
def test_a_jump_host_that_refuses_is_asked_once_for_all_hosts_behind_it(rig: Rig, tmp_path: Path) -> None:
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
        assert f"orch: node[1-3]: jump host {gate.address}: the host refused user" in terminal.text, terminal.text


@needs_pam
def test_an_interrupt_at_a_question_ends_a_bench_without_the_next_one(rig: Rig, tmp_path: Path) -> None:
    gates = [rig.serve(kind=Bastion) for _ in range(2)]
    folder = project(rig, tmp_path / "project", *(rig.behind(rig.serve(), gate) for gate in gates))
    argv = [sys.executable, "-m", "orchestrator", "bench", "resnet50", "-f", "simulated", "--nodes", "2", "--no-baseline"]
    terminal = Terminal(argv, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for("Password: ")
        terminal.press("\x03")
        assert terminal.end() == 130, terminal.text
        assert terminal.text.count("Password: ") == 1 and "Traceback" not in terminal.text, terminal.text


@needs_pam
def test_an_interrupt_at_the_question_ends_the_command_and_gives_the_terminal_back(rig: Rig, tmp_path: Path) -> None:
    folder = project(rig, tmp_path / "project", rig.behind(rig.serve(), rig.serve(kind=Bastion)))
    terminal = Terminal(REACH, folder, environment(folder))
    with closing(terminal):
        terminal.wait_for("Password: ")
        terminal.press("\x03")
        assert terminal.end() != 0
        assert terminal.echoes() and "Traceback" not in terminal.text, terminal.text

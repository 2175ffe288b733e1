"""The transport openssh alone: its masters, the errors of ssh in orch's kinds, and questions at the terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import TransportError
from orchestrator.inventory.hosts import Host
from orchestrator.procs import cmdline, snapshot
from orchestrator.transport.connections import Connections
from tests.contract.bastion import Bastion, needs_pam
from tests.contract.rig import Rig
from tests.contract.sshd import Sshd, free_port, make_key
from tests.support.judge import wait_for
from tests.support.terminal import Terminal

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def transport() -> str:
    """The transport of every host here."""
    return "openssh"


@pytest.fixture(autouse=True)
def _sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders of masters in a place of the test's own, in which nothing may be left."""
    place = Path(f"/tmp/kx-{os.getpid()}-{len(str(tmp_path))}")
    place.mkdir(exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    yield place
    wait_for(lambda: not left(place), 5, "masters or their folders are left")
    place.rmdir()


def left(place: Path) -> list[str]:
    """Folders of masters, and processes that have one on their command line."""
    processes = [str(pid) for pid in snapshot() if f"{place}/".encode() in cmdline(pid)]
    return [*map(str, place.iterdir()), *processes]


def refused(rig: Rig, host: Host, *, accept_new: bool = False) -> TransportError:
    with pytest.raises(TransportError) as caught, closing(Connections(rig.trust(accept_new=accept_new))) as connections:
        connections.connect(host)
    assert caught.value.host == host.name
    return caught.value


def test_masters_end_with_the_command_and_leave_nothing(
    rig: Rig, no_leak: Callable[[], tuple[int, int]], _sockets: Path
) -> None:
    server = rig.serve()
    before = no_leak()
    connections = Connections(rig.trust())
    for _ in range(3):
        line = connections.connect(rig.host(server))
        assert line.run(["true"], timeout_s=10).code == 0
        line.popen(["sleep", "60"], timeout_s=10)
        line.close()
        assert not line.alive
    assert len(left(_sockets)) == 2  # the folder and its watcher
    connections.close()
    connections.close()
    server.stop()
    wait_for(lambda: no_leak() <= before, 5, "threads or files are left")


def test_a_controller_that_is_killed_leaves_no_master(rig: Rig, _sockets: Path) -> None:
    jump, server = rig.serve(), rig.serve()
    host = rig.behind(server, jump)
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom orchestrator.inventory.hosts import Host, SshSettings\n"
        "from orchestrator.transport import Trust\nfrom orchestrator.transport.connections import Connections\n"
        "ssh = SshSettings(port=int(sys.argv[2]), key=sys.argv[3], config=sys.argv[4], jump=sys.argv[5])\n"
        "line = Connections(Trust(Path(sys.argv[6]))).connect(Host('lab1', sys.argv[1], ssh=ssh, transport='openssh'))\n"
        "channel = line.popen(['sleep', '60'], timeout_s=10)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    words = [server.address, str(server.port), host.ssh.key, host.ssh.config, host.ssh.jump, str(rig.store)]
    argv = [sys.executable, "-c", program, *map(str, words)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=REPOSITORY) as controller:
        assert controller.stdout and controller.stdout.readline() == b"up\n"
        assert len(left(_sockets)) >= 5  # the folder, its watcher, two masters, a command
        controller.kill()
    wait_for(lambda: not left(_sockets), 5, "masters are left")
    wait_for(lambda: not server.connections() and not jump.connections(), 5, "connections are left")


def test_a_log_in_that_goes_on_when_the_command_ends_is_ended_too(rig: Rig, _sockets: Path) -> None:
    server = rig.serve()
    errors: list[TransportError] = []
    connections = Connections(rig.trust())

    def connect() -> None:
        with pytest.raises(TransportError) as caught:
            connections.connect(rig.host(server, connect_timeout_s=60.0))
        errors.append(caught.value)

    os.kill(server.pid, signal.SIGSTOP)
    try:
        thread = threading.Thread(target=connect)
        thread.start()
        wait_for(lambda: len(left(_sockets)) == 3, 10, "it does not begin")  # the folder, its watcher, a master
        connections.close()
        thread.join(10)
        assert errors and not left(_sockets)
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_live_connection_of_the_user_is_used_and_stays(rig: Rig, tmp_path: Path) -> None:
    server = rig.serve("AuthenticationMethods publickey")
    path = tmp_path / "cm"
    rig.configure(f"Host {server.address}\nControlPath {path}-%p\nUser {server.user}\nPort {server.port}")
    options = ["-F", str(rig.config), "-i", str(rig.keys.client), "-S", f"{path}-{server.port}"]
    with subprocess.Popen(["ssh", *options, "-M", "-N", server.address], stdin=subprocess.DEVNULL) as master:
        wait_for(lambda: Path(f"{path}-{server.port}").exists(), 10, "the user's master does not start")
        stranger = rig.host(server, key=str(rig.keys.stranger))  # which would let nobody in
        line = rig.connect(stranger)
        assert line.run(["echo", "through"], timeout_s=10).stdout == b"through\n"
        assert line.host_key == "" and server.log.count("Accepted publickey") == 1
        line.popen(["sleep", "60"], timeout_s=10)
        line.close()
        assert master.poll() is None
        assert not line.alive
        master.terminate()


def test_hosts_behind_one_jump_host_share_its_log_in(rig: Rig) -> None:
    jump = rig.serve()
    servers = [rig.serve() for _ in range(3)]
    lines = [rig.connect(rig.behind(server, jump)) for server in servers[:1]]
    with closing(Connections(rig.trust())) as connections:
        hosts = [rig.behind(server, jump) for server in servers]
        threads = [threading.Thread(target=lambda host=host: lines.append(connections.connect(host))) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert jump.log.count("Accepted publickey") == 2  # of two commands
        assert lines[-1].via == f"jump host {jump.address}" and not lines[-1].greets(lambda: True)
        for line in lines[1:]:
            line.close()
        assert lines[0].run(["true"], timeout_s=10).code == 0


def test_the_host_key_of_a_server_is_told(rig: Rig) -> None:
    one, other = rig.serve(), rig.serve(host_keys=[make_key(rig.directory / "other")])
    keys = [rig.connect(server).host_key for server in (one, other)]
    shown = [
        subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True, check=True).stdout.split()[1]
        for key in (rig.keys.server, rig.directory / "other")
    ]
    assert keys == shown


def test_an_unknown_key_is_refused_and_accept_new_stores_it_for_the_project_alone(rig: Rig) -> None:
    server = rig.serve(known=False)
    error = refused(rig, rig.host(server))
    assert error.kind == "host_key_unknown" and re.search(r"ssh-ed25519 SHA256:\S{43}", str(error))
    assert "--accept-new" in error.hint
    rig.connect(rig.host(server), accept_new=True)
    assert rig.known_hosts.read_text() == "" and rig.store.read_text() == server.known_hosts_lines()
    rig.connect(rig.host(server))


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_key_is_refused_with_the_place_of_the_old_one(rig: Rig, accept_new: bool) -> None:
    server = rig.serve()
    server.stop()
    server.host_keys = [make_key(rig.directory / "new")]
    server.start()
    error = refused(rig, rig.host(server), accept_new=accept_new)
    assert error.kind == "host_key_changed" and f"{rig.known_hosts}:1 has another ED25519 key" in error.message
    assert "may be an attack" in error.hint


def test_a_revoked_key_is_refused(rig: Rig) -> None:
    server = rig.serve()
    rig.known_hosts.write_text("@revoked * " + server.known_hosts_lines().split(" ", 1)[1] + server.known_hosts_lines())
    assert refused(rig, rig.host(server)).kind == "host_key_revoked"


def test_each_cause_has_its_kind_and_words(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server, shut, weak = rig.serve(), rig.serve("AllowTcpForwarding no"), rig.serve("KexAlgorithms diffie-hellman-group1-sha1")
    closed = rig.host(server, port=free_port(server.address))
    nowhere = Host("lab1", "no-such-host.invalid", ssh=rig.host(server).ssh, transport="openssh")
    stranger = rig.host(server, key=str(rig.keys.stranger))
    down = Sshd(rig.directory / "down", "127.0.0.77", port=free_port("127.0.0.77"))
    cases = [
        (closed, "host_unreachable", f"connection refused on port {closed.ssh.port}"),
        (nowhere, "host_unreachable", "does not resolve"),
        (
            stranger,
            "auth_failed",
            f"refused user {server.user}; it accepts publickey; offered keys: {rig.keys.stranger} SHA256:",
        ),
        (rig.host(weak), "algorithm_refused", "no key exchange method in common: the host offers diffie-hellman-group1-sha1"),
        (
            rig.behind(server, shut),
            "host_unreachable",
            f"jump host {shut.address} refuses to forward connections to port {server.port}",
        ),
        (
            rig.behind(down, server),
            "host_unreachable",
            f"jump host {server.address} cannot reach it on port {down.port} (connect failed: Connection refused)",
        ),
        (rig.behind(server, down), "host_unreachable", "connection refused"),
    ]
    for host, kind, words in cases:
        error = refused(rig, host)
        assert (error.kind, words in error.message) == (kind, True), (str(error), words)
    assert "jump host 127.0.0.77" in str(refused(rig, cases[-1][0]))


def test_sixteen_connections_get_past_max_startups(rig: Rig) -> None:
    server = rig.serve("MaxStartups 2:100:2")
    lines: list[bool] = []

    def connect() -> None:
        lines.append(rig.connect(rig.host(server, connect_timeout_s=60.0)).alive)

    threads = [threading.Thread(target=connect) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines == [True] * 8


def test_a_silent_listener_is_given_up_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server = rig.serve()
    for process in (server.pid,):
        os.kill(process, signal.SIGSTOP)
    try:
        started = time.monotonic()
        error = refused(rig, rig.host(server, connect_timeout_s=1.0))
        assert error.kind == "host_unreachable" and time.monotonic() - started < 5, str(error)
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_host_that_accepts_new_keys_is_not_answered_with_the_refusal_of_one_that_does_not(rig: Rig) -> None:
    jump = rig.serve(known=False)
    strict, trusting = (rig.behind(rig.serve(known=False), jump) for _ in range(2))
    trusting = replace(trusting, name="lab2", ssh=replace(trusting.ssh, host_keys="accept-new"))
    with closing(Connections(rig.trust())) as connections:
        with pytest.raises(TransportError) as caught:
            connections.connect(strict)
        assert caught.value.kind == "host_key_unknown" and jump.log.count("Accepted publickey") == 0
        assert connections.connect(trusting).run(["true"], timeout_s=10).code == 0


# Host certificates


def certified(rig: Rig, name: str, *options: str, known: str = "*") -> Sshd:
    """Start a server with a host certificate for ``name``; its authority is known for ``known``, and its key is not."""
    authority, key = (make_key(rig.directory / f"{word}-{name}") for word in ("authority", "host"))
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-h", "-n", name, *options, f"{key}.pub"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    line = " ".join(Path(f"{authority}.pub").read_text().split()[:2])
    rig.known_hosts.write_text(f"@cert-authority {known} {line}\n")
    return rig.serve(f"HostCertificate {key}-cert.pub", host_keys=[key], known=False)


@pytest.mark.parametrize("named", ["openssh", "ssh"])
def test_a_host_certificate_is_verified_by_ssh_whichever_transport_is_named(
    rig: Rig, caplog: pytest.LogCaptureFixture, named: str
) -> None:
    server = certified(rig, "127.0.0.2")
    host = replace(rig.host(server), transport=named)
    with closing(Connections(rig.trust())) as connections:
        line = connections.prepare(host)()
        assert line.run(["echo", "certified"], timeout_s=10).stdout == b"certified\n"
        line.close()
        connections.connect(host).close()
    assert not rig.store.exists() and len(rig.known_hosts.read_text().splitlines()) == 1
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    words = "a certificate authority vouches for it, which paramiko cannot verify; connecting through the program ssh"
    assert [words in message for message in said] == ([True] if named == "ssh" else [])


@pytest.mark.parametrize(
    ("name", "options", "known"),
    [("127.0.0.3", (), "*"), ("127.0.0.2", ("-V", "20200101:20200102"), "*"), ("127.0.0.2", (), "127.0.0.9")],
    ids=["of another host", "expired", "of an authority for other hosts"],
)
def test_a_certificate_that_does_not_hold_is_refused(rig: Rig, name: str, options: tuple[str, ...], known: str) -> None:
    server = certified(rig, name, *options, known=known)
    error = refused(rig, replace(rig.host(server), transport="ssh"))
    assert error.kind == "host_key_unknown", str(error)
    assert "Accepted" not in server.log and "\\x" not in str(error)
    # Of an authority for other hosts, paramiko, which asks for no certificate, sees a key that is as unknown as any.
    advice = f"have its authority ({rig.known_hosts}:1) sign the host key" if known == "*" else "accept it with"
    assert advice in error.hint, str(error)


@pytest.mark.parametrize("known", ["*", "127.0.0.9"], ids=["another authority", "an authority for other hosts"])
def test_the_authority_of_a_certificate_is_named_if_it_is_not_known(rig: Rig, known: str) -> None:
    server = certified(rig, "127.0.0.2", known=known)
    if known == "*":
        stranger = Path(f"{rig.keys.stranger}.pub").read_text().split()
        rig.known_hosts.write_text(f"@cert-authority * {stranger[0]} {stranger[1]}\n")
    error = refused(rig, rig.host(server))
    assert f"its certificate is signed by {fingerprint(rig, '127.0.0.2')}, which no known-hosts file" in error.message, str(
        error
    )
    assert "@cert-authority" in error.hint and "accept it with" not in error.hint


def fingerprint(rig: Rig, name: str) -> str:
    """Type and fingerprint of the authority of a certificate for ``name``, as ssh prints them."""
    key = rig.directory / f"authority-{name}.pub"
    return (
        "ssh-ed25519 "
        + subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True).stdout.split()[1]
    )


# The transport that a host takes by itself


def test_a_server_that_takes_no_keys_is_reached_by_ssh_and_that_is_said_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [rig.serve("AuthenticationMethods hostbased", "HostbasedAuthentication yes") for _ in range(2)]
    with closing(Connections(rig.trust())) as connections:
        for server in servers:
            with pytest.raises(TransportError) as caught:
                connections.connect(replace(rig.host(server), transport="ssh"))
            assert caught.value.kind == "auth_failed" and "it accepts hostbased" in caught.value.message
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        f"lab1: the host accepts no keys from user {servers[0].user}, only hostbased; connecting through the program ssh "
        "(transport: openssh)"
    ]


def test_without_the_program_ssh_the_cause_is_the_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server = rig.serve("AuthenticationMethods hostbased", "HostbasedAuthentication yes")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    error = refused(rig, replace(rig.host(server), transport="ssh"))
    assert "accepts no keys" in error.message and error.hint == "allow PubkeyAuthentication in its sshd_config"


def test_each_step_of_a_log_in_is_told_to_whoever_debugs_it(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    jump, server = rig.serve(), rig.serve()
    key = subprocess.run(
        ["ssh-keygen", "-lf", f"{rig.keys.server}.pub"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    for transport in ("ssh", "openssh"):
        caplog.clear()
        with caplog.at_level("DEBUG", "orchestrator.transport"), closing(Connections(rig.trust())) as connections:
            connections.connect(replace(rig.behind(server, jump), transport=transport)).close()
        told = [record.getMessage() for record in caplog.records]
        for where in (f"lab1 (jump host {jump.address}): ", "lab1: "):
            steps = "\n".join(line.removeprefix(where) for line in told if line.startswith(where))
            assert re.search(rf" port {jump.port if 'jump' in where else server.port}", steps), steps
            assert key in steps and re.search(rf"{rig.known_hosts}:\d", steps), steps
            assert re.search(rf"offering .*{rig.keys.client}", steps, re.IGNORECASE), steps
            assert re.search("logged in as|Entering interactive session", steps), steps
    assert "PRIVATE" not in caplog.text


# Questions at the terminal


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
    assert "reached all 1 hosts" in terminal.text


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
    assert done.returncode == 0 and "reached all 1 hosts" in done.stdout + done.stderr, done


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

"""The masters of the transport openssh: shared by connections, and gone when the command is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import TransportError
from orchestrator.transport.connections import Connections
from orchestrator.transport.openssh.folder import MasterFolder
from tests.contract.openssh.connecting import left
from tests.contract.rig import Rig
from tests.contract.sshd import Sshd
from tests.support.judge import LIMIT_S, wait_for

REPOSITORY = Path(__file__).parents[3]


def test_masters_end_with_the_command_and_leave_nothing(
    rig: Rig, no_leak: Callable[[], tuple[int, int]], _sockets: Path
) -> None:
    server = rig.serve()
    before = no_leak()
    connections = Connections(rig.trust())
    for _ in range(3):
        line = connections.connect(rig.host(server))
        assert line.run(["true"], timeout_s=LIMIT_S).code == 0
        line.popen(["sleep", "60"], timeout_s=LIMIT_S)
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
        "channel = line.popen(['sleep', '60'], timeout_s=600)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    words = [
        server.address,
        str(server.port),
        host.ssh.key,
        host.ssh.config,
        host.ssh.jump,
        str(rig.store),
    ]
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
        wait_for(
            lambda: len(left(_sockets)) == 3, 10, "it does not begin"
        )  # the folder, its watcher, a master
        connections.close()
        thread.join(LIMIT_S)
        assert errors and not left(_sockets)
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_live_connection_of_the_user_is_used_and_stays(rig: Rig, tmp_path: Path) -> None:
    server = rig.serve("AuthenticationMethods publickey")
    path = tmp_path / "cm"
    rig.configure(
        f"Host {server.address}\nControlPath {path}-%p\nUser {server.user}\nPort {server.port}"
    )
    options = ["-F", str(rig.config), "-i", str(rig.keys.client), "-S", f"{path}-{server.port}"]
    with subprocess.Popen(
        ["ssh", *options, "-M", "-N", server.address], stdin=subprocess.DEVNULL
    ) as master:
        wait_for(
            lambda: Path(f"{path}-{server.port}").exists(), 10, "the user's master does not start"
        )
        stranger = rig.host(server, key=str(rig.keys.stranger))  # which would let nobody in
        line = rig.connect(stranger)
        assert line.run(["echo", "through"], timeout_s=LIMIT_S).stdout == b"through\n"
        assert line.host_key == "" and server.log.count("Accepted publickey") == 1
        line.popen(["sleep", "60"], timeout_s=LIMIT_S)
        line.close()
        assert master.poll() is None
        assert not line.alive
        master.terminate()


def users_master(rig: Rig, server: Sshd, path: Path) -> subprocess.Popen[bytes]:
    """Start a master as a user does, and return it once it listens at a path."""
    options = [
        "-F",
        str(rig.config),
        "-i",
        str(rig.keys.client),
        "-p",
        str(server.port),
        "-S",
        str(path),
    ]
    master = subprocess.Popen(
        ["ssh", *options, "-M", "-N", server.address], stdin=subprocess.DEVNULL
    )
    wait_for(path.exists, 60, "the user's master does not start")
    return master


@pytest.mark.parametrize(
    "kind",
    [
        "a link",
        "a link in a folder of all",
        "a socket in a folder of all",
        "a renamed folder",
        "a renamed link",
    ],
)
def test_a_connection_that_another_user_may_have_put_there_is_not_used(
    rig: Rig, tmp_path: Path, kind: str
) -> None:
    """Each is a live master of this user, of another server."""
    right, wrong = rig.serve(), rig.serve()
    place, own = tmp_path / "place", tmp_path / "own"
    for folder in (place, own):
        folder.mkdir(mode=0o700)
    path, mode = place / "cm", 0o1777
    if kind == "a renamed folder":
        (place / "inner").mkdir(mode=0o700)
        path, mode = place / "inner" / "cm", 0o777
    if kind == "a renamed link":  # no part of the given path, nor of what it resolves to
        (place / "link").symlink_to(own)
        (own / "way").symlink_to(place / "link")
        path, mode = own / "way" / "cm", 0o777
    is_link = kind.startswith("a link")
    with users_master(rig, wrong, own / "cm" if is_link else path) as master:
        try:
            if is_link:
                path.symlink_to(own / "cm")
            if kind != "a link":
                place.chmod(mode)
            rig.configure(f"Host {right.address}\nControlPath {path}")
            line = rig.connect(right)
            home = line.run(["sh", "-c", "echo $HOME"], timeout_s=60).stdout.decode().strip()
            assert home == str(right.home) and master.poll() is None
        finally:
            master.terminate()


def test_processes_that_name_the_folder_of_a_killed_command_are_left_alone(
    rig: Rig, _sockets: Path
) -> None:
    """Also one that has the number of a master that has ended, which the folder's watcher was told
    of.
    """
    folder = MasterFolder()
    process = [sys.executable, "-c", "import time; time.sleep(1000)"]
    innocents = [
        subprocess.Popen([*process, f"{folder.path}/log"]),
        subprocess.Popen(
            [*process, f"{folder.path}-of-somebody"], env={"ORCH_ASKPASS": f"{folder.path}/ask"}
        ),
    ]
    other = subprocess.Popen(process)
    with subprocess.Popen(process) as master:
        folder.watch(master.pid)
        handle = folder._watcher.stdin
        assert handle
        os.write(handle.fileno(), f"{other.pid}:1\n{os.getpid()}:0\nx:y\n".encode())
        handle.close()  # as the kernel does for a command that was killed
        assert master.wait(LIMIT_S) == -signal.SIGTERM
    folder._watcher.wait(LIMIT_S)
    assert not folder.path.exists()
    for innocent in (*innocents, other):
        assert innocent.poll() is None
        innocent.kill()
        innocent.wait()


def test_hosts_behind_one_jump_host_share_its_log_in(rig: Rig) -> None:
    jump = rig.serve()
    servers = [rig.serve() for _ in range(3)]
    lines = [rig.connect(rig.behind(server, jump)) for server in servers[:1]]
    with closing(Connections(rig.trust())) as connections:
        hosts = [rig.behind(server, jump) for server in servers]
        threads = [
            threading.Thread(target=lambda host=host: lines.append(connections.connect(host)))
            for host in hosts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert jump.log.count("Accepted publickey") == 2  # of two commands
        assert lines[-1].via == f"jump host {jump.address}" and not lines[-1].greets(lambda: True)
        for line in lines[1:]:
            line.close()
        assert lines[0].run(["true"], timeout_s=LIMIT_S).code == 0


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

"""Finding a host: what is said when it cannot be reached, and the limits of servers."""

from __future__ import annotations

import errno
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import OrchError, TransportError
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport.ssh import Transport, connect
from orchestrator.transport.ssh import config as sshconfig
from orchestrator.transport.ssh.config import resolve
from orchestrator.transport.ssh.dial import _unreachable
from tests.contract.reaching import hanging_up, listener, unreachable
from tests.contract.rig import Rig
from tests.support.judge import LIMIT_S
from tests.support.ports import free_port


def test_a_shut_port_is_refused_at_once(rig: Rig) -> None:
    port = free_port("127.0.0.1")
    text = unreachable(rig, "127.0.0.1", port)
    assert f"connection refused on port {port}" in text


def test_a_silent_listener_is_given_up_in_time(rig: Rig) -> None:
    def silence(connection: socket.socket) -> None:
        while connection.recv(1000):
            pass

    with listener(silence) as port:
        text = unreachable(rig, "127.0.0.1", port, connect_timeout_s=1.0)
    assert "connected, but no SSH banner came within 1 s" in text


def test_an_unreachable_host_is_given_up_after_10_seconds_by_default(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = unreachable(rig, "127.0.0.1", server.getsockname()[1])
    assert "no SSH banner came within 10 s" in text


def test_a_host_that_drops_packets_is_given_up_in_time(rig: Rig) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:  # a full queue takes no further connection
            client.setblocking(False)
            assert client.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
        text = unreachable(rig, "127.0.0.1", port, connect_timeout_s=1.0)
        for client in waiting:
            client.close()
    assert f"no answer on port {port} within 1 s" in text


def test_a_name_that_does_not_resolve_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    text = unreachable(rig, "nowhere.invalid", 22)
    assert "the name nowhere.invalid does not resolve (Name or service not known)" in text


def test_a_resolver_that_hangs_is_given_up_in_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(*_: Any, flags: int = 0, **__: Any) -> Any:
        if not flags:
            release.wait(LIMIT_S)
        raise socket.gaierror(socket.EAI_NONAME, "not a number")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    text = unreachable(rig, "nowhere.invalid", 22, connect_timeout_s=1.0)
    release.set()
    assert "did not resolve within 1 s" in text


def test_a_name_that_cannot_even_be_asked_for_is_named(rig: Rig) -> None:
    text = unreachable(rig, "a" * 70 + ".invalid", 22)
    assert "does not resolve" in text


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EHOSTUNREACH, "no route to the host"),
        (errno.ENETUNREACH, "no route to its network"),
        (errno.ECONNRESET, "connection reset on port 22"),
        (errno.ETIMEDOUT, "no answer on port 22 within 10 s"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_each_cause_of_the_kernel_has_words_of_its_own(rig: Rig, number: int, words: str) -> None:
    endpoint = resolve(Host("lab1", "127.0.0.1", ssh=SshSettings(config=str(rig.config))))
    assert words in str(_unreachable(endpoint, OSError(number, "Permission denied")))


def test_what_is_not_an_ssh_server_is_quoted_without_control_characters(rig: Rig) -> None:
    def web(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 \x1b[31mBad Request\r\n\r\n")

    with listener(web) as port:
        text = unreachable(rig, "127.0.0.1", port)
    assert "is not an SSH server" in text
    assert "HTTP/1.1 400" in text
    assert "\x1b" not in text


def test_a_server_that_hangs_up_is_asked_again_until_it_does_not(rig: Rig) -> None:
    server = rig.serve()
    with hanging_up(3, (server.address, server.port)) as (port, calls):
        rig.known_hosts.write_text(
            server.known_hosts_lines().replace(f"[127.0.0.2]:{server.port}", f"[127.0.0.1]:{port}")
        )
        host = Host("lab1", "127.0.0.1", ssh=rig.host(server, port=port).ssh)
        line = connect(host, rig.trust())
        assert line.run(["true"], timeout_s=LIMIT_S).code == 0
        line.close()
    assert len(calls) >= 4


@pytest.mark.parametrize("silent", [False, True], ids=["always", "then silent"])
def test_a_server_that_hangs_up_is_given_up_in_time(rig: Rig, silent: bool) -> None:
    calls, over = count(), threading.Event()

    def hang_up(_: socket.socket) -> None:
        if silent and next(calls):
            over.wait(LIMIT_S)

    with listener(hang_up) as port:
        text = unreachable(rig, "127.0.0.1", port, connect_timeout_s=3)
        over.set()
    assert "closed the connection before the SSH banner" in text
    assert "MaxStartups" in text


def test_200_failed_connections_leave_no_thread_and_no_socket(
    rig: Rig, no_leak: Callable[[], tuple[int, int]]
) -> None:
    unknown = rig.serve(known=False)
    host = rig.host(unknown)
    shut = Host(
        "lab2",
        "127.0.0.1",
        ssh=SshSettings(port=free_port("127.0.0.1"), key=host.ssh.key, config=host.ssh.config),
    )
    before = no_leak()
    for _ in range(100):
        for target in (host, shut):
            with pytest.raises(TransportError):
                connect(target, rig.trust())
    assert no_leak() <= before


def test_failures_print_nothing(rig: Rig) -> None:
    server = rig.serve("Ciphers aes128-cbc")
    program = (
        "import sys\nfrom pathlib import Path\nfrom orchestrator.inventory.hosts import Host, SshSettings\n"
        "from orchestrator.transport import Trust\nfrom orchestrator.transport.ssh import connect\n"
        "ssh = SshSettings(port=int(sys.argv[1]), key=sys.argv[2], config=sys.argv[3])\n"
        "try:\n    connect(Host('lab1', '127.0.0.2', ssh=ssh), Trust(Path(sys.argv[4])))\n"
        "except Exception as error:\n    print(error.kind)\n"
    )
    command = [
        sys.executable,
        "-c",
        program,
        str(server.port),
        str(rig.keys.client),
        str(rig.config),
        str(rig.store),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("algorithm_refused\n", "")


def test_paramikos_words_go_to_logging(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "paramiko"):
        rig.connect(rig.serve()).close()
    assert any(record.name == "paramiko.transport" for record in caplog.records)


@pytest.mark.parametrize("route", ["direct", "jump"])
def test_sixteen_connections_get_past_max_startups(rig: Rig, route: str) -> None:
    busy = rig.serve("MaxStartups 2:50:4")
    host = rig.host(busy) if route == "direct" else rig.behind(rig.serve(), busy)
    lines: list[Transport] = []
    failed: list[OrchError] = []

    def go() -> None:
        try:
            lines.append(connect(host, rig.trust()))
        except OrchError as error:
            failed.append(error)

    threads = [threading.Thread(target=go) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = [line.run(["true"], timeout_s=LIMIT_S).code for line in lines]
    for line in lines:
        line.close()
    assert not failed
    assert codes == [0] * 16


def test_no_other_module_makes_connections() -> None:
    package = Path(sshconfig.__file__).parents[2]
    users = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.strip().startswith(("import ", "from "))
        and {"fabric", "paramiko"} & set(line.replace(".", " ").split())
    }
    assert users == {"transport"}

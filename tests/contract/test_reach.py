"""Finding a host: what is said when it cannot be reached, jump hosts, server limits, and the user's ssh configuration."""

from __future__ import annotations

import errno
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import yamlfile
from orchestrator.errors import ConfigError, OrchError, TransportError
from orchestrator.inventory.formats import parse_text
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport.ssh import Transport, connect
from orchestrator.transport.ssh import config as sshconfig
from orchestrator.transport.ssh.config import Endpoint, resolve
from orchestrator.transport.ssh.dial import _unreachable
from tests.contract.rig import Rig
from tests.contract.sshd import Sshd, free_port


def unreachable(rig: Rig, address: str, port: int, *, connect_timeout_s: float = 10.0) -> tuple[str, float]:
    """Connect, expect that nobody is there, and return what is said and the seconds it took."""
    key = str(rig.keys.client)
    ssh = SshSettings(port=port, key=key, config=str(rig.config), connect_timeout_s=connect_timeout_s)
    started = time.monotonic()
    with pytest.raises(TransportError) as caught:
        connect(Host("lab1", address, ssh=ssh), rig.trust())
    assert (caught.value.kind, caught.value.host) == ("host_unreachable", "lab1")
    return str(caught.value), time.monotonic() - started


@contextmanager
def listener(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve every connection with ``talk``, one after the other, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stopping = threading.Event()

        def serve() -> None:
            while not stopping.is_set():
                connection, _ = server.accept()
                with connection:
                    talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        stopping.set()
        socket.create_connection(server.getsockname()).close()
        thread.join(5)


def test_a_shut_port_is_refused_at_once(rig: Rig) -> None:
    port = free_port("127.0.0.1")
    text, seconds = unreachable(rig, "127.0.0.1", port)
    assert f"connection refused on port {port}" in text
    assert seconds < 1


def test_a_silent_listener_is_given_up_in_time(rig: Rig) -> None:
    def silence(connection: socket.socket) -> None:
        while connection.recv(1000):
            pass

    with listener(silence) as port:
        text, seconds = unreachable(rig, "127.0.0.1", port, connect_timeout_s=1.0)
    assert "connected, but no SSH banner came within 1 s" in text
    assert seconds < 1.5


def test_the_default_limit_keeps_an_unreachable_host_below_11_seconds(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        text, seconds = unreachable(rig, "127.0.0.1", server.getsockname()[1])
    assert "no SSH banner came within 10 s" in text
    assert 9 < seconds < 11


def test_a_host_that_drops_packets_is_given_up_in_time(rig: Rig) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:  # a full queue takes no further connection
            client.setblocking(False)
            assert client.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
        text, seconds = unreachable(rig, "127.0.0.1", port, connect_timeout_s=1.0)
        for client in waiting:
            client.close()
    assert f"no answer on port {port} within 1 s" in text
    assert seconds < 1.5


def test_a_name_that_does_not_resolve_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    text, seconds = unreachable(rig, "nowhere.invalid", 22)
    assert "the name nowhere.invalid does not resolve (Name or service not known)" in text
    assert seconds < 1


def test_a_resolver_that_hangs_is_given_up_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: Any, flags: int = 0, **__: Any) -> Any:
        if not flags:
            release.wait(30)
        raise socket.gaierror(socket.EAI_NONAME, "not a number")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    text, seconds = unreachable(rig, "nowhere.invalid", 22, connect_timeout_s=1.0)
    release.set()
    assert "did not resolve within 1 s" in text
    assert seconds < 1.5


def test_a_name_that_cannot_even_be_asked_for_is_named(rig: Rig) -> None:
    text, _ = unreachable(rig, "a" * 70 + ".invalid", 22)
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
        text, seconds = unreachable(rig, "127.0.0.1", port)
    assert "is not an SSH server" in text
    assert "HTTP/1.1 400" in text
    assert "\x1b" not in text
    assert seconds < 2


def test_a_server_that_hangs_up_is_asked_again_until_it_does_not(rig: Rig) -> None:
    server = rig.serve()
    calls = []

    def drop_three_times(connection: socket.socket) -> None:
        calls.append(1)
        if len(calls) > 3:
            relay(connection, (server.address, server.port))

    with listener(drop_three_times) as port:
        rig.known_hosts.write_text(server.known_hosts_lines().replace(f"[127.0.0.2]:{server.port}", f"[127.0.0.1]:{port}"))
        host = Host("lab1", "127.0.0.1", ssh=rig.host(server, port=port).ssh)
        line = connect(host, rig.trust())
        assert line.run(["true"], timeout_s=10).code == 0
        line.close()
    assert len(calls) >= 4


def test_a_server_that_always_hangs_up_is_given_up_in_time(rig: Rig) -> None:
    with listener(lambda connection: None) as port:
        text, seconds = unreachable(rig, "127.0.0.1", port, connect_timeout_s=1.5)
    assert "closed the connection before the SSH banner" in text
    assert "MaxStartups" in text
    assert seconds < 2


def relay(connection: socket.socket, target: tuple[str, int]) -> None:
    """Pass bytes both ways until either side ends."""
    with socket.create_connection(target) as other:

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(65536):
                    sink.sendall(data)
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        back = threading.Thread(target=pump, args=(other, connection))
        back.start()
        pump(connection, other)
        back.join()


def test_200_failed_connections_leave_no_thread_and_no_socket(rig: Rig, no_leak: Callable[[], tuple[int, int]]) -> None:
    unknown = rig.serve(known=False)
    host = rig.host(unknown)
    shut = Host("lab2", "127.0.0.1", ssh=SshSettings(port=free_port("127.0.0.1"), key=host.ssh.key, config=host.ssh.config))
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
    command = [sys.executable, "-c", program, str(server.port), str(rig.keys.client), str(rig.config), str(rig.store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("algorithm_refused\n", "")


def test_paramikos_words_go_to_logging(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "paramiko"):
        rig.connect(rig.serve()).close()
    assert any(record.name == "paramiko.transport" for record in caplog.records)


# Jump hosts


def behind(rig: Rig, *jumps: Sshd, **ssh: Any) -> tuple[Sshd, Host]:
    """Return a server, and the host that reaches it through ``jumps``."""
    server = rig.serve("LogLevel DEBUG1")
    return server, rig.behind(server, *jumps, **ssh)


def test_a_host_is_reached_through_a_chain_of_jump_hosts(rig: Rig) -> None:
    outer, inner = rig.serve("LogLevel DEBUG1"), rig.serve("LogLevel DEBUG1")
    server, host = behind(rig, outer, inner)
    line = rig.connect(host)
    data = bytes(range(256)) * 20_000
    assert line.run(["cat"], input=data, timeout_s=30).stdout == data
    assert f"target {inner.address} port {inner.port}" in outer.log
    assert f"target {server.address} port {server.port}" in inner.log
    assert f"Connection from {outer.address}" not in server.log
    assert "auth-agent" not in server.log + outer.log


def test_proxyjump_of_the_ssh_configuration_is_followed(rig: Rig) -> None:
    jump, server = rig.serve("LogLevel DEBUG1"), rig.serve()
    rig.configure(
        f"Host {server.address}\nProxyJump front\n"
        f"Host front\nHostName {jump.address}\nPort {jump.port}\nHost *\nUser {jump.user}"
    )
    rig.connect(server)
    assert server.address in jump.log


def test_proxyjump_for_all_hosts_does_not_send_the_jump_host_through_itself(rig: Rig) -> None:
    jump, server = rig.serve(), rig.serve()
    rig.configure(f"Host front\nHostName {jump.address}\nPort {jump.port}\nHost *\nProxyJump front\nUser {jump.user}")
    rig.connect(server)


def test_jump_none_of_the_inventory_switches_the_jump_off(rig: Rig) -> None:
    rig.configure("Host *\nProxyJump 127.0.0.99:1")
    rig.connect(rig.host(rig.serve(), jump="none"))


def test_jump_hosts_that_go_in_circles_are_refused(rig: Rig) -> None:
    rig.configure("Host a\nProxyJump b\nHost b\nProxyJump c\nHost c\nProxyJump a")
    with pytest.raises(ConfigError, match="jump hosts"):
        resolve(Host("lab1", "a", ssh=SshSettings(config=str(rig.config))))


@pytest.mark.parametrize("jump", ["-oProxyCommand=x", "a b", "host:port", "host:0", "host:99999", "", "a,,b", "x@y@z"])
def test_a_jump_that_is_no_address_is_refused(rig: Rig, jump: str) -> None:
    host = Host("lab1", "lab1", ssh=SshSettings(config=str(rig.config), jump=jump))
    if jump == "":
        assert resolve(host).via is None
        return
    with pytest.raises(ConfigError, match="jump host"):
        resolve(host)


def test_an_unknown_jump_host_is_refused_and_named_and_the_host_behind_it_is_not_contacted(rig: Rig) -> None:
    jump = rig.serve("LogLevel DEBUG1", known=False)
    server, host = behind(rig, jump)
    with pytest.raises(TransportError, match=rf"^jump host {jump.address}: the host key is not known") as caught:
        connect(host, rig.trust())
    assert (caught.value.kind, caught.value.host) == ("host_key_unknown", "lab1")
    assert "userauth" not in jump.log
    assert "Connection from" not in server.log


def test_the_host_behind_a_jump_host_is_judged_like_any_other(rig: Rig) -> None:
    jump, server = rig.serve(), rig.serve("LogLevel DEBUG1", known=False)
    host = rig.host(server, jump=f"{jump.address}:{jump.port}")
    with pytest.raises(TransportError, match="^the host key is not known"):
        connect(host, rig.trust())
    assert "userauth-request" not in server.log


def test_a_jump_host_that_is_down_is_named(rig: Rig) -> None:
    server = rig.serve()
    host = rig.host(server, jump=f"127.0.0.99:{free_port('127.0.0.99')}")
    with pytest.raises(TransportError, match=r"^jump host 127\.0\.0\.99: connection refused") as caught:
        connect(host, rig.trust())
    assert (caught.value.kind, caught.value.host) == ("host_unreachable", "lab1")


def test_a_host_that_is_down_behind_a_jump_host_is_named(rig: Rig) -> None:
    jump, server = rig.serve(), rig.serve()
    server.stop()
    host = rig.host(server, jump=f"{jump.address}:{jump.port}")
    with pytest.raises(TransportError, match=rf"jump host {jump.address} cannot reach it on port {server.port}") as caught:
        connect(host, rig.trust())
    assert caught.value.kind == "host_unreachable"


def test_a_jump_host_that_forwards_nothing_is_named(rig: Rig) -> None:
    jump, server = rig.serve("AllowTcpForwarding no"), rig.serve()
    with pytest.raises(TransportError, match="AllowTcpForwarding"):
        connect(rig.host(server, jump=f"{jump.address}:{jump.port}"), rig.trust())


def test_a_host_that_hangs_up_behind_a_jump_host_is_asked_again(rig: Rig) -> None:
    jump, server = rig.serve(), rig.serve()
    calls = []

    def drop_three_times(connection: socket.socket) -> None:
        calls.append(1)
        if len(calls) > 3:
            relay(connection, (server.address, server.port))

    with listener(drop_three_times) as port:
        rig.known_hosts.write_text(rig.known_hosts.read_text().replace(server.known_as, f"[127.0.0.1]:{port}"))
        ssh = rig.host(server, port=port, jump=f"{jump.address}:{jump.port}").ssh
        line = connect(Host("lab1", "127.0.0.1", ssh=ssh), rig.trust())
        assert line.run(["true"], timeout_s=10).code == 0
        line.close()
    assert len(calls) >= 4
    assert jump.log.count("Accepted publickey") == 1


def test_a_jump_host_that_dies_takes_the_line_along(rig: Rig) -> None:
    jump = rig.serve()
    _, host = behind(rig, jump)
    line = rig.connect(host)
    assert line.via == f"jump host {jump.address}" and rig.connect(jump).via == ""
    channel = line.popen(["cat"], timeout_s=10)
    cut = time.monotonic()
    jump.kill_connections()
    with pytest.raises(TransportError, match="connection broke"):
        channel.recv(10)
    assert time.monotonic() - cut < 2


def test_lines_through_jump_hosts_leave_nothing_behind(rig: Rig, no_leak: object) -> None:
    jump = rig.serve()
    _, host = behind(rig, jump)
    for _ in range(5):
        line = connect(host, rig.trust())
        line.run(["true"], timeout_s=10)
        line.close()


@pytest.mark.parametrize("route", ["direct", "jump"])
def test_sixteen_connections_get_past_max_startups(rig: Rig, route: str) -> None:
    busy = rig.serve("MaxStartups 2:50:4")
    host = rig.host(busy) if route == "direct" else behind(rig, busy)[1]
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
    codes = [line.run(["true"], timeout_s=10).code for line in lines]
    for line in lines:
        line.close()
    assert not failed
    assert codes == [0] * 16


# The user's ssh configuration


def test_the_ssh_configuration_says_where_and_who(rig: Rig) -> None:
    server = rig.serve()
    rig.configure(
        f"Host short\nHostName {server.address}\nPort {server.port}\nUser {server.user}\nIdentityFile {rig.keys.client}"
    )
    rig.connect(Host("lab1", "short", ssh=SshSettings(config=str(rig.config))))


@pytest.mark.parametrize("address", ["front+node1", "front/node1"])
def test_an_address_may_be_a_pattern_that_the_ssh_configuration_understands(rig: Rig, address: str) -> None:
    jump, server = rig.serve("LogLevel DEBUG1"), rig.serve()
    rig.configure(
        f"Host front+* front/*\nHostName {server.address}\nPort {server.port}\nProxyJump front\n"
        f"Host front\nHostName {jump.address}\nPort {jump.port}\nHost *\nUser {jump.user}\nIdentityFile {rig.keys.client}"
    )
    text = f"all: {{hosts: {{n1: {{ansible_host: {address}, ansible_ssh_common_args: -F {rig.config}}}}}}}\n"
    (host,) = parse_text(text, "hosts.yml", yamlfile.loads).hosts
    rig.connect(host)
    assert server.address in jump.log


def test_the_inventory_wins_over_the_ssh_configuration(rig: Rig) -> None:
    server = rig.serve()
    rig.configure(f"Port 1\nUser nobody\nIdentityFile {rig.keys.stranger}")
    rig.connect(server)


def test_a_proxy_command_of_the_ssh_configuration_is_used(rig: Rig, no_leak: object) -> None:
    server = rig.serve()
    rig.configure(rig.proxy_command())
    line = rig.connect(server)
    data = bytes(range(256)) * 20_000
    assert line.run(["cat"], input=data, timeout_s=30).stdout == data
    assert not line.greets(lambda: True)  # there is no asking past it
    line.close()


def test_a_proxy_command_that_fails_is_named(rig: Rig) -> None:
    rig.configure("ProxyCommand false")
    text, _ = unreachable(rig, "127.0.0.1", 22, connect_timeout_s=1.0)
    assert "run its ProxyCommand by hand: false" in text


def test_a_shorter_connect_timeout_of_the_ssh_configuration_counts(rig: Rig) -> None:
    rig.configure("ConnectTimeout 1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        text, seconds = unreachable(rig, "127.0.0.1", server.getsockname()[1])
    assert "within 1 s" in text
    assert seconds < 2


def test_a_wrong_ssh_configuration_is_a_configuration_error(rig: Rig) -> None:
    rig.config.write_text("Host *\n  NoSuchOption yes\n")
    with pytest.raises(ConfigError, match="nosuchoption"):
        resolve(Host("lab1", "127.0.0.1", ssh=SshSettings(config=str(rig.config))))


def test_a_missing_ssh_configuration_is_a_configuration_error(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        resolve(Host("lab1", "127.0.0.1", ssh=SshSettings(config=str(rig.directory / "missing"))))


def test_an_address_that_looks_like_an_option_stays_an_address(rig: Rig) -> None:
    mark = rig.directory / "ran"
    host = Host("lab1", f"-oProxyCommand=touch {mark}", ssh=SshSettings(config=str(rig.config), connect_timeout_s=2))
    with pytest.raises(OrchError):
        connect(host, rig.trust())
    assert not mark.exists()


def test_paths_with_spaces_and_several_files_are_told_apart(rig: Rig) -> None:
    rig.config.write_text('Host *\nUserKnownHostsFile /a/one "/b/two words" ~/three\nGlobalKnownHostsFile none\n')
    endpoint = resolve(Host("lab1", "127.0.0.1", ssh=SshSettings(config=str(rig.config))))
    assert [str(path) for path in endpoint.known_hosts[:2]] == ["/a/one", "/b/two words"]
    assert endpoint.known_hosts[2].name == "three"


def comparable(endpoint: Endpoint) -> Endpoint:
    """Leave out which default keys there might be: newer versions of ssh know more of them."""
    via = comparable(endpoint.via) if endpoint.via else None
    return replace(endpoint, default_keys=(), via=via)


def test_without_an_ssh_program_the_configuration_says_the_same(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.configure(
        f"Host short\nHostName 127.0.0.7\nPort 2200\nUser joe\nIdentityFile {rig.keys.client}\nHostKeyAlias other\n"
        f"ProxyJump me@127.0.0.8:2201\nConnectTimeout 4\nIdentitiesOnly yes\nUserKnownHostsFile {rig.known_hosts}\n"
    )
    hosts = [
        Host("lab1", "short", ssh=SshSettings(config=str(rig.config))),
        Host("lab1", "short", ssh=SshSettings(config=str(rig.config), user="ann", port=5, jump="none", key="/k")),
    ]
    with_ssh = [resolve(host) for host in hosts]
    monkeypatch.setattr("shutil.which", lambda name: None)
    without_ssh = [resolve(host) for host in hosts]
    assert [comparable(endpoint) for endpoint in without_ssh] == [comparable(endpoint) for endpoint in with_ssh]
    assert with_ssh[0].via is not None
    assert (with_ssh[0].via.user, with_ssh[0].via.port) == ("me", 2201)


def test_fabrics_own_configuration_files_are_not_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, names in (
        (rig.directory / "home", (".fabric.yaml", ".invoke.yaml")),
        (rig.directory / "work", ("fabric.yaml", "invoke.yaml")),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).write_text("gateway: 127.0.0.99\nuser: [broken\n")
    monkeypatch.setenv("HOME", str(rig.directory / "home"))
    monkeypatch.setenv("FABRIC_GATEWAY", "127.0.0.99")
    monkeypatch.setenv("INVOKE_GATEWAY", "127.0.0.99")
    monkeypatch.chdir(rig.directory / "work")
    rig.connect(rig.serve())


def test_no_other_module_makes_connections() -> None:
    package = Path(sshconfig.__file__).parents[2]
    users = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.strip().startswith(("import ", "from ")) and {"fabric", "paramiko"} & set(line.replace(".", " ").split())
    }
    assert users == {"transport"}

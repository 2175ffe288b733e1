"""Jump hosts: chains of them, those of the ssh configuration, and which one is named when a host
cannot be reached.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import ConfigError, TransportError
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport.ssh import connect
from orchestrator.transport.ssh.config import resolve
from tests.contract.reaching import hanging_up
from tests.contract.rig import Rig
from tests.contract.sshd import Sshd
from tests.support.judge import LIMIT_S
from tests.support.ports import free_port


def behind(rig: Rig, *jumps: Sshd, **ssh: Any) -> tuple[Sshd, Host]:
    """Return a server, and the host that reaches it through ``jumps``."""
    server = rig.serve("LogLevel DEBUG1")
    return server, rig.behind(server, *jumps, **ssh)


def test_a_host_is_reached_through_a_chain_of_jump_hosts(rig: Rig) -> None:
    outer, inner = rig.serve("LogLevel DEBUG1"), rig.serve("LogLevel DEBUG1")
    server, host = behind(rig, outer, inner)
    line = rig.connect(host)
    data = bytes(range(256)) * 20_000
    assert line.run(["cat"], input=data, timeout_s=LIMIT_S).stdout == data
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
    rig.configure(
        f"Host front\nHostName {jump.address}\nPort {jump.port}\nHost *\nProxyJump front\nUser {jump.user}"
    )
    rig.connect(server)


def test_jump_none_of_the_inventory_switches_the_jump_off(rig: Rig) -> None:
    rig.configure("Host *\nProxyJump 127.0.0.99:1")
    rig.connect(rig.host(rig.serve(), jump="none"))


def test_jump_hosts_that_go_in_circles_are_refused(rig: Rig) -> None:
    rig.configure("Host a\nProxyJump b\nHost b\nProxyJump c\nHost c\nProxyJump a")
    with pytest.raises(ConfigError, match="jump hosts"):
        resolve(Host("lab1", "a", ssh=SshSettings(config=str(rig.config))))


@pytest.mark.parametrize(
    "jump", ["-oProxyCommand=x", "a b", "host:port", "host:0", "host:99999", "", "a,,b", "x@y@z"]
)
def test_a_jump_that_is_no_address_is_refused(rig: Rig, jump: str) -> None:
    host = Host("lab1", "lab1", ssh=SshSettings(config=str(rig.config), jump=jump))
    if jump == "":
        assert resolve(host).via is None
        return
    with pytest.raises(ConfigError, match="jump host"):
        resolve(host)


def test_an_unknown_jump_host_is_refused_and_named_and_the_host_behind_it_is_not_contacted(
    rig: Rig,
) -> None:
    jump = rig.serve("LogLevel DEBUG1", known=False)
    server, host = behind(rig, jump)
    with pytest.raises(
        TransportError, match=rf"^jump host {jump.address}: the host key is not known"
    ) as caught:
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
    with pytest.raises(
        TransportError, match=r"^jump host 127\.0\.0\.99: connection refused"
    ) as caught:
        connect(host, rig.trust())
    assert (caught.value.kind, caught.value.host) == ("host_unreachable", "lab1")


def test_a_host_that_is_down_behind_a_jump_host_is_named(rig: Rig) -> None:
    jump, server = rig.serve(), rig.serve()
    server.stop()
    host = rig.host(server, jump=f"{jump.address}:{jump.port}")
    with pytest.raises(
        TransportError, match=rf"jump host {jump.address} cannot reach it on port {server.port}"
    ) as caught:
        connect(host, rig.trust())
    assert caught.value.kind == "host_unreachable"


def test_a_jump_host_that_forwards_nothing_is_named(rig: Rig) -> None:
    jump, server = rig.serve("AllowTcpForwarding no"), rig.serve()
    with pytest.raises(TransportError, match="AllowTcpForwarding"):
        connect(rig.host(server, jump=f"{jump.address}:{jump.port}"), rig.trust())


def test_a_host_that_hangs_up_behind_a_jump_host_is_asked_again(rig: Rig) -> None:
    jump, server = rig.serve(), rig.serve()
    with hanging_up(3, (server.address, server.port)) as (port, calls):
        rig.known_hosts.write_text(
            rig.known_hosts.read_text().replace(server.known_as, f"[127.0.0.1]:{port}")
        )
        ssh = rig.host(server, port=port, jump=f"{jump.address}:{jump.port}").ssh
        line = connect(Host("lab1", "127.0.0.1", ssh=ssh), rig.trust())
        assert line.run(["true"], timeout_s=LIMIT_S).code == 0
        line.close()
    assert len(calls) >= 4
    assert jump.log.count("Accepted publickey") == 1


def test_a_jump_host_that_dies_takes_the_line_along(rig: Rig) -> None:
    jump = rig.serve()
    _, host = behind(rig, jump)
    line = rig.connect(host)
    assert line.via == f"jump host {jump.address}" and rig.connect(jump).via == ""
    channel = line.popen(["cat"], timeout_s=LIMIT_S)
    jump.kill_connections()
    with pytest.raises(TransportError, match="connection broke"):
        channel.recv(LIMIT_S)


def test_lines_through_jump_hosts_leave_nothing_behind(rig: Rig, no_leak: object) -> None:
    jump = rig.serve()
    _, host = behind(rig, jump)
    for _ in range(5):
        line = connect(host, rig.trust())
        line.run(["true"], timeout_s=LIMIT_S)
        line.close()

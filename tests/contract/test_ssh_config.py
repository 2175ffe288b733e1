"""The user's ssh configuration: what of it counts, and what the inventory says otherwise."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import yamlfile
from orchestrator.errors import ConfigError, OrchError
from orchestrator.inventory.formats import parse_text
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport.ssh import connect
from orchestrator.transport.ssh.config import Endpoint, resolve
from tests.contract.reaching import unreachable
from tests.contract.rig import Rig
from tests.support.judge import LIMIT_S


def test_the_ssh_configuration_says_where_and_who(rig: Rig) -> None:
    server = rig.serve()
    rig.configure(
        f"Host short\nHostName {server.address}\nPort {server.port}\nUser {server.user}\nIdentityFile {rig.keys.client}"
    )
    rig.connect(Host("lab1", "short", ssh=SshSettings(config=str(rig.config))))


@pytest.mark.parametrize("address", ["front+node1", "front/node1"])
def test_an_address_may_be_a_pattern_that_the_ssh_configuration_understands(
    rig: Rig, address: str
) -> None:
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
    assert line.run(["cat"], input=data, timeout_s=LIMIT_S).stdout == data
    assert not line.greets(lambda: True)  # there is no asking past it
    line.close()


def test_a_proxy_command_that_fails_is_named_at_once(rig: Rig) -> None:
    rig.configure("ProxyCommand sh -c 'exit 7'")
    text = unreachable(rig, "127.0.0.1", 22, connect_timeout_s=LIMIT_S)
    assert "its ProxyCommand ended with status 7 before the SSH banner" in text
    assert "run its ProxyCommand by hand: sh -c 'exit 7'" in text


def test_a_proxy_command_whose_server_hangs_up_is_tried_again(rig: Rig) -> None:
    server, tries, script = rig.serve(), rig.directory / "tries", rig.directory / "proxy.sh"
    command = rig.proxy_command().removeprefix("ProxyCommand ").replace("%h %p", '"$@"')
    script.write_text(f"echo >> {tries}; [ $(wc -l < {tries}) = 3 ] || exit 255; exec {command}\n")
    rig.configure(f"ProxyCommand sh {script} %h %p")
    rig.connect(server).close()
    assert tries.read_text().count("\n") == 3


def test_a_shorter_connect_timeout_of_the_ssh_configuration_counts(rig: Rig) -> None:
    rig.configure("ConnectTimeout 1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = unreachable(rig, "127.0.0.1", server.getsockname()[1])
    assert "within 1 s" in text


def test_a_wrong_ssh_configuration_is_a_configuration_error(rig: Rig) -> None:
    rig.config.write_text("Host *\n  NoSuchOption yes\n")
    with pytest.raises(ConfigError, match="nosuchoption"):
        resolve(Host("lab1", "127.0.0.1", ssh=SshSettings(config=str(rig.config))))


@pytest.mark.parametrize("has_ssh", [True, False])
def test_a_missing_ssh_configuration_is_named_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ssh: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if not has_ssh:
        monkeypatch.setenv("PATH", str(tmp_path))
    for name, hint in [
        ("ssh_config", ". a relative path starts at the current directory"),
        ("/nowhere/config", ""),
    ]:
        with pytest.raises(ConfigError) as error:
            resolve(Host("n1", "10.11.0.2", ssh=SshSettings(config=name)))
        expected = "expected an ssh configuration, found no file"
        assert str(error.value) == f"ssh.config {tmp_path / name}: {expected}{hint}"
        assert error.value.host == "n1"


def test_an_address_that_looks_like_an_option_stays_an_address(rig: Rig) -> None:
    mark = rig.directory / "ran"
    host = Host(
        "lab1",
        f"-oProxyCommand=touch {mark}",
        ssh=SshSettings(config=str(rig.config), connect_timeout_s=2),
    )
    with pytest.raises(OrchError):
        connect(host, rig.trust())
    assert not mark.exists()


def test_paths_with_spaces_and_several_files_are_told_apart(rig: Rig) -> None:
    rig.config.write_text(
        'Host *\nUserKnownHostsFile /a/one "/b/two words" ~/three\nGlobalKnownHostsFile none\n'
    )
    endpoint = resolve(Host("lab1", "127.0.0.1", ssh=SshSettings(config=str(rig.config))))
    assert [str(path) for path in endpoint.known_hosts[:2]] == ["/a/one", "/b/two words"]
    assert endpoint.known_hosts[2].name == "three"


def comparable(endpoint: Endpoint) -> Endpoint:
    """Leave out which default keys there might be: newer versions of ssh know more of them."""
    via = comparable(endpoint.via) if endpoint.via else None
    return replace(endpoint, default_keys=(), via=via)


def test_without_an_ssh_program_the_configuration_says_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.configure(
        f"Host short\nHostName 127.0.0.7\nPort 2200\nUser joe\nIdentityFile {rig.keys.client}\nHostKeyAlias other\n"
        f"ProxyJump me@127.0.0.8:2201\nConnectTimeout 4\nIdentitiesOnly yes\nUserKnownHostsFile {rig.known_hosts}\n"
    )
    hosts = [
        Host("lab1", "short", ssh=SshSettings(config=str(rig.config))),
        Host(
            "lab1",
            "short",
            ssh=SshSettings(config=str(rig.config), user="ann", port=5, jump="none", key="/k"),
        ),
    ]
    with_ssh = [resolve(host) for host in hosts]
    monkeypatch.setattr("shutil.which", lambda name: None)
    without_ssh = [resolve(host) for host in hosts]
    assert [comparable(endpoint) for endpoint in without_ssh] == [
        comparable(endpoint) for endpoint in with_ssh
    ]
    assert with_ssh[0].via is not None
    assert (with_ssh[0].via.user, with_ssh[0].via.port) == ("me", 2201)


def test_fabrics_own_configuration_files_are_not_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
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

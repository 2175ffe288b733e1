"""The lab of network namespaces: what a node is, what it sees, and what it cannot reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.errors import ConfigError
from orchestrator.lab import namespaces
from tests.support import faults
from tests.support.faultlab import MakeLab, Ssh
from tests.support.judge import LIMIT_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def _connect(address: str, port: int) -> list[str]:
    code = f"import socket\ntry: socket.create_connection(('{address}', {port}), 5)\nexcept OSError as e: print(e.strerror)"
    return [sys.executable, "-I", "-S", "-c", code]


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout


def test_root_gets_namespaces_and_is_told_so(make_lab: MakeLab) -> None:
    said: list[str] = []
    lab = make_lab(nodes=3, slots=2, say=said.append)
    assert lab.kind == "namespaces"
    assert [(node.name, node.address, node.port) for node in lab.nodes] == [
        ("node1", "10.11.0.2", 22),
        ("node2", "10.11.0.3", 22),
        ("node3", "10.11.0.4", 22),
    ]
    assert len(said) == 1
    assert (
        "3 nodes of 2 CPU slots, 10.11.0.2 to 10.11.0.4 port 22, in separate network namespaces"
        in said[0]
    )
    assert labs.load(lab.directory) == lab


def test_each_node_has_its_own_name_home_and_temporary_folders(make_lab: MakeLab, ssh: Ssh) -> None:
    lab = make_lab()
    name = f"of-{lab.marker}"
    for node in lab.nodes:
        command = (
            "hostname; whoami; pwd; echo $HOME; for d in ~ /tmp /var/tmp /run /dev/shm; do "
            f"echo $HOSTNAME > $d/{name}; done"
        )
        done = ssh(lab, node.name, command)
        assert done.stdout.decode().split() == [node.name, "root", "/root", "/root"], done.stderr
    for node in lab.nodes:
        seen = (
            ssh(
                lab,
                node.name,
                f"cat ~/{name} /tmp/{name} /var/tmp/{name} /run/{name} /dev/shm/{name}",
            )
            .stdout.decode()
            .split()
        )
        assert seen == [node.name] * 5
        assert (node.home / name).read_text() == f"{node.name}\n"
    assert not any(
        Path(folder, name).exists() for folder in ("/root", "/tmp", "/var/tmp", "/run", "/dev/shm")
    )


def test_nodes_see_neither_each_others_files_nor_processes_nor_the_project(
    make_lab: MakeLab, ssh: Ssh
) -> None:
    lab = make_lab()
    (lab.work / "secret").write_text("of the controller")
    listing = ssh(
        lab,
        "node1",
        f"ls {lab.directory}/nodes {lab.work}; ls -d /proc/[0-9]* | wc -l; ls /sys/class/net",
    )
    lines = listing.stdout.decode().split("\n")
    assert (
        "node1" in lines
        and "node2" not in lines
        and "secret" not in lines
        and "inventory" not in lines
    )
    assert int(next(line for line in lines if line.isdigit())) < 10
    assert lines[-3:] == ["eth0", "lo", ""]


def test_the_login_is_checked_strictly_and_nothing_else_opens_a_node(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab(nodes=1)
    options = [
        "-F",
        "/dev/null",
        "-o",
        "BatchMode=yes",
        "-o",
        f"UserKnownHostsFile={lab.directory}/known_hosts",
    ]
    target = [
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "IdentityAgent=none",
        "root@10.11.0.2",
        "true",
    ]
    for key, code in (
        (str(lab.directory / "id_ed25519"), 0),
        (str(lab.directory / "nodes/node1/host_key"), 255),
    ):
        argv = labs.argv_inside(
            lab, ["ssh", *options, "-i", key, "-o", "IdentitiesOnly=yes", *target]
        )
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == code, done.stderr


def test_nodes_log_in_to_each_other(make_lab: MakeLab, ssh: Ssh) -> None:
    done = ssh(make_lab(), "node1", "ssh -o BatchMode=yes node2 hostname")
    assert (done.stdout, done.returncode) == (b"node2\n", 0), done.stderr


def test_streams_are_bytes_and_exit_codes_real(make_lab: MakeLab, ssh: Ssh) -> None:
    lab, data = make_lab(nodes=1), bytes(range(256)) * 4096
    assert ssh(lab, "node1", "cat", data).stdout == data
    assert [
        ssh(lab, "node1", command).returncode for command in ("true", "exit 7", "no-such-program")
    ] == [0, 7, 127]


def test_no_way_leads_out(make_lab: MakeLab, ssh: Ssh) -> None:
    lab = make_lab()
    for argv in (
        labs.argv_inside(lab, _connect("192.0.2.1", 80)),
        labs.argv_on(lab, "node1", _connect("192.0.2.1", 80)),
    ):
        assert _output(argv) == "Network is unreachable\n"
    for address in ("10.11.1.1", "10.12.0.2"):
        assert (
            _output(labs.argv_on(lab, "node2", _connect(address, 22))) == "Network is unreachable\n"
        )
    assert b"default" not in ssh(lab, "node1", "cat /proc/net/route; ip route").stdout


def test_the_controllers_side_reaches_no_server_of_the_machine(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert (
            _output(labs.argv_inside(lab, _connect("127.0.0.1", server.getsockname()[1])))
            == "Connection refused\n"
        )


def test_two_labs_with_the_same_addresses_do_not_meet(make_lab: MakeLab, ssh: Ssh) -> None:
    first, second = make_lab(), make_lab(nodes=3)
    ssh(first, "node1", "echo first > ~/which")
    ssh(second, "node1", "echo second > ~/which")
    assert ssh(first, "node1", "cat ~/which").stdout == b"first\n"
    assert ssh(second, "node1", "cat ~/which").stdout == b"second\n"
    assert _output(labs.argv_on(first, "node1", _connect("10.11.0.4", 22))) == "No route to host\n"
    labs.down(first.directory)
    assert ssh(second, "node3", "hostname").stdout == b"node3\n"


def test_a_command_inside_keeps_its_process_id_and_finds_the_inventory(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    argv = labs.argv_inside(
        lab, [sys.executable, "-c", "import os; print(os.getpid(), os.environ['ORCH_HOSTS'])"]
    )
    with subprocess.Popen(
        argv, env=os.environ | labs.environment(lab), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.communicate(timeout=LIMIT_S)[0] == f"{process.pid} {lab.inventory}\n"


def test_an_interpreter_under_tmp_is_visible_on_nodes_and_its_neighbours_are_not(
    make_lab: MakeLab, ssh: Ssh, tmp_path: Path
) -> None:
    venv = tmp_path / "project" / ".venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=LIMIT_S
    )
    (tmp_path / "project" / "source.py").write_text("not staged, so not there")
    lab = make_lab(nodes=1, python=str(venv / "bin" / "python"))
    done = ssh(
        lab,
        "node1",
        f"{venv}/bin/python -c 'import sys, json; print(sys.prefix)'; ls -A {tmp_path}/project",
    )
    assert done.stdout.decode().split() == [str(venv), ".venv"], done.stderr
    assert f'python: "{venv}/bin/python"' in lab.inventory.read_text()


def test_a_shared_folder_is_visible_and_a_whole_private_one_is_refused(
    make_lab: MakeLab, ssh: Ssh, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("here")
    assert (
        ssh(make_lab(share=[tmp_path / "data"]), "node2", f"cat {tmp_path}/data/file").stdout
        == b"here"
    )
    with pytest.raises(ConfigError, match="below /tmp, got /tmp itself"):
        make_lab(share=[Path("/tmp")])


def test_the_wanted_mtu_is_on_every_device(make_lab: MakeLab, ssh: Ssh) -> None:
    lab = make_lab(mtu=9000)
    assert ssh(lab, "node2", "cat /sys/class/net/eth0/mtu").stdout == b"9000\n"
    shown = subprocess.run(
        labs.argv_inside(lab, ["ip", "-o", "link"]), capture_output=True, text=True, check=True
    ).stdout
    assert shown.count("mtu 9000") == 3  # the bridge and one port for each node


def test_orphans_are_reaped(make_lab: MakeLab, ssh: Ssh) -> None:
    lab = make_lab(nodes=1)
    assert (
        ssh(lab, "node1", "setsid sh -c 'sleep 0.2 &' </dev/null >/dev/null 2>&1").returncode == 0
    )
    assert ssh(lab, "node1", "sleep 0.5; grep -l '^State:.Z' /proc/[0-9]*/status").stdout == b""


@pytest.mark.parametrize("nodes", [0, 4001])
def test_an_impossible_number_of_nodes_is_refused(make_lab: MakeLab, nodes: int) -> None:
    with pytest.raises(ConfigError, match=f"expected 1 to 4000, got {nodes}"):
        make_lab(nodes=nodes)


def test_nodes_beyond_the_ports_of_one_bridge_are_reached_on_another_also_after_a_reboot(
    make_lab: MakeLab, ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "NODES_PER_BRIDGE", 1)
    lab = make_lab(nodes=3)
    greeting = "bash -c 'exec 3<>/dev/tcp/10.11.0.{}/22 && head -c 3 <&3'"
    assert [ssh(lab, "node2", greeting.format(last)).stdout for last in (2, 4)] == [b"SSH", b"SSH"]
    faults.crash(lab, "node3")
    faults.boot(lab, "node3")
    assert ssh(lab, "node3", greeting.format(2)).stdout == b"SSH"


def test_more_gpus_than_there_are_is_refused(make_lab: MakeLab) -> None:
    with pytest.raises(ConfigError, match="expected 2 x 64 GPUs, this machine has"):
        make_lab(gpus_per_node=64)


def test_in_a_wide_lab_everybody_knows_where_the_others_are(make_lab: MakeLab, ssh: Ssh) -> None:
    lab = make_lab(nodes=65)
    table = ssh(lab, "node65", "cat /proc/net/arp").stdout.decode().splitlines()[1:]
    known = {line.split()[0]: (line.split()[2], line.split()[3]) for line in table}
    assert known["10.11.0.2"] == ("0x6", "02:00:0a:0b:00:02") and known["10.11.0.66"] == (
        "0x6",
        "02:00:0a:0b:00:42",
    )
    assert len(known) == 66 and {flags for flags, _ in known.values()} == {"0x6"}
    reached = ssh(lab, "node65", "bash -c 'exec 3<>/dev/tcp/10.11.0.2/22 && head -c 3 <&3'")
    assert reached.stdout == b"SSH"

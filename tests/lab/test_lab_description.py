"""What a lab says of itself: its inventory, its GPUs, its view of the machine, the programs it
uses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory.read import open_inventory
from orchestrator.lab import Lab, LabNode, machine
from orchestrator.lab.description import describe, gpu_settings, gpus_for_each, inventory_text
from orchestrator.lab.programs import find
from tests.support.faultlab import MakeLab, Ssh


def _lab(directory: Path) -> Lab:
    nodes = tuple(
        LabNode(f"node{n}", f"10.11.0.{n + 1}", 22, directory / "nodes" / f"node{n}")
        for n in (1, 2)
    )
    return Lab(directory, "0123456789abcdef", "namespaces", nodes, "/opt/venv/bin/python", 1500)


@pytest.mark.parametrize(("nodes", "gpus", "slots", "told"), [
    (2, 1, 2, "2 nodes of 1 GPU, 10.11.0.2 to 10.11.0.3 port 22"), (2, 4, 1, "2 nodes of 4 GPUs, "),
    (1, 0, 1, "1 node of 1 CPU slot, 10.11.0.2 port 22"), (2, 0, 3, "2 nodes of 3 CPU slots, "),
])  # fmt: skip
def test_one_of_a_kind_is_said_in_the_singular(
    tmp_path: Path, nodes: int, gpus: int, slots: int, told: str
) -> None:
    lab = _lab(tmp_path)
    assert describe(replace(lab, nodes=lab.nodes[:nodes]), gpus, slots).startswith(told)


def test_cpu_slots_are_written_as_an_inventory_that_orch_reads(tmp_path: Path) -> None:
    lab = _lab(tmp_path / 'a "strange" folder: #1')
    file = tmp_path / "cluster.yaml"
    file.write_text(inventory_text(lab, gpus=0, slots=3, settings={"NCCL_NVLS_ENABLE": "0"}))
    inventory = open_inventory(str(file))
    assert [
        (h.name, h.address, h.gpus, h.slots, h.capacity, dict(h.env)) for h in inventory.hosts
    ] == [
        ("node1", "10.11.0.2", 0, 3, 3, {}),
        ("node2", "10.11.0.3", 0, 3, 3, {}),
    ]
    host = inventory.hosts[0]
    assert (host.ssh.user, host.ssh.port, host.ssh.host_keys) == ("root", 22, "strict")
    assert (host.ssh.key, host.ssh.known_hosts) == (
        str(lab.directory / "id_ed25519"),
        str(lab.directory / "known_hosts"),
    )
    assert host.vars["interface"] == "eth0"
    assert host.vars["python"] == host.vars["runner_python"] == "/opt/venv/bin/python"
    assert {"/tmp", "/home", "/root"} <= set(host.vars["lab_private"].split())


def test_gpus_are_dealt_out_and_every_node_is_a_host_of_its_own_to_nccl(tmp_path: Path) -> None:
    settings = gpu_settings(
        {
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_HOSTID": "all",
            "CUDA_VISIBLE_DEVICES": "0",
            "HOME": "/root",
        }
    )
    file = tmp_path / "cluster.yaml"
    file.write_text(inventory_text(_lab(tmp_path), gpus=4, slots=1, settings=settings))
    hosts = open_inventory(str(file)).hosts
    assert [host.gpus for host in hosts] == [4, 4]
    assert [host.vars["cuda_visible_devices"] for host in hosts] == ["0,1,2,3", "4,5,6,7"]
    assert [dict(host.env) for host in hosts] == [
        {"NCCL_NVLS_ENABLE": "0", "NCCL_HOSTID": "node1", "NCCL_SOCKET_IFNAME": "eth0"},
        {"NCCL_NVLS_ENABLE": "0", "NCCL_HOSTID": "node2", "NCCL_SOCKET_IFNAME": "eth0"},
    ]


@pytest.mark.parametrize(
    ("present", "nodes", "wanted", "each"),
    [(8, 4, None, 2), (8, 3, None, 2), (2, 4, None, 0), (8, 4, 1, 1), (8, 4, 0, 0)],
)
def test_gpus_are_shared_evenly_or_as_wanted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    present: int,
    nodes: int,
    wanted: int | None,
    each: int,
) -> None:
    _pretend_gpus(tmp_path, monkeypatch, present)
    assert gpus_for_each(nodes, wanted) == each


def test_too_few_gpus_are_an_error_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_gpus(tmp_path, monkeypatch, 8)
    with pytest.raises(ConfigError, match="expected 4 x 3 GPUs, this machine has 8"):
        gpus_for_each(4, 3)


def _pretend_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Put a program in PATH that says what nvidia-smi says on a machine with GPUs."""
    program = folder / "nvidia-smi"
    lines = "".join(f"GPU {index}: NVIDIA H200 (UUID: GPU-0{index})\n" for index in range(count))
    program.write_text(f"#!/bin/sh\n[ \"$*\" = -L ] || exit 9\nprintf '%s' '{lines}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_a_node_sees_its_own_folder_and_what_it_needs_bound_back(tmp_path: Path) -> None:
    lab = _lab(Path("/tmp/lab"))
    shares = [
        Path("/home/me/venv"),
        Path("/home/me/venv/bin"),
        Path("/usr/lib"),
        Path("/tmp/lab/work/.venv"),
        Path("/tmp"),
    ]
    with pytest.raises(ConfigError, match="expected a folder below /tmp, got /tmp itself"):
        machine.mounts(lab, lab.nodes[0], shares)
    steps = [
        (step["type"], step["target"]) for step in machine.mounts(lab, lab.nodes[0], shares[:-1])
    ]
    wanted = [
        ("bind", "/root"),
        ("bind", "/tmp/lab"),
        ("tmpfs", "/tmp/lab/nodes"),
        ("bind", "/tmp/lab/nodes/node1"),
        ("tmpfs", "/tmp/lab/work"),
        ("bind", "/home/me/venv"),
        ("bind", "/tmp/lab/work/.venv"),
    ]
    assert [step for step in steps if step in wanted] == wanted
    assert not {("bind", "/home/me/venv/bin"), ("bind", "/usr/lib")} & set(steps)


def test_a_share_around_the_lab_does_not_uncover_its_hidden_folders() -> None:
    lab = _lab(Path("/home/me/project/.orch/lab"))
    targets = [
        step["target"] for step in machine.mounts(lab, lab.nodes[0], [Path("/home/me/project")])
    ]
    assert targets.index("/home/me/project") < targets.index("/home/me/project/.orch/lab/work")


def test_a_missing_program_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="program no-such-program, which is not installed"):
        find("no-such-program")
    monkeypatch.setattr("orchestrator.lab.programs._SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="apt-get install --no-install-recommends openssh-server"):
        find("sshd")


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_an_sshd_unpacked_in_a_folder_works_with_its_libraries(
    make_lab: MakeLab, ssh: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, libraries = tmp_path / "unpacked/usr/sbin", tmp_path / "unpacked/usr/lib"
    programs.mkdir(parents=True)
    libraries.mkdir()
    shutil.copy(find("sshd"), programs / "sshd")
    needed = subprocess.run(
        ["ldd", programs / "sshd"], capture_output=True, text=True, check=True
    ).stdout
    library_path = next(line.split()[2] for line in needed.splitlines() if "libcrypto" in line)
    shutil.copy(library_path, libraries)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    lab = make_lab(nodes=1, python=sys.executable)
    done = ssh(
        lab,
        "node1",
        f"echo $LD_LIBRARY_PATH; ls {libraries}; cat /proc/$PPID/maps | grep -c {libraries}",
    )
    text, name, count = done.stdout.decode().split()
    assert (text, name) == (str(libraries), Path(library_path).name) and int(count) > 0

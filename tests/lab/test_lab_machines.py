"""Machines of a lab: what they are asked for, and faults that need a kernel of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.errors import ConfigError
from orchestrator.lab import Lab, Machines
from orchestrator.lab.machines.kernel import find_kernel
from tests.support import faultlab, judge, machines

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

needs_machines = pytest.mark.skipif(
    bool(machines.no_machines(nfs=True)), reason=machines.no_machines(nfs=True)
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("machines") / "lab"
    wanted = machines.wanted(nfs=True)
    yield labs.up(directory, nodes=2, gpus_per_node=0, machines=wanted, say=lambda _: None)
    labs.down(directory)


def _boots_anew(lab: Lab, name: str) -> None:
    before = machines.boot_id(lab, name)
    assert before
    machines.reboot(lab, name)
    judge.wait_for(machines.rebooted(lab, name, before), 300, f"{name} did not come back")


def _is_there(lab: Lab, name: str) -> bool:
    return faultlab.answers(lab, name, timeout_s=5)


def test_without_a_kernel_it_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    with pytest.raises(ConfigError, match="found none. apt-get download .*--kernel linux-image"):
        find_kernel(None, tmp_path / "boot")
    with pytest.raises(ConfigError, match=r"expected a file linux-image-….deb, got .*absent"):
        find_kernel(tmp_path / "absent.deb")


def test_the_newest_installed_kernel_with_modules_is_taken(tmp_path: Path) -> None:
    for version, modules in (("6.1.9-1-amd64", True), ("6.1.10-1-amd64", True), ("6.9-x", False)):
        (tmp_path / "boot").mkdir(exist_ok=True)
        (tmp_path / "boot" / f"vmlinuz-{version}").touch()
        (tmp_path / "lib/modules" / version).mkdir(parents=True)
        if modules:
            (tmp_path / "lib/modules" / version / "modules.dep").touch()
    assert find_kernel(None, tmp_path / "boot").version == "6.1.10-1-amd64"


@needs_machines
@pytest.mark.parametrize(("wish", "message"), [
    ({"loss": "1"}, "--loss: expected a value such as 1%, got '1'"),
    ({"delay": "5"}, "--delay: expected a value such as 5ms, got '5'"),
])  # fmt: skip
def test_a_wire_is_asked_for_in_units(tmp_path: Path, wish: dict[str, str], message: str) -> None:
    wanted = Machines(machines.wanted().kernel, **wish)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        labs.up(tmp_path / "lab", machines=wanted, gpus_per_node=0, say=print)


@needs_machines
def test_a_shared_home_is_nfs_and_waits_for_a_server_that_is_frozen(lab: Lab) -> None:
    assert " nfs4 rw," in machines.inside(lab, "node2", "grep ' /shared ' /proc/mounts")
    machines.freeze(lab, "node1")
    done = faultlab.ssh(lab, "node2", "timeout -s KILL 3 sh -c 'echo one >/shared/file'; echo $?")
    assert done.stdout.decode().split()[-1] == "137", done
    machines.thaw(lab, "node1")
    machines.inside(lab, "node2", "echo two >/shared/file; sync /shared/file")
    assert machines.inside(lab, "node1", "cat /shared/file") == "two\n"
    _boots_anew(lab, "node1")
    assert machines.inside(lab, "node2", "cat /shared/file") == "two\n"


@needs_machines
def test_a_machine_that_panics_is_silent_until_it_is_reset_and_keeps_its_home(lab: Lab) -> None:
    machines.inside(lab, "node2", "echo kept >kept; sync; echo lost >/tmp/lost")
    before = machines.boot_id(lab, "node2")
    machines.panic(lab, "node2")
    console = lab.node("node2").folder / "console.log"
    judge.wait_for(lambda: "Kernel panic" in console.read_text(errors="replace"), 60, "no panic")
    assert not _is_there(lab, "node2")
    machines.reboot(lab, "node2")
    judge.wait_for(machines.rebooted(lab, "node2", before), 300, "node2 did not come back")
    there = machines.inside(lab, "node2", "cat kept; [ -e /tmp/lost ] || echo gone")
    assert there == "kept\ngone\n"


@needs_machines
def test_a_pulled_cable_is_no_carrier_and_the_roce_port_is_down_without_the_rest(lab: Lab) -> None:
    machines.link(lab, "node2", up=False, interface="eth1")
    state = "cat /sys/class/infiniband/rxe0/ports/1/state /sys/class/net/eth1/carrier"
    judge.wait_for(
        lambda: machines.inside(lab, "node2", state) == "1: DOWN\n0\n", 60, "the port is up"
    )
    machines.link(lab, "node2", up=True, interface="eth1")
    judge.wait_for(
        lambda: machines.inside(lab, "node2", state) == "4: ACTIVE\n1\n", 60, "the port is down"
    )
    machines.link(lab, "node2", up=False)
    assert not _is_there(lab, "node2")
    machines.link(lab, "node2", up=True)
    judge.wait_for(lambda: _is_there(lab, "node2"), 60, "no answer")


@needs_machines
def test_a_machine_has_a_clock_and_a_disk_of_its_own(lab: Lab) -> None:
    machines.step_clock(lab, "node2", 3600)
    assert float(machines.inside(lab, "node2", "date +%s")) > time.time() + 3000
    assert float(machines.inside(lab, "node1", "date +%s")) < time.time() + 3000
    machines.read_only(lab, "node2")
    done = faultlab.ssh(lab, "node2", "touch /disk/file")
    assert b"Read-only file system" in done.stderr, done

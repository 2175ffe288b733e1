"""Benches on machines with kernels of their own: what runs, what is checked, and what a reboot in
the middle of a run leaves.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from orchestrator import lab as labs
from orchestrator.plan.framework import run_path
from orchestrator.procs import cmdline, snapshot
from tests.e2e.rig import QUICK, Controller, running
from tests.support import judge, machines, rdma_faults

pytestmark = pytest.mark.skipif(bool(machines.no_machines()), reason=machines.no_machines())


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    folder = tmp_path_factory.mktemp("machines")
    said: list[str] = []
    lab = labs.up(
        folder / "lab",
        nodes=2,
        gpus_per_node=0,
        mtu=rdma_faults.MTU,
        machines=machines.wanted(),
        say=said.append,
    )
    assert "2 nodes of 1 CPU slot" in said[-1] and "Linux" in said[-2], said
    (folder / "project").mkdir()
    made = Controller(lab, folder / "project")
    yield made
    made.let_go()
    labs.down(lab.directory)
    assert not lab.directory.exists()
    rest = [line for pid in snapshot() if str(lab.directory).encode() in (line := cmdline(pid))]
    assert not rest


def test_each_machine_has_a_kernel_and_a_roce_port_and_runs_a_bench(controller: Controller) -> None:
    lab = controller.lab
    boots = {machines.boot_id(lab, node.name) for node in lab.nodes}
    assert len(boots) == 2 and "" not in boots
    checks = ("check", "-f", "simulated", "--only", "infiniband", "--json")
    checked = controller.orch(*checks, timeout_s=300)
    ports = [check for check in checked.json["checks"] if check["name"] == "infiniband"]
    assert ["1 RoCE at" in port["found"] for port in ports] == [True, True], checked
    assert [port["verdict"] for port in ports] == ["ok", "ok"]
    done = controller.orch("bench", *QUICK, "--nodes", "1,2", "--gpus", "1", timeout_s=600)
    assert done.code == 0, done
    assert len(controller.runs) == 2
    controller.assert_all_bytes_are_home("node1", "node2")
    assert [machines.left(lab, node.name) for node in lab.nodes] == [[], []]


def named(controller: Controller) -> dict[str, str]:
    """Return by check and host what is found to be wrong with RDMA."""
    words = ("check", "-f", "simulated", "--only", "rdma,infiniband,limits", "--json")
    done = controller.orch(*words, timeout_s=300)
    bad = [check for check in done.json["checks"] if check["verdict"] != "ok"]
    return {f"{check['name']} {check['host']}": check["found"] for check in bad}


needs_pingpong = pytest.mark.skipif(
    not shutil.which("ibv_rc_pingpong"), reason="needs ibverbs-utils"
)


@needs_pingpong
def test_ports_without_a_fault_exchange_messages_and_nothing_is_named(
    controller: Controller,
) -> None:
    assert named(controller) == {}


@needs_pingpong
@pytest.mark.parametrize("kind", sorted(rdma_faults.FAULTS))
def test_a_fault_of_a_port_is_named_with_its_node(controller: Controller, kind: str) -> None:
    fault = rdma_faults.FAULTS[kind]
    # Of a pair whose ports are both active the first node is named, with the other one.
    with rdma_faults.broken(controller.lab, fault, "node1", "node2"):
        found = named(controller)
    assert fault.words in found.get(f"{fault.check} node1", ""), found
    assert not [name for name in found if name.endswith("node2")], found


def test_a_reboot_in_the_middle_of_a_run_ends_it_and_loses_no_log(controller: Controller) -> None:
    lab = controller.lab
    process = running(controller, nodes=2)
    before = machines.boot_id(lab, "node2")
    machines.reboot(lab, "node2")
    done = controller.end(process, 600)
    assert done.code == 3 and "node2: " in done.err, done
    judge.wait_for(machines.rebooted(lab, "node2", before), 300, "node2 did not come back")
    collected = controller.orch("collect", timeout_s=300)
    assert controller.manifest()["outcome"]["state"] == "lost", collected
    run = controller.runs[-1]
    for node in lab.nodes:
        there = judge.digests(lab, node.name, f".orch-node/{run_path(node.name, run.name)}/logs")
        here = {path.name: judge.sha256(path) for path in (run / "logs" / node.name).iterdir()}
        assert "node.out" in there and there.items() <= here.items(), (there, here, collected)
        assert machines.left(lab, node.name) == []

"""Ranks on CPUs: the arithmetic on trees of sysfs as real machines have them, the effect on real
processes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from noderun.amd import Amd
from noderun.binding import cpus_in, gpus_of_node, listed_cpus, shares_of
from noderun.nvidia import Nvidia
from tests.support import judge
from tests.support.machine import RUN, Machine, rank

ALLOWED = os.sched_getaffinity(0)


def tree(
    root: Path, nodes: dict[int, str], siblings: int, gpus: dict[str, int] | None = None
) -> Path:
    """Write what sysfs has of NUMA nodes and of the threads of cores: CPU n and n + ``siblings``
    are one core.
    """
    for number, cpus in nodes.items():
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        for cpu in cpus_in(cpus):
            (root / f"sys/devices/system/cpu/cpu{cpu}/topology").mkdir(parents=True)
            core = cpu % siblings
            (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").write_text(
                f"{core},{core + siblings}\n"
            )
    (root / "sys/devices/system/node/has_cpu").write_text("0\n")
    for address, number in (gpus or {}).items():
        (root / f"sys/bus/pci/devices/{address}").mkdir(parents=True)
        (root / f"sys/bus/pci/devices/{address}/numa_node").write_text(f"{number}\n")
    return root


HGX = {"0000:19:00.0": 0, "0000:3b:00.0": 0, "0000:4c:00.0": 0, "0000:5d:00.0": 0} | {
    "0000:9b:00.0": 1, "0000:bb:00.0": 1, "0000:cb:00.0": 1, "0000:db:00.0": 1,
}  # fmt: skip
FRONTIER = {"0000:c1:00.0": 3, "0000:c6:00.0": 3, "0000:c9:00.0": 1, "0000:ce:00.0": 1} | {
    "0000:d1:00.0": 0, "0000:d6:00.0": 0, "0000:d9:00.0": 2, "0000:de:00.0": 2,
}  # fmt: skip


@pytest.fixture
def hgx(tmp_path: Path) -> Path:
    """Two sockets with 56 cores and four GPUs each."""
    root = tree(tmp_path, {0: "0-55,112-167", 1: "56-111,168-223"}, 112, HGX)
    for place, address in enumerate(HGX):
        folder = root / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-{place}c1f\nBus Location: \t {address}\n"
        )
    return root


@pytest.fixture
def frontier(tmp_path: Path) -> Path:
    """One socket of four NUMA nodes, whose eight dies are not in the order of their nodes; the
    first node of KFD is the CPU.
    """
    root = tree(
        tmp_path,
        {n: f"{16 * n}-{16 * n + 15},{64 + 16 * n}-{79 + 16 * n}" for n in range(4)},
        64,
        FRONTIER,
    )
    for place, address in enumerate(["", *FRONTIER]):
        folder = root / "sys/class/kfd/kfd/topology/nodes" / str(place)
        folder.mkdir(parents=True)
        lines = {"cpu_cores_count": 0 if address else 128, "simd_count": 440 if address else 0}
        lines |= {
            "location_id": int(address[5:7], 16) << 8 if address else 0,
            "domain": 0,
            "unique_id": 0xB0 + place,
        }
        (folder / "properties").write_text(
            "".join(f"{name} {value}\n" for name, value in lines.items())
        )
    return root


def shares(
    root: Path, binding: str, ranks: int, devices: str = "", allowed: str = "0-223"
) -> list[tuple[str, Any]]:
    given = devices.split(",") if devices else []
    return [
        (listed_cpus(share["cpus"]), share["numa_node"])
        for share in shares_of(binding, ranks, given, cpus_in(allowed), str(root))
    ]


def test_a_rank_gets_the_cpus_of_the_numa_node_of_its_gpu(hgx: Path) -> None:
    first, second = ("0-55,112-167", 0), ("56-111,168-223", 1)
    assert shares(hgx, "numa", 8, "0,1,2,3,4,5,6,7") == [first] * 4 + [second] * 4
    assert shares(hgx, "numa", 3, "5,0,GPU-7c") == [second, first, second]


def test_ranks_of_one_numa_node_divide_its_cores_with_both_threads_of_each(hgx: Path) -> None:
    every = shares(hgx, "cores", 8, "0,1,2,3,4,5,6,7")
    assert every[:2] == [("0-13,112-125", 0), ("14-27,126-139", 0)] and every[-1] == (
        "98-111,210-223",
        1,
    )
    assert sorted(cpu for cpus, _ in every for cpu in cpus_in(cpus)) == list(
        range(224)
    )  # each once
    assert shares(hgx, "cores", 2, "7,6") == [("56-83,168-195", 1), ("84-111,196-223", 1)]


def test_each_vendor_tells_the_serial_numbers_of_its_gpus(hgx: Path) -> None:
    smi = (
        "<gpu><serial>0323</serial>\n<uuid>GPU-0c1f</uuid></gpu>\n<gpu><uuid>GPU-1c1f</uuid></gpu>"
    )
    gpus = Nvidia.numbered_gpus(str(hgx))
    assert Nvidia.serials(str(hgx), gpus, smi) == {"GPU-0c1f": "0323"}
    (hgx / "sys/bus/pci/devices/0000:19:00.0/serial_number").write_text("6925\n")
    of_amd = [["0000:19:00.0", "GPU-00b1"], ["0000:3b:00.0", "GPU-00b2"]]
    assert Amd.serials(str(hgx), of_amd, smi) == {"GPU-00b1": "6925", "GPU-00b2": ""}


def test_dies_of_amd_are_taken_in_the_order_of_their_driver(frontier: Path) -> None:
    assert gpus_of_node(str(frontier))[0] == ["0000:c1:00.0", "GPU-00000000000000b1"]
    assert [node for _, node in shares(frontier, "numa", 8, "0,1,2,3,4,5,6,7")] == [
        3,
        3,
        1,
        1,
        0,
        0,
        2,
        2,
    ]
    assert shares(frontier, "cores", 2, "4,GPU-00000000000000b6") == [
        ("0-7,64-71", 0),
        ("8-15,72-79", 0),
    ]


def test_without_gpus_ranks_are_spread_over_the_numa_nodes_in_order(hgx: Path) -> None:
    assert [node for _, node in shares(hgx, "numa", 4)] == [0, 0, 1, 1]
    assert [node for _, node in shares(hgx, "numa", 3)] == [0, 0, 1]
    assert [cpus for cpus, _ in shares(hgx, "cores", 3)] == [
        "0-27,112-139",
        "28-55,140-167",
        "56-111,168-223",
    ]


@pytest.mark.parametrize("device", ["MIG-77aa", "9", "GPU-none"])
def test_a_device_that_the_kernel_does_not_know_counts_as_none(hgx: Path, device: str) -> None:
    assert shares(hgx, "numa", 1, device) == [("0-55,112-167", 0)]


def test_only_cpus_that_the_process_may_use_are_divided(hgx: Path) -> None:
    """As in a job of Slurm that has eight CPUs of the second socket: the first has none, whatever
    its GPUs are near to.
    """
    assert shares(hgx, "cores", 2, "0,1", "56-59,168-171") == [
        ("56-57,168-169", 1),
        ("58-59,170-171", 1),
    ]


def test_more_ranks_than_cores_share_them_in_turn(tmp_path: Path) -> None:
    root = tree(tmp_path, {0: "0-3"}, 2)
    assert [cpus for cpus, _ in shares(root, "cores", 3)] == ["0,2", "1,3", "0,2"]


def test_a_kernel_without_numa_has_one_node_of_single_cores(tmp_path: Path) -> None:
    assert shares(tmp_path, "cores", 2, allowed="0-3") == [("0-1", 0), ("2-3", 0)]


def test_a_numa_node_that_the_firmware_does_not_tell_counts_as_none(tmp_path: Path) -> None:
    root = tree(tmp_path, {0: "0-1", 1: "2-3"}, 4, {"0000:19:00.0": -1})
    (root / "proc/driver/nvidia/gpus/0000:19:00.0").mkdir(parents=True)
    (root / "proc/driver/nvidia/gpus/0000:19:00.0/information").write_text("GPU UUID: \t GPU-0\n")
    assert shares(root, "numa", 1, "0", "0-3") == [("0-1", 0)]


def binding_file(binding: str, ranks: int) -> str:
    return f"printf '%s' '{json.dumps({'binding': binding, 'ranks': ranks, 'devices': []})}' >cpu_binding.json\n"


@pytest.mark.skipif(len(ALLOWED) < 2, reason="one CPU")
def test_ranks_have_the_cpus_that_their_records_name(machine: Machine) -> None:
    """Asked from outside, of the processes that the wrappers started."""
    code = 'import os, time; open("%d.pid" % os.getpid(), "w").close(); time.sleep(1000)'
    line = machine.start(
        RUN, binding_file("cores", 2) + rank(code) + " & " + rank(code, 1) + " & wait\n"
    )
    judge.wait_for(lambda: len(list(machine.folder(RUN).glob("*.pid"))) == 2, 20, "no ranks")
    found = [allowed_of(path.stem) for path in machine.folder(RUN).glob("*.pid")]
    line.order("stop", reason="enough")
    records = line.wait_for("ended")["record"]["ranks"]
    assert sorted(found) == sorted(record["bound"]["cpus"] for record in records)
    sets = [cpus_in(record["bound"]["cpus"]) for record in records]
    assert not sets[0] & sets[1] and sets[0] | sets[1] <= ALLOWED and all(sets)
    assert [record["bound"]["binding"] for record in records] == ["cores", "cores"]
    line.order("bye")
    line.close()


def allowed_of(pid: str) -> str:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(
        line.split()[1] for line in text.splitlines() if line.startswith("Cpus_allowed_list")
    )


def test_a_rank_that_cannot_be_bound_does_not_run(machine: Machine) -> None:
    line = machine.start(RUN, binding_file("numa", 1) + rank("print('ran')", 1))
    record = line.wait_for("ended")["record"]
    assert record["state"] == "failed"
    (written,) = machine.root.rglob("node.err")
    assert (
        "rank_wrapper.py: cpu_binding.json: expected a local rank below 1, got 1"
        in written.read_text()
    )
    line.order("bye")
    line.close()

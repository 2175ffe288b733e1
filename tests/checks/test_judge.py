"""What preflight judges: each check on nodes that pass it, on nodes that do not, and what it then says to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks import nvidia_smi as nvidiasmi
from orchestrator.checks.among import characteristics, same_machine, shared, unlike
from orchestrator.checks.check import NAMES, Check
from orchestrator.checks.facts import ports_of
from orchestrator.checks.gpu_states import gpu_states, selected
from orchestrator.checks.judge import among, judge, unfit
from orchestrator.checks.load import load_checks
from orchestrator.errors import RunError
from orchestrator.inventory import versions
from orchestrator.inventory.hosts import Host
from orchestrator.plan.folders import open_framework

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"
HOST = Host("gpu01", "10.11.0.2", gpus=2, vars={"interface": "ib0", "data_dir": "/data"})
GIB = 1 << 30
DATA_SET = {"digest": "ab" * 32, "names": 9, "sizes": 7, "bytes": 700, "whole": True}
IPV4 = "0000:0000:0000:0000:0000:ffff:0a0b:0002"  # a GID that stands for 10.11.0.2


def port(device: str = "mlx5_0", state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", **more: Any) -> dict[str, Any]:
    return {
        "device": device,
        "port": "1",
        "state": state,
        "phys_state": "5: LinkUp",
        "rate": rate,
        "link_layer": "InfiniBand",
    } | more


def healthy(gpus: str = "h100-hgx-550.xml", topology: str = "h200-hgx.topo", **changes: Any) -> dict[str, Any]:
    """Return the facts of a node without a fault, but for those that the GPUs of the file have."""
    ports = ports_of([port("mlx5_0"), port("mlx5_1")])
    return {
        "runner_python": "3.10.12", "kernel": "5.15.0-105-generic", "machine": "x86_64", "cpu": "Xeon 8480C", "cores": 224,
        "memory_bytes": 2000 * GIB, "disk_free_bytes": 900 * GIB, "workdir": "/w", "login_s": 0.2, "clock_off_s": 0,
        "ports_busy": [], "boot_id": "b", "shm_bytes": 1000 * GIB,
        "framework": {"torch": "2.11.0", "cuda": "12.4", "nccl": "2.28.9"}, "host_key": "k",
        "limits": {"memlock": [None, None], "nofile": [1024, 1 << 20], "nproc": [None, None], "core": [0, None]},
        "interface": {"state": "up", "mtu": 4092, "speed_mbit": 400000, "kind": "32"},
        "route": {"interface": "eth0", "mtu": 1500, "speed_mbit": 25000, "kind": "1", "to": "10.11.0.3", "local": False},
        "hostname_addresses": ["10.11.0.2"], "data_dir": True, "data_set": dict(DATA_SET), "xids": [], "programs": {},
        "infiniband": ports, "infiniband_gbit": 800.0, "peermem": True, "open_driver": False,
        "topology": nvidiasmi.topology((DATA / topology).read_text()),
        **nvidiasmi.gpu_facts((DATA / gpus).read_text(), {"20461": "alice"}),
    } | changes  # fmt: skip


def judged(facts: dict[str, Any], host: Host = HOST) -> dict[str, Check]:
    return {check.name: check for check in judge(host, facts, None, None)}


def test_a_disk_or_a_program_that_cannot_be_used_fails_with_path_and_cause() -> None:
    checks = judged(healthy(disk_error="Read-only file system", programs={"/p": {"error": "/p/x.py: Permission denied"}}))
    assert (checks["disk"].verdict, checks["disk"].found) == ("failed", "/w: Read-only file system")
    assert judged(healthy(disk_free_inodes=1000))["disk"].verdict == "ok"
    assert judged(healthy(disk_free_inodes=999))["disk"].found == "999 free inodes in /w"
    assert (checks["program"].verdict, checks["program"].found) == ("failed", "/p/x.py: Permission denied")
    assert "vars.workdir" in checks["disk"].hint and "chmod" in checks["program"].hint
    copies = {"n1": {"programs": {"/p": {"error": "/p/x.py: Permission denied"}}}, "n2": {"programs": {"/p": "a"}}}
    assert unlike(copies | {"n3": {"programs": {"/p": "a"}}}) == []
    (other,) = unlike(copies | {"n3": {"programs": {"/p": "b"}}})
    assert (other.host, other.expected) == ("n3", "the same bytes as on n2")


def test_a_path_in_a_folder_that_lab_nodes_have_for_themselves_is_explained() -> None:
    facts = healthy(programs={"/tmp/p": None, "/opt/p": None})
    lab = replace(HOST, vars={**HOST.vars, "lab_private": "/home /tmp"})
    private, shared = [check for check in judge(lab, facts, None, None) if check.name == "program"]
    assert (private.found, private.expected) == ("no /tmp/p on the node", "/tmp/p")
    assert "/tmp is private to each node of a lab" in private.hint and "orch lab up --share" in private.hint
    assert "lab" not in shared.hint
    assert all("lab" not in check.hint for check in judge(HOST, facts, None, None) if check.name == "program")


def test_a_node_that_another_run_holds_is_a_warning_that_names_the_owner() -> None:
    check = judged(healthy(held_by="run r1 of me@desk, process 7, since noon"))["held"]
    assert (check.verdict, check.found) == ("warning", "by run r1 of me@desk, process 7, since noon")
    assert "held" not in judged(healthy(held_by=None))


def one(name: str, facts: dict[str, Any], host: Host = HOST) -> tuple[str, str]:
    check = judged(facts, host)[name]
    if check.verdict != "ok":
        assert check.expected and check.hint
    return check.verdict, check.found


def test_a_healthy_node_passes_every_check_and_all_names_are_known() -> None:
    facts = healthy()
    facts["gpu"]["ecc_now"] = 0
    checks = judged(facts)
    assert {check.verdict for check in checks.values()} == {"ok"}, checks
    assert set(checks) == set(NAMES) - {
        "held",
        "container",
        "leftovers",
        "env",
        "vars",
        "framework",
        "slots",
        "login",
        "clock",
        "port",
        "program",
        "expect",
        "load",
        "alike",
        "shared",
    }


def test_nodes_that_share_their_work_directory_are_named() -> None:
    firsts = {"n1": "n1 in c1", "n2": "n1 in c1", "n3": "n3 in c1", "n4": None, "n5": None}
    checks = shared({host: {"workdir": "/home/u/.orch-node", "workdir_first": first} for host, first in firsts.items()})
    assert [(check.host, check.verdict) for check in checks] == [("n1", "ok"), ("n2", "ok")]
    assert {check.found for check in checks} == {
        "/home/u/.orch-node is one directory on n[1-2]; each node has its own folder in it"
    }


def test_every_check_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "preflight.md").read_text()
    assert [name for name in NAMES if f"\n| `{name}` |" not in text] == []


@pytest.mark.parametrize(
    ("name", "gpus", "verdict", "found"),
    [
        ("gpus", "v100-dgx1-418.xml", "ok", "2 x Tesla V100-SXM2-16GB 16 GiB, driver 418.126.02"),
        ("gpus", "v100s-460.xml", "failed", "1 GPUs"),
        ("idle", "h100-hgx-550.xml", "ok", "all 2 GPUs idle"),
        ("cuda", "h100-hgx-550.xml", "ok", "the driver's 12.4, the framework's 12.4"),
        ("cuda", "v100-dgx1-418.xml", "warning", "the driver's CUDA is 10.1, the framework's 12.4"),
        ("ecc", "h100-hgx-550.xml", "warning", "GPU 1: 3 uncorrected errors since the driver was loaded"),
        ("ecc", "v100-dgx1-418.xml", "warning",
         "GPU 1: 1 uncorrected errors since the driver was loaded, page retirement pending"),
        ("ecc", "a100-dgx-525.xml", "warning", "GPU 1: row remapping pending"),
        ("clocks", "h100-hgx-550.xml", "ok", "up to 1980 MHz, 700 W"),
        ("clocks", "v100-dgx1-418.xml", "warning", "GPU 1: power limited to 250 W of 300 W, clock set to 1215 MHz of 1290 MHz"),
        ("clocks", "a100-dgx-525.xml", "warning",
         "GPU 2: clocks lowered by the hardware, by half or more and temperature, by half or more"),
        ("modes", "h100-hgx-550.xml", "ok", "compute mode Default, persistence enabled"),
        ("modes", "a100-dgx-525.xml", "warning", "GPU 1: MIG is on"),
        ("pcie", "h100-hgx-550.xml", "ok", "generation 5 x16"),
        ("pcie", "a100-dgx-525.xml", "warning", "GPU 2: 8 lanes of 16"),
        ("fabric", "h100-hgx-550.xml", "ok", "NVSwitch fabric complete"),
    ],
)  # fmt: skip
def test_gpus_of_several_generations_are_judged(name: str, gpus: str, verdict: str, found: str) -> None:
    assert one(name, healthy(gpus)) == (verdict, found)


def test_a_fabric_that_is_not_complete_and_memory_past_repair_refuse_a_run() -> None:
    facts = healthy("h100-no-fabric-580.xml")
    host = replace(HOST, gpus=1)
    assert one("fabric", facts, host) == ("failed", "GPU 0: In Progress")
    assert one("ecc", facts, host) == ("failed", "GPU 0: rows of memory could not be remapped")
    error = unfit(judge(host, facts, None, None))[0]
    assert isinstance(error, RunError) and (error.host, error.kind) == ("gpu01", "node_unfit")


def test_an_old_consumer_card_has_no_checks_of_what_it_does_not_have() -> None:
    checks = judged(healthy("gtx1070-418.xml", "rtx5090-pair.topo"), replace(HOST, gpus=1))
    assert {"ecc", "fabric"}.isdisjoint(checks)
    assert {checks[name].verdict for name in ("gpus", "idle", "clocks", "modes", "pcie", "links")} == {"ok"}


def test_who_uses_the_gpus_is_named() -> None:
    found = one("idle", healthy("v100s-460.xml"), replace(HOST, gpus=1))
    assert found == ("warning", "GPU 0: python3 of alice (process 20461); GPU 0: tool of an unknown user (process 20999)")
    hidden = healthy("v100s-460.xml", gpu_processes=[])
    assert (
        one("idle", hidden, replace(HOST, gpus=1))[1] == "GPU 0: memory or time used by processes that nvidia-smi does not list"
    )


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (None, "no nvidia-smi, amd-smi or rocm-smi"),
        ([], "0 GPUs"),
        ("nvidia-smi did not answer in 10 s", "nvidia-smi did not answer in 10 s"),
    ],
)
def test_a_node_without_an_answer_from_nvidia_smi_fails_and_is_judged_no_further(gpus: Any, found: str) -> None:
    checks = judged(healthy() | {"gpus": gpus}, replace(HOST, gpus=None))
    assert (checks["gpus"].verdict, checks["gpus"].found) == ("failed", found)
    assert {"idle", "ecc", "clocks"}.isdisjoint(checks)


@pytest.mark.parametrize(
    ("xids", "verdict", "found"),
    [
        ([], "ok", "no Xid since the machine started"),
        ("not readable: Operation not permitted", "ok", "kernel log not readable: Operation not permitted"),
        ([{"gpu": "3", "code": 31, "count": 1, "age_s": 300, "text": "Ch 0b"}], "ok", "GPU 3: Xid 31 (Ch 0b) 5 min ago"),
        ([{"gpu": "3", "code": 31, "count": 1, "age_s": 9, "text": "x"},
          {"gpu": "0", "code": 79, "count": 2, "age_s": 7200, "text": "GPU has fallen off the bus."}],
         "warning", "GPU 0: Xid 79 (fallen off the bus) 2 h ago"),
    ],
)  # fmt: skip
def test_xids_of_the_hardware_warn_and_those_of_programs_are_told(xids: Any, verdict: str, found: str) -> None:
    assert one("xid", healthy(xids=xids)) == (verdict, found)


def test_a_pair_without_its_nvlink_is_named_where_a_switch_joins_all_others() -> None:
    text = (DATA / "h200-hgx.topo").read_text().splitlines()
    for row, column in ((3, 6), (6, 3)):  # GPU2 and GPU5
        cells = text[row].split("\t")
        cells[column] = "SYS"
        text[row] = "\t".join(cells)
    assert one("links", healthy(topology="h200-hgx.topo") | {"topology": nvidiasmi.topology("\n".join(text))}) == (
        "warning",
        "GPU2-GPU5 SYS",
    )
    assert one("links", healthy(topology="v100-dgx1.topo")) == ("ok", "NV1 8 pairs, NV2 8 pairs, SYS 12 pairs")


# ------------------------------------------------------------------ network


@pytest.mark.parametrize(
    ("ports", "verdict", "found"),
    [
        ([port("a"), port("b")], "ok", "2 of 2 ports active, 2 InfiniBand at 400 Gb/s"),
        ([port("a"), port("b", "1: DOWN", phys_state="3: Disabled")], "ok", "1 of 2 ports active, 1 InfiniBand at 400 Gb/s"),
        ([port("a"), port("b", "2: INIT")], "warning", "b:1 INIT, LinkUp"),
        ([port("a", "1: DOWN", phys_state="2: Polling")], "warning", "a:1 DOWN, Polling"),
        ([port("a"), port("b", rate="100 Gb/sec (4X EDR)")], "warning", "b:1 at 100 Gb/s"),
        ([port("a"), port("b", rate="25 Gb/sec (1X EDR)", link_layer="Ethernet", gids=[[3, IPV4, "RoCE v2", "eth1"]])], "ok",
         "2 of 2 ports active, 1 InfiniBand at 400 Gb/s, 1 RoCE at 25 Gb/s, RoCE v2 for IPv4 at GID 3"),
        ([port("a", link_layer="Ethernet", gids=[[0, IPV4, "IB/RoCE v1", "eth1"]])], "warning", "no RoCE v2 GID on a:1"),
    ],
)  # fmt: skip
def test_infiniband_ports_are_judged(ports: list[dict[str, Any]], verdict: str, found: str) -> None:
    assert one("infiniband", healthy(infiniband=ports_of(ports))) == (verdict, found)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"peermem": True}, "ok"),
        ({"peermem": False, "open_driver": True, "kernel": "5.15.0"}, "ok"),
        ({"peermem": False, "open_driver": True, "kernel": "5.4.0-1"}, "warning"),
        ({"peermem": False, "open_driver": False, "kernel": "6.8.0"}, "warning"),
    ],
)
def test_direct_transfers_need_a_module_or_the_open_driver_on_a_new_kernel(changes: dict[str, Any], verdict: str) -> None:
    assert one("gdr", healthy(**changes))[0] == verdict


def test_without_infiniband_nothing_is_asked_of_it() -> None:
    checks = judged(healthy(infiniband=[], infiniband_gbit=None, peermem=False))
    assert {"infiniband", "gdr"}.isdisjoint(checks)


@pytest.mark.parametrize(
    ("changes", "verdict", "found"),
    [
        ({}, "ok", "to the master through eth0, MTU 1500, 25 Gb/s"),  # ssh and rendezvous use another network than InfiniBand
        ({"interface": {"state": "up", "mtu": 9000, "speed_mbit": None, "kind": "1"}}, "warning",
         "to the master through eth0, MTU 1500, 25 Gb/s"),
        ({"route": None}, "failed", "no route to the master's address"),
    ],
)  # fmt: skip
def test_the_way_to_the_master_is_judged(changes: dict[str, Any], verdict: str, found: str) -> None:
    assert one("route", healthy(**changes)) == (verdict, found)


@pytest.mark.parametrize(
    ("addresses", "verdict"), [(["10.11.0.2"], "ok"), (["127.0.1.1"], "warning"), ([], "warning"), (["::1", "10.11.0.2"], "ok")]
)
def test_the_own_name_must_stand_for_an_address_that_others_reach(addresses: list[str], verdict: str) -> None:
    assert one("hostname", healthy(hostname_addresses=addresses))[0] == verdict


# ------------------------------------------------------------------ host


@pytest.mark.parametrize(
    ("limits", "gbit", "verdict", "found"),
    [
        ({"memlock": [65536, 65536], "nofile": [1024, 4096], "nproc": [None, None]}, 400.0, "warning", "memlock 64 KiB"),
        ({"memlock": [8 << 20, 8 << 20], "nofile": [1024, 4096], "nproc": [4096, None]}, None, "ok",
         "memlock 8 MiB, nofile 4096, nproc 4096"),
        ({"memlock": [None, None], "nofile": [1024, 1024], "nproc": [4096, None]}, None, "warning", "nofile 1024"),
        ({"memlock": [None, None], "nofile": [1024, None], "nproc": [512, None]}, 400.0, "warning", "nproc 512"),
    ],
)  # fmt: skip
def test_limits_are_judged_as_a_run_gets_them(limits: dict[str, Any], gbit: float | None, verdict: str, found: str) -> None:
    assert one("limits", healthy(limits=limits, infiniband_gbit=gbit)) == (verdict, found)


def test_little_shared_memory_warns() -> None:
    assert one("shm", healthy(shm_bytes=64 << 20)) == ("warning", "/dev/shm of 64 MiB")
    assert one("shm", healthy(shm_bytes=None)) == ("warning", "no /dev/shm")


def test_facts_of_an_older_deploy_are_judged_by_what_they_have() -> None:
    old = {
        "runner_python": "3.10", "kernel": "5", "cores": 2, "cpu": "x", "disk_free_bytes": GIB, "workdir": "/w", "login_s": 0.1,
        "framework": {}, "ports_busy": [], "nofile": 1024, "interface": {"state": "up", "mtu": 1500},
        "gpus": [{"index": "0", "name": "H200", "driver": "580", "memory_mib": "143771", "used_mib": "0", "utilization": "0"}],
    }  # fmt: skip
    checks = judge(Host("a", "a", gpus=1, vars={"interface": "eth0"}), old, None, None)
    assert [check.name for check in checks if check.verdict != "ok"] == [] and among({"a": old, "b": old}) == []


# ------------------------------------------------------------------ expected by the inventory

MET = {
    "gpu": "NVIDIA H100*", "gpus": 2, "memory_gib": 79.5, "driver": ">=550, <560", "nvlink": "NV18", "ecc": True, "mig": False,
    "persistence": True, "compute_mode": "Default", "power_limit_w": 700, "pcie": {"generation": 5, "width": 16},
    "cuda": "12.*", "nccl": ">=2.20", "versions": {"torch": ">=2.9"},
    "infiniband": {"ports": 2, "rate_gbit": 400, "link_layer": "InfiniBand"},
    "mtu": 4092, "speed_gbit": 400, "memlock": "unlimited", "nofile": 1 << 20, "nproc": "unlimited", "shm_gib": 1000,
    "ram_gib": 2000, "cores": 224, "cpu": "Xeon*", "kernel": "5.15*",
}  # fmt: skip
UNMET = {
    "gpu": ("NVIDIA H200", "gpu NVIDIA H100 80GB HBM3", "gpu NVIDIA H200"),
    "gpus": (8, "gpus 2", "gpus 8"),
    "memory_gib": (80, "memory_gib 79.647 GiB", "memory_gib 80 GiB or more"),
    "driver": ("580*", "driver 550.54.15", "driver 580*"),
    "nvlink": ("NV12", "nvlink NV18", "nvlink NV12"),
    "ecc": (False, "ecc on", "ecc off"),
    "mig": (True, "mig off", "mig on"),
    "persistence": (False, "persistence on", "persistence off"),
    "compute_mode": ("Exclusive_Process", "compute_mode Default", "compute_mode Exclusive_Process"),
    "power_limit_w": (701, "power_limit_w 700 W", "power_limit_w 701 W or more"),
    "pcie": ({"generation": 5, "width": 32}, "pcie.width 16", "pcie.width 32 or more"),
    "cuda": (">=12.6", "cuda 12.4", "cuda >=12.6"),
    "nccl": (">=2.29", "nccl 2.28.9", "nccl >=2.29"),
    "versions": ({"torch": "2.11*", "cudnn": ">=9"}, "versions.cudnn unknown", "versions.cudnn >=9"),
    "infiniband": ({"ports": 8, "rate_gbit": 400}, "infiniband 2 such", "infiniband 8 ports ACTIVE at 400 Gb/s"),
    "mtu": (9000, "mtu 4092", "mtu 9000"),
    "speed_gbit": (800, "speed_gbit 400 Gb/s", "speed_gbit 800 Gb/s or more"),
    "nofile": ("unlimited", "nofile 1048576", "nofile unlimited"),
    "shm_gib": (1001, "shm_gib 1000 GiB", "shm_gib 1001 GiB or more"),
    "ram_gib": (2001, "ram_gib 2000 GiB", "ram_gib 2001 GiB or more"),
    "cores": (112, "cores 224", "cores 112"),
    "cpu": ("EPYC*", "cpu Xeon 8480C", "cpu EPYC*"),
    "kernel": (">=6", "kernel 5.15.0-105-generic", "kernel >=6"),
}


def expecting(**expect: Any) -> Host:
    return replace(HOST, expect=expect)


def test_every_expectation_that_an_inventory_may_hold_is_tried_here() -> None:
    from orchestrator.inventory.values import MachineValues

    known = MachineValues.model_fields["expect"].annotation
    assert set(MET) == set(known.model_fields) and set(UNMET) == set(MET) - {"memlock", "nproc"}  # type: ignore[union-attr]


@pytest.mark.parametrize("key", MET)
def test_an_expectation_that_is_met_is_told_by_its_name(key: str) -> None:
    assert one("expect", healthy(), expecting(**{key: MET[key]})) == ("ok", f"{key} as expected")


@pytest.mark.parametrize("key", UNMET)
def test_an_expectation_that_is_not_met_fails_with_both_values(key: str) -> None:
    value, found, expected = UNMET[key]
    check = judged(healthy(), expecting(**{key: value}))["expect"]
    assert (check.verdict, check.found, check.expected) == ("failed", found, expected)
    assert f"correct {key.partition('.')[0]}" in check.hint


@pytest.mark.parametrize("key", ["gpu", "nvlink", "infiniband", "nccl", "mtu", "memlock", "shm_gib", "ecc"])
def test_what_nothing_is_known_of_is_not_as_expected(key: str) -> None:
    unknown = {"gpus": None, "topology": None, "infiniband": [], "framework": {"error": "x"}, "interface": None, "route": None}
    facts = {name: value for name, value in (healthy() | unknown).items() if name not in ("limits", "shm_bytes")}
    assert one("expect", facts, expecting(**{key: MET[key]}))[0] == "failed"


@pytest.mark.parametrize(
    ("found", "required", "is_met"),
    [
        ("2.28.9", ">=2.20", True), ("2.9.1", ">=2.20", False), ("2.20", ">=2.20.0", True), ("12.8", ">=12.4,<13", True),
        ("13.0", ">=12.4, <13", False), ("2.11.0+cu130", "==2.11", True), ("2.11.0+cu130", "!=2.11", False),
        ("580.95.05", "580*", True), ("5801", "580.*", False), ("unknown", ">=1", False),
        ("NVIDIA H200", "NVIDIA H[12]00", True),
    ],
)  # fmt: skip
def test_versions_are_compared_number_by_number(found: str, required: str, is_met: bool) -> None:
    assert versions.is_requirement(required) and versions.meets(found, required) is is_met


# ------------------------------------------------------------------ among nodes


def four(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"gpu0{n}": healthy(boot_id=str(n)) | changes.get(f"gpu0{n}", {}) for n in (1, 2, 3, 4)}


def test_nodes_alike_say_nothing() -> None:
    assert among(four()) == [] and same_machine(four()) == []


def test_the_node_that_is_not_like_the_others_is_named_with_both_values() -> None:
    other = {"framework": {"torch": "2.10.0", "cuda": "12.4", "nccl": "2.28.9"}, "kernel": "6.8.0"}
    checks = among(four(gpu04=other | {"interface": {"state": "up", "mtu": 2044, "kind": "32"}}))
    assert [(check.host, check.verdict, check.found, check.expected) for check in checks] == [
        ("gpu04", "warning", "kernel 6.8.0", "kernel 5.15.0-105-generic as on gpu[01-03]"),
        ("gpu04", "warning", "MTU 2044", "MTU 4092 as on gpu[01-03]"),
        ("gpu04", "warning", "torch 2.10.0", "torch 2.11.0 as on gpu[01-03]"),
    ]


def test_a_node_with_less_memory_or_fewer_cores_is_named_and_what_firmware_reserves_is_not() -> None:
    checks = among(four(gpu02={"memory_bytes": 1500 * GIB, "cores": 112}, gpu03={"memory_bytes": 1985 * GIB}))
    assert [(check.host, check.verdict, check.found, check.expected) for check in checks] == [
        ("gpu02", "warning", "cores 112", "cores 224 as on gpu[01,03-04]"),
        ("gpu02", "warning", "memory 1500 GiB", "memory 2000 GiB as on gpu[01,03-04]"),
    ]


def test_other_gpus_drivers_and_links_are_named() -> None:
    odd = {
        key: value for key, value in healthy("a100-dgx-525.xml", "v100-dgx1.topo").items() if key in ("gpus", "gpu", "topology")
    }
    found = {check.found: check.host for check in among(four(gpu02=odd))}
    assert found == {
        "gpu NVIDIA A100-SXM4-80GB": "gpu02",
        "driver 525.147.05": "gpu02",
        "MIG Disabled and Enabled": "gpu02",
        "power limit 400 W": "gpu02",
        "GPU links 8 NV1, 8 NV2, 12 SYS": "gpu02",
    }


def test_one_machine_under_two_names_is_an_error() -> None:
    twice = four(gpu03={"boot_id": "1"})
    assert [str(error) for error in same_machine(twice)] == [
        "gpu01 and gpu03 are one machine (same host key, same boot). name it once in the inventory"
    ]
    untold = {name: {**values, "host_key": ""} for name, values in twice.items()}
    assert same_machine(untold) == []


def test_facts_go_into_json_and_come_back_the_same() -> None:
    facts = healthy()
    again = json.loads(json.dumps(facts))
    assert judge(HOST, again, None, None) == judge(HOST, facts, None, None)


@pytest.mark.parametrize("devices", ["1", " GPU-1b"])
def test_only_the_gpus_of_a_run_are_looked_at(devices: str) -> None:
    """Beside the second GPU works somebody else, on one that is hot, throttled and has an Xid."""
    facts = healthy("h200-pair-580.xml", "h200-pair.topo")
    facts["gpu"] |= {"uuid": ["GPU-0a", "GPU-1b"], "slowed_by": ["hw_slowdown", "gpu_idle"], "power_limit_w": [300, 700]}
    facts["gpus"][0] |= {"used_mib": 90_000, "utilization": 100, "name": "NVIDIA L4"}
    facts["gpu_processes"] = [{"pid": "7", "gpu": "0", "name": "train", "user": "bob"}]
    facts["xids"] = [{"gpu": "0", "code": 79, "count": 1, "age_s": 60, "text": ""}]
    whole = judged(facts)
    assert [name for name, check in whole.items() if check.verdict != "ok" and name in ("idle", "xid", "clocks")] == [
        "idle", "xid", "clocks",
    ]  # fmt: skip
    host = Host("lab2", "10.11.0.3", gpus=1, vars={**HOST.vars, "cuda_visible_devices": devices})
    own = selected(facts, devices)
    checks = judged(own, host)
    assert checks["gpus"].found.startswith("1 x NVIDIA H200 140 GiB, driver 580.159.04")
    assert {checks[name].verdict for name in ("gpus", "idle", "xid", "clocks")} == {"ok"} and "links" not in checks
    assert [gpu["index"] for gpu in gpu_states(own)] == ["1"]
    assert characteristics(own)["gpu"] == "NVIDIA H200" and characteristics(own)["power limit"] == "700 W"


def test_a_listed_gpu_that_does_not_exist_is_missed() -> None:
    host = Host("lab2", "10.11.0.3", gpus=2, vars={**HOST.vars, "cuda_visible_devices": "1,2"})
    check = judged(selected(healthy("h200-pair-580.xml"), "1,2"), host)["gpus"]
    assert (check.verdict, check.found) == ("failed", "1 GPUs in vars.cuda_visible_devices 1,2")


def test_mig_instances_leave_the_facts_of_all_gpus_and_are_counted() -> None:
    facts = healthy("h200-pair-580.xml")
    assert selected(facts, "MIG-0f") == facts | {"devices": "MIG-0f", "instances": 1}
    host = Host("lab2", "10.11.0.3", gpus=3, vars={**HOST.vars, "cuda_visible_devices": "MIG-0,MIG-1,MIG-2"})
    assert judged(selected(facts, "MIG-0,MIG-1,MIG-2"), host)["gpus"].verdict == "ok"
    assert judged(selected(facts, "MIG-0,MIG-1"), host)["gpus"].verdict == "failed"
    assert selected(facts | {"gpus": "no nvidia-smi"}, "0")["gpus"] == "no nvidia-smi"


def load(own_s: float, switches: tuple[int, int], **changes: Any) -> dict[str, Any]:
    return {"load": {"count": 8, "seconds": 10.0, "busy_s": 45.0, "own_s": own_s, "switches": switches} | changes}


def test_processors_in_use_by_others_are_a_warning_and_those_of_the_look_itself_are_not() -> None:
    facts = {"a": load(44.0, (5, 9)), "b": load(20.0, (50, 90)), "c": load(1.0, (500, 900), seconds=0.1), "d": {}}
    found = {check.host: (check.verdict, check.found) for check in load_checks(facts)}
    assert found == {
        "a": ("ok", "8 processors, less than a tenth in use"),
        "b": ("warning", "other processes use 2.5 of 8 processors"),
    }
    together = {"a": load(20.0, (5, 9)), "b": load(24.0, (7, 11))}  # two nodes of a lab: one machine
    assert {check.verdict for check in load_checks(together)} == {"ok"}


def test_a_reference_that_stays_literal_is_named_without_its_value() -> None:
    env = {"CACHE": "$HOME/c", "PATH": "/x:$PATH", "PRICE": "5$", "TOKEN": "a${B}c"}
    warned = judged(healthy(), replace(HOST, env=env))["env"]
    assert warned.verdict == "warning" and warned.found == "$ in CACHE, TOKEN is passed on as it is written"
    assert "env" not in judged(healthy(), replace(HOST, env={"PATH": "$PATH"}))


def test_a_variable_whose_name_is_almost_one_that_orch_reads_is_named() -> None:
    variables = {"inteface": "eth0", "pyhton": "/x", "slot": 2, "models_dir": "/m", "color": "red", "data_dir": "/d"}
    warned = judged(healthy(), replace(HOST, vars=variables))["vars"]
    assert warned.found == "inteface, pyhton, slot, which orch does not read"
    assert "did you mean interface instead of inteface?" in warned.hint
    assert "vars" not in judged(healthy(), replace(HOST, vars={"models_dir": "/m", "interface": "eth0", "data_dir": "/d"}))


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            "setup: line 1 exited with 127: module: command not found",
            "correct setup: of the folder, or vars.setup of this host",
        ),
        ("python3: No module named 'torch'", "install it for /opt/python3, or set vars.python of this host"),
    ],
)
def test_a_probe_that_fails_is_blamed_on_what_failed(error: str, hint: str) -> None:
    framework = open_framework("pytorch").framework
    host = replace(HOST, vars={**HOST.vars, "python": "/opt/python3"})
    by_name = {check.name: check for check in judge(host, healthy(framework={"error": error}), framework, None)}
    assert by_name["pytorch"].hint.startswith(hint)

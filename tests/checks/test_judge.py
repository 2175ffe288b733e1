"""What preflight judges: each check on nodes that pass it, on nodes that do not, and what it then
says to do.
"""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orchestrator.checks
from orchestrator.checks.check import NAMES
from orchestrator.checks.cross_node import find_shared_workdirs, local_routes, same_machine, unlike
from orchestrator.checks.facts import ports_of
from orchestrator.checks.judge import among, judge
from orchestrator.checks.load import load_checks
from orchestrator.inventory.hosts import Host
from orchestrator.plan.folders import open_framework
from tests.support.node_facts import GIB, HOST, healthy, judged, known, port, verdict_of

IPV4 = "0000:0000:0000:0000:0000:ffff:0a0b:0002"  # a GID that stands for 10.11.0.2


def test_a_disk_or_a_program_that_cannot_be_used_fails_with_path_and_cause() -> None:
    checks = judged(
        healthy(
            disk_error="Read-only file system",
            programs={"/p": {"error": "/p/x.py: Permission denied"}},
        )
    )
    assert (checks["disk"].verdict, checks["disk"].found) == ("failed", "/w: Read-only file system")
    assert judged(healthy(disk_free_inodes=1000))["disk"].verdict == "ok"
    assert judged(healthy(disk_free_inodes=999))["disk"].found == "999 free inodes in /w"
    check = judged(healthy(workdir_open="/scratch belongs to mallory"))["disk"]
    assert check.verdict == "warning" and check.found.endswith(
        " free in /w; /scratch belongs to mallory"
    )
    assert judged(healthy(workdir_open=""))["disk"].verdict == "ok"
    assert (checks["program"].verdict, checks["program"].found) == (
        "failed",
        "/p/x.py: Permission denied",
    )
    assert "vars.workdir" in checks["disk"].hint and "chmod" in checks["program"].hint
    copies = {
        "n1": {"programs": {"/p": {"error": "/p/x.py: Permission denied"}}},
        "n2": {"programs": {"/p": "a"}},
    }
    assert unlike(known(copies | {"n3": {"programs": {"/p": "a"}}})) == []
    (other,) = unlike(known(copies | {"n3": {"programs": {"/p": "b"}}}))
    assert (other.host, other.expected) == ("n3", "the same bytes as on n2")


def test_a_path_in_a_folder_that_lab_nodes_have_for_themselves_is_explained() -> None:
    facts = healthy(programs={"/tmp/p": None, "/opt/p": None})
    lab = replace(HOST, vars={**HOST.vars, "lab_private": "/home /tmp"})
    private, shared = [check for check in judge(lab, facts, None, None) if check.name == "program"]
    assert (private.found, private.expected) == ("no /tmp/p on the node", "/tmp/p")
    assert (
        "/tmp is private to each node of a lab" in private.hint
        and "orch lab up --share" in private.hint
    )
    assert "lab" not in shared.hint
    assert all(
        "lab" not in check.hint
        for check in judge(HOST, facts, None, None)
        if check.name == "program"
    )


def test_a_node_that_another_run_holds_is_a_warning_that_names_the_owner() -> None:
    check = judged(healthy(held_by="run r1 of me@desk, process 7, since noon"))["held"]
    assert (check.verdict, check.found) == (
        "warning",
        "by run r1 of me@desk, process 7, since noon",
    )
    assert "held" not in judged(healthy(held_by=None))


def test_a_process_that_an_earlier_run_has_left_fails_with_its_state() -> None:
    check = judged(healthy(processes_left=[[4711, "python", "D", "r-001"]]))["leftovers"]
    assert (check.verdict, check.found) == ("failed", "python (4711, state D) of r-001")
    assert "orch cancel" in check.hint and "state D" in check.hint
    assert "leftovers" not in judged(healthy(processes_left=[]))


def test_every_name_that_a_check_gives_itself_is_known() -> None:
    """A check that is silent about healthy nodes has a name all the same."""
    given = {
        call.args[1].value
        for path in Path(orchestrator.checks.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("ok", "warning", "failure")
        and isinstance(call.args[1], ast.Constant)
    }
    assert given <= set(NAMES) and len(given) > 20


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
    facts = {
        host: {"workdir": "/home/u/.orch-node", "workdir_first": first}
        for host, first in firsts.items()
    }
    checks = find_shared_workdirs(known(facts))
    assert [(check.host, check.verdict) for check in checks] == [("n1", "ok"), ("n2", "ok")]
    assert {check.found for check in checks} == {
        "/home/u/.orch-node is one directory on n[1-2]; each node has its own folder in it"
    }


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
        ([port("a"), port("b", "6: ACTIVE_DEFER")], "warning", "b:1 ACTIVE_DEFER"),
        ([port("a"), port("b", "")], "warning", "b:1 in an unreadable state"),
        ([port("a"), port("b", rate="")], "warning", "b:1 at an unknown rate"),
        ([port("a", link_layer="Ethernet", gids=[[0, IPV4, "IB/RoCE v1", "eth1"]])], "warning", "no RoCE v2 GID on a:1"),
    ],
)  # fmt: skip
def test_infiniband_ports_are_judged(ports: list[dict[str, Any]], verdict: str, found: str) -> None:
    assert verdict_of("infiniband", healthy(infiniband=ports_of(ports))) == (verdict, found)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"peermem": True}, "ok"),
        ({"peermem": False, "open_driver": True, "kernel": "5.15.0"}, "ok"),
        ({"peermem": False, "open_driver": True, "kernel": "5.4.0-1"}, "warning"),
        ({"peermem": False, "open_driver": False, "kernel": "6.8.0"}, "warning"),
    ],
)
def test_direct_transfers_need_a_module_or_the_open_driver_on_a_new_kernel(
    changes: dict[str, Any], verdict: str
) -> None:
    assert verdict_of("gdr", healthy(**changes))[0] == verdict


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
        ({"route": None, "routes": {"10.9.0.2": None}, "unresolved": []}, "failed", "no route to 10.9.0.2"),
        ({"route": None, "routes": {"big-a": None, "big-b": "eth0"}, "unresolved": ["big-a"]}, "failed",
         "the name big-a does not resolve on the node"),
    ],
)  # fmt: skip
def test_the_way_to_the_master_is_judged(changes: dict[str, Any], verdict: str, found: str) -> None:
    assert verdict_of("route", healthy(**changes)) == (verdict, found)


@pytest.mark.parametrize(
    ("addresses", "verdict"),
    [
        (["10.11.0.2"], "ok"),
        (["127.0.1.1"], "warning"),
        ([], "warning"),
        (["::1", "10.11.0.2"], "ok"),
    ],
)
def test_the_own_name_must_stand_for_an_address_that_others_reach(
    addresses: list[str], verdict: str
) -> None:
    assert verdict_of("hostname", healthy(hostname_addresses=addresses))[0] == verdict
    if addresses == ["127.0.1.1"]:  # which Gloo announces where it is told no interface
        host = replace(HOST, vars={"data_dir": "/data"})
        assert (
            verdict_of("hostname", healthy(hostname_addresses=addresses, interface=None), host)[0]
            == "failed"
        )


def seen_from(boot: str, **routes: str) -> dict[str, Any]:
    local = next(iter(routes.values())) == "lo"
    return {
        "boot_id": boot,
        "routes": routes,
        "route": {"interface": "lo" if local else "eth0", "local": local, "to": "10.0.0.1"},
    }


def test_a_node_that_finds_itself_at_the_address_of_another_is_refused() -> None:
    facts = {"localhost": seen_from("a", brutus="eth0"), "brutus": seen_from("b", localhost="lo")}
    (check,) = local_routes(known(facts))
    assert (check.host, check.verdict, check.found) == (
        "brutus",
        "failed",
        "localhost leads to this node itself, through lo",
    )
    assert "route" not in judged(healthy(route={"interface": "lo", "local": True}))
    third = facts | {
        "brutus": seen_from("b", head="eth0", localhost="lo")
    }  # a neighbour, not the master
    assert [check.verdict for check in local_routes(known(third))] == ["failed"]


def test_nodes_of_a_rehearsal_on_one_machine_find_each_other_on_it() -> None:
    facts = {"a": seen_from("x", b="lo"), "b": seen_from("x", a="lo")}
    assert [check.verdict for check in local_routes(known(facts))] == ["ok", "ok"]


# ------------------------------------------------------------------ host


@pytest.mark.parametrize(
    ("limits", "ports", "verdict", "found"),
    [
        ({"memlock": [65536, 65536], "nofile": [1024, 4096], "nproc": [None, None]}, [port()], "warning", "memlock 64 KiB"),
        ({"memlock": [65536, 65536], "nofile": [1024, 4096]}, [port(rate="")], "warning", "memlock 64 KiB"),
        ({"memlock": [8 << 20, 8 << 20], "nofile": [1024, 4096], "nproc": [4096, None]}, [port(state="1: DOWN")], "ok",
         "memlock 8 MiB, nofile 4096, nproc 4096"),
        ({"memlock": [None, None], "nofile": [1024, 1024], "nproc": [4096, None]}, [], "warning", "nofile 1024"),
        ({"memlock": [None, None], "nofile": [1024, None], "nproc": [512, None]}, [port()], "warning", "nproc 512"),
    ],
)  # fmt: skip
def test_limits_are_judged_as_a_run_gets_them(
    limits: dict[str, Any], ports: list[dict[str, Any]], verdict: str, found: str
) -> None:
    facts = healthy(limits=limits, infiniband=ports_of(ports))
    assert verdict_of("limits", facts) == (verdict, found)


def test_little_shared_memory_warns() -> None:
    assert verdict_of("shm", healthy(shm_bytes=64 << 20)) == ("warning", "/dev/shm of 64 MiB")
    assert verdict_of("shm", healthy(shm_bytes=None)) == ("warning", "no /dev/shm")


POD = replace(HOST, transport="kubectl", gpus=8)


@pytest.mark.parametrize(
    ("name", "facts", "found", "lines"),
    [
        ("shm", {"shm_bytes": 64 << 20}, "/dev/shm of 64 MiB", "emptyDir: {medium: Memory}"),
        ("limits", {"limits": {"memlock": [65536, 65536]}}, "memlock 64 KiB", "add: [IPC_LOCK]"),
        ("limits", {"limits": {"nofile": [1024, 1024]}}, "nofile 1024", "the unit of containerd"),
        ("limits", {"cpu_limit": 1.5}, "cpus 1.5", 'resources: {limits: {cpu: "16"}}'),
        ("infiniband", {"verbs": 0}, "no /dev/infiniband/uverbs*", "limits: {rdma/NAME: 1}"),
    ],
)
def test_what_a_pod_lacks_is_told_with_the_lines_of_its_template_that_mend_it(
    name: str, facts: dict[str, Any], found: str, lines: str
) -> None:
    check = judged(healthy(**facts), POD)[name]
    assert (check.verdict, check.found) == ("warning", found)
    assert check.hint.startswith("in the pod's template: ") and lines in check.hint
    other = judged(healthy(**facts), replace(POD, transport="ssh"))[name]
    assert other.found == found and "pod" not in other.hint


def test_enough_processors_are_shown_and_a_machine_without_a_limit_says_nothing() -> None:
    assert judged(healthy(cpu_limit=16.0), POD)["limits"].found.endswith(", cpus 16")
    assert "cpus" not in judged(healthy(cpu_limit=None, verbs=4), POD)["limits"].found


def test_facts_of_an_older_deploy_are_judged_by_what_they_have() -> None:
    old = {
        "runner_python": "3.10", "kernel": "5", "cores": 2, "cpu": "x", "disk_free_bytes": GIB, "workdir": "/w", "login_s": 0.1,
        "framework": {}, "ports_busy": [], "nofile": 1024, "interface": {"state": "up", "mtu": 1500},
        "gpus": [{"index": "0", "name": "H200", "driver": "580", "memory_mib": "143771", "used_mib": "0", "utilization": "0"}],
    }  # fmt: skip
    checks = judge(Host("a", "a", gpus=1, vars={"interface": "eth0"}), old, None, None)
    assert [check.name for check in checks if check.verdict != "ok"] == [] and among(
        {"a": old, "b": old}
    ) == []


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


def test_a_node_with_less_memory_or_fewer_cores_is_named_and_what_firmware_reserves_is_not() -> (
    None
):
    checks = among(
        four(gpu02={"memory_bytes": 1500 * GIB, "cores": 112}, gpu03={"memory_bytes": 1985 * GIB})
    )
    assert [(check.host, check.verdict, check.found, check.expected) for check in checks] == [
        ("gpu02", "warning", "cores 112", "cores 224 as on gpu[01,03-04]"),
        ("gpu02", "warning", "memory 1500 GiB", "memory 2000 GiB as on gpu[01,03-04]"),
    ]


def test_other_gpus_drivers_and_links_are_named() -> None:
    odd = {
        key: value
        for key, value in healthy("a100-dgx-525.xml", "v100-dgx1.topo").items()
        if key in ("gpus", "gpu", "topology")
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


def load(own_s: float, switches: tuple[int, int], **changes: Any) -> dict[str, Any]:
    return {
        "load": {"count": 8, "seconds": 10.0, "busy_s": 45.0, "own_s": own_s, "switches": switches}
        | changes
    }


def test_processors_in_use_by_others_are_a_warning_and_those_of_the_look_itself_are_not() -> None:
    facts = {
        "a": load(44.0, (5, 9)),
        "b": load(20.0, (50, 90)),
        "c": load(1.0, (500, 900), seconds=0.1),
        "d": {},
    }
    found = {check.host: (check.verdict, check.found) for check in load_checks(known(facts))}
    assert found == {
        "a": ("ok", "8 processors, less than a tenth in use"),
        "b": ("warning", "other processes use 2.5 of 8 processors"),
    }
    together = {
        "a": load(20.0, (5, 9)),
        "b": load(24.0, (7, 11)),
    }  # two nodes of a lab: one machine
    assert {check.verdict for check in load_checks(known(together))} == {"ok"}


def test_a_reference_that_stays_literal_is_named_without_its_value() -> None:
    env = {"CACHE": "$HOME/c", "PATH": "/x:$PATH", "PRICE": "5$", "TOKEN": "a${B}c"}
    warned = judged(healthy(), replace(HOST, env=env))["env"]
    assert (
        warned.verdict == "warning"
        and warned.found == "$ in CACHE, TOKEN is passed as written, not expanded"
    )
    assert "env" not in judged(healthy(), replace(HOST, env={"PATH": "$PATH"}))


def test_a_variable_whose_name_is_almost_one_that_orch_reads_is_named() -> None:
    variables = {
        "inteface": "eth0",
        "pyhton": "/x",
        "slot": 2,
        "models_dir": "/m",
        "color": "red",
        "data_dir": "/d",
    }
    warned = judged(healthy(), replace(HOST, vars=variables))["vars"]
    assert warned.found == "inteface, pyhton, slot, which orch does not read"
    assert "did you mean interface instead of inteface?" in warned.hint
    assert "vars" not in judged(
        healthy(), replace(HOST, vars={"models_dir": "/m", "interface": "eth0", "data_dir": "/d"})
    )


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            "setup: line 1 exited with 127: module: command not found",
            "correct setup: of the folder, or vars.setup of this host",
        ),
        (
            "python3: No module named 'torch'",
            "install it for /opt/python3, or set vars.python of this host",
        ),
    ],
)
def test_a_probe_that_fails_is_blamed_on_what_failed(error: str, hint: str) -> None:
    framework = open_framework("pytorch").framework
    host = replace(HOST, vars={**HOST.vars, "python": "/opt/python3"})
    by_name = {
        check.name: check
        for check in judge(host, healthy(framework={"error": error}), framework, None)
    }
    assert by_name["pytorch"].hint.startswith(hint)


@pytest.mark.parametrize("value", [None, -1, 1.5, "x", [], [[]], [{}], {}, {"x": 1}, True])
def test_whatever_a_node_sends_for_a_fact_the_others_are_judged(value: Any) -> None:
    facts = healthy()
    for name in facts:
        found = judged(facts | {name: value})
        assert "runner" in found and "disk" in found, name
        among({"a": facts, "b": facts | {name: value}})

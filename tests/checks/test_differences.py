"""Which node is not like the others, and in what."""

from __future__ import annotations

from typing import Any

from orchestrator.checks.differences import differences, fold_differences, sentences


def facts(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the facts of four nodes that are alike, and what these nodes have in place of them."""
    found: dict[str, dict[str, Any]] = {}
    for n in range(1, 5):
        gpu = {
            "name": "NVIDIA H200",
            "driver": "535.104",
            "memory_mib": "143771",
            "used_mib": str(n),
            "utilization": "0",
        }
        alike = {
            "hostname": f"gpu{n}", "boot_id": f"boot-{n}", "host_key": f"SHA256:{n}", "time": 17e8 + n,
            "login_s": 0.1 * n,
            "disk_free_bytes": 10**12 + n, "kernel": "6.1.0", "cpu": "EPYC 9654", "cores": 96,
            "memory_bytes": 810_000_000_000 + n,
            "gpus": [gpu | {"index": str(i)} for i in range(8)], "framework": {"torch": "2.9", "nccl": "2.28"},
        }  # fmt: skip
        found[f"node{n}"] = alike | changes.get(f"node{n}", {})
    return found


def test_nodes_alike_differ_in_nothing_whatever_is_theirs_by_nature() -> None:
    assert differences(facts()) == () and sentences(facts()) == ()
    assert differences({}) == () and differences({"only": {"cores": 1}}) == ()


def test_the_odd_one_is_named_once_with_all_that_is_odd_about_it() -> None:
    gpu = [{"name": "NVIDIA H200", "driver": "535.54", "memory_mib": "143771"}] * 8
    odd = facts(
        node3={"cpu": "EPYC 7763", "gpus": gpu, "framework": {"torch": "2.9", "nccl": "2.26"}}
    )
    assert sentences(odd) == (
        "3 nodes agree, node3 differs in cpu (EPYC 7763 against EPYC 9654), gpus.driver (535.54 against 535.104), "
        "framework.nccl (2.26 against 2.28)",
    )


def test_hosts_that_deviate_together_are_folded_and_those_that_deviate_apart_are_not() -> None:
    found = differences(
        facts(node2={"kernel": "6.8"}, node3={"kernel": "6.8"}, node4={"kernel": "5.4"})
    )
    assert [(each.fact, each.expected, each.agreeing) for each in found] == [
        ("kernel", "6.8", ("node2", "node3"))
    ]
    three = differences(facts(node3={"kernel": "6.8"}, node4={"kernel": "6.8"}))
    assert str(three[0]) == "node[3-4] differ from 2 others in kernel (6.8 against 6.1.0)"


def test_a_missing_gpu_and_a_gpu_unlike_its_neighbours_show() -> None:
    mixed = [{"name": "NVIDIA H200"}] * 7 + [{"name": "NVIDIA H100"}]
    found = sentences(facts(node1={"gpus": mixed}, node2={"gpus": [{"name": "NVIDIA H200"}] * 7}))
    assert any(
        "node1" in line and "gpus.name (NVIDIA H200, NVIDIA H100 against NVIDIA H200)" in line
        for line in found
    ), found
    assert any("node2" in line and "number of gpus (7 against 8)" in line for line in found), found


def test_a_fact_that_only_some_have_is_a_difference_and_memory_almost_alike_is_none() -> None:
    found = sentences(
        facts(
            node1={"interface": {"state": "up", "mtu": 9000}},
            node2={"memory_bytes": 805_000_000_000},
        )
    )
    assert found == (
        "3 nodes agree, node1 differs in interface.state (up against nothing), interface.mtu (9000 against nothing)",
    )
    assert "memory_bytes" in sentences(facts(node2={"memory_bytes": 405_000_000_000}))[0]


def test_hostile_facts_are_compared_and_cut_short() -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = {"a": deep}
    odd = facts(node2={"kernel": "k" * 10**6, "deep": deep, "list": [1, {"a": 2}], "none": None})
    assert all(len(line) < 2000 for line in sentences(odd)) and sentences(odd)
    assert len(differences({"a": {str(n): n for n in range(1000)}, "b": {}})) == 50


def test_a_host_whose_probe_failed_is_not_compared_in_what_the_probe_tells() -> None:
    version = {"torch": "2.13.0", "cuda": "13.0"}
    facts: dict[str, dict[str, Any]] = {
        "n1": {
            "kernel": "6.1",
            "framework": {"error": "ModuleNotFoundError: No module named torch"},
        },
        "n2": {"kernel": "6.1", "framework": version},
        "n3": {"kernel": "6.8", "framework": version | {"torch": "2.12.0"}},
    }
    assert fold_differences(facts) == (
        "n[1-2]: kernel 6.1 · n3: kernel 6.8",
        "n2: framework.torch 2.13.0 · n3: framework.torch 2.12.0",
    )

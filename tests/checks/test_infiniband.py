"""What NCCL would use of the ports of a node, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.checks.facts import ports_of
from orchestrator.checks.judge import among
from orchestrator.inventory import Host
from tests.support.node_facts import HOST, healthy, judged, port

GIDS = [
    [0, "fe80:0000:0000:0000:0a00:27ff:fe00:0001", "IB/RoCE v1", "eth1"],
    [1, "fe80:0000:0000:0000:0a00:27ff:fe00:0001", "RoCE v2", "eth1"],
    [2, "0000:0000:0000:0000:0000:ffff:0a0c:0002", "IB/RoCE v1", "eth1"],
    [3, "0000:0000:0000:0000:0000:ffff:0a0c:0002", "RoCE v2", "eth1"],
]
"""As an mlx5 of an interface with one IPv4 address has them."""
FULL = [[0, "0xffff"]]


def found_of(env: Mapping[str, str], *ports: Mapping[str, Any]) -> tuple[str, str, str]:
    facts = healthy(infiniband=ports_of(ports))
    check = judged(facts, replace(HOST, env=env))["infiniband"]
    return check.verdict, check.found, check.hint


@pytest.mark.parametrize(("index", "flaw"), [
    ("7", "no GID"), ("2", "a GID of RoCE v1"), ("0", "a GID of RoCE v1"), ("1", "a link-local GID"),
])  # fmt: skip
def test_a_gid_index_that_leads_to_no_other_node_is_named_with_the_one_nccl_takes(
    index: str, flaw: str
) -> None:
    roce = port("a", link_layer="Ethernet", gids=GIDS)
    verdict, found, hint = found_of({"NCCL_IB_GID_INDEX": index}, roce)
    assert (verdict, found) == ("warning", f"NCCL_IB_GID_INDEX={index}: {flaw} on a:1")
    assert hint == "unset it: NCCL 2.21 and later take GID 3; for earlier ones set it to that"
    assert found_of({"NCCL_IB_GID_INDEX": index}, port("a", gids=GIDS))[0] == "ok", "no RoCE"


@pytest.mark.parametrize("index", ["3", "-1", ""])
def test_a_good_gid_index_and_nccls_own_choice_are_not_named(index: str) -> None:
    roce = port("a", link_layer="Ethernet", gids=GIDS)
    assert found_of({"NCCL_IB_GID_INDEX": index}, roce)[0] == "ok"


def test_a_variable_that_leaves_no_active_port_tells_that_data_goes_over_tcp() -> None:
    ports = (port("mlx5_0"), port("mlx5_1", "1: DOWN"))
    for value in ("mlx4", "=mlx5", "^mlx5_0", "mlx5_1", "mlx5_0:2"):
        verdict, found, hint = found_of({"NCCL_IB_HCA": value}, *ports)
        assert (verdict, found) == ("warning", f"NCCL_IB_HCA={value} leaves no active port")
        assert hint.endswith("without a port, NCCL's data goes over TCP, through ib0")
    for value in ("mlx5", "=mlx5_0", "^mlx5_1", "mlx5_0:1", ""):
        assert found_of({"NCCL_IB_HCA": value}, *ports)[0] == "ok"


@pytest.mark.parametrize("storage", [
    {"rate": "25 Gb/sec (1X EDR)"}, {"rate": ""}, {"state": "2: INIT"}, {"state": "6: ACTIVE_DEFER"},
    {"link_layer": "Ethernet"},
])  # fmt: skip
def test_a_port_that_the_inventory_leaves_to_others_is_not_judged(storage: dict[str, str]) -> None:
    ports = (port("mlx5_0"), port("mlx5_1", **storage))
    assert found_of({}, *ports)[0] == "warning"
    assert found_of({"NCCL_IB_HCA": "^mlx5_1"}, *ports)[0] == "ok"


def test_a_run_over_tcp_is_told_where_ports_are_down_or_have_no_device_file() -> None:
    _, _, hint = found_of({}, port("a", "1: DOWN", phys_state="2: Polling"))
    assert hint.endswith("NCCL's data goes over TCP, through ib0")
    facts = healthy(verbs=0)
    assert judged(facts)["infiniband"].hint.endswith("NCCL's data goes over TCP, through ib0")
    bare = replace(HOST, vars={"data_dir": "/data"})
    assert "through eth0" in judged(healthy(verbs=0, interface=None), bare)["infiniband"].hint


def named(
    tables: Mapping[str, list[list[Any]] | None], env: Mapping[str, str] | None = None
) -> dict[str, tuple[str, str]]:
    """Return what is found and expected, by host."""
    facts = {}
    for name, table in tables.items():
        told = {} if table is None else {"pkeys": table}
        facts[name] = healthy(boot_id=name, infiniband=ports_of([port("a", **told)]))
    hosts = [Host(name, name, env=env or {}) for name in tables]
    checks = among(facts, hosts)
    return {c.host: (c.found, c.expected) for c in checks if c.name == "infiniband"}


def test_a_node_outside_the_partition_of_the_others_is_named() -> None:
    good = {"n1": FULL, "n2": FULL, "n3": [[0, "0xffff"], [1, "0x8001"]]}
    assert named(good) == {}
    assert named(good | {"n4": [[0, "0x8001"]]}) == {
        "n4": ("a:1 has PKey 0x8001 at index 0", "0xffff as on n[1-3]")
    }
    assert named(good | {"n2": [[0, "0x7fff"]]}) == {
        "n2": ("a:1 has PKey 0x7fff of a limited member at index 0", "0xffff as on n[1,3]")
    }
    assert named(good | {"n2": [[1, "0xffff"]]})["n2"][0] == "a:1 has no PKey at index 0"
    assert named(good | {"n2": []})["n2"][0] == "a:1 has no PKey at index 0"
    assert named(good | {"n4": None}) == {}, "an earlier runner tells none"
    tie = {"n1": [[0, "0x8001"]], "n2": FULL}
    assert named(tie) == {"n1": ("a:1 has PKey 0x8001 at index 0", "0xffff as on n2")}


def test_the_pkey_that_the_inventory_names_by_its_index_counts() -> None:
    tables = {"n1": [[0, "0x7fff"], [2, "0x8002"]], "n2": [[2, "0x8002"]], "n3": FULL}
    found = named(tables, {"NCCL_IB_PKEY": "2"})
    assert found == {"n3": ("a:1 has no PKey at index 2", "0x8002 as on n[1-2]")}


def test_limited_members_alone_are_all_named() -> None:
    found = named({"n1": [[0, "0x7fff"]], "n2": [[0, "0x7fff"]]})
    assert found.keys() == {"n1", "n2"}
    assert found["n1"][1] == "a PKey of 0x8000 or more"

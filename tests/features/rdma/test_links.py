"""Which ports are tried, and which node, port or link an outcome names."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from orchestrator.checks.facts import node_facts
from orchestrator.features.rdma.host_audit import CATALOGUE
from orchestrator.features.rdma.links import (
    Link,
    RdmaPort,
    active_ports,
    judge_links,
    links,
    rounds,
    still_counters,
    words_of,
)
from orchestrator.inventory import Host
from tests.support.check_tables import assert_table

DEVINFO = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tsm_lid:\t\t\t1
\t\t\tport_lid:\t\t7
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tInfiniBand

hca_id:\tmlx5_1
\ttransport:\t\t\tInfiniBand (0)
\tphys_port_cnt:\t\t\t2
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tlink_layer:\t\tEthernet
\t\tport:\t2
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tlink_layer:\t\tEthernet
"""
"""As ibv_devinfo of rdma-core prints it."""
NAMES = ("a", "b", "c", "d")
PORT = RdmaPort("rxe0", "1", "Ethernet", 1024, 1)


@pytest.mark.parametrize("count", range(1, 12))
def test_each_pair_meets_once_and_nobody_has_two_partners_at_a_time(count: int) -> None:
    names = [f"n{index:02}" for index in range(count)]
    played = list(rounds(names))
    assert sorted(pair for pairs in played for pair in pairs) == list(combinations(names, 2))
    for pairs in played:
        busy = [name for pair in pairs for name in pair]
        assert len(busy) == len(set(busy))


def test_active_ports_have_the_mtu_and_gid_that_a_run_would_use() -> None:
    port = {"device": "mlx5_1", "port": "2", "state": "ACTIVE", "ipv4_gid": 3}
    facts = node_facts({"infiniband": [port]})
    infiniband = RdmaPort("mlx5_0", "1", "InfiniBand", 4096)
    roce = RdmaPort("mlx5_1", "2", "Ethernet", 1024, 3)
    assert active_ports(DEVINFO, Host("a", "a"), facts) == [infiniband, roce]
    other = Host("a", "a", env={"NCCL_IB_GID_INDEX": "5"})
    assert [port.gid for port in active_ports(DEVINFO, other, facts)] == [None, 5]
    assert active_ports("Failed to get IB devices list", Host("a", "a"), facts) == []


def every_link(ports: dict[str, list[RdmaPort]]) -> list[Link]:
    return [link for pair in combinations(ports, 2) for link in links(pair, ports)]


def found(ports: dict[str, list[RdmaPort]], broken: dict[Link, str]) -> dict[str, tuple[str, str]]:
    checks = judge_links(ports, every_link(ports), broken)
    return {check.host: (check.verdict, check.found) for check in checks}


def test_good_links_are_counted() -> None:
    told = found({name: [PORT, replace(PORT, device="rxe1")] for name in NAMES}, {})
    assert told == {name: ("ok", "6 links to 3 nodes exchanged messages") for name in NAMES}


def test_a_port_that_reaches_nobody_is_named_and_the_others_are_not() -> None:
    ports = {name: [PORT] for name in NAMES}
    broken = {
        link: "no answer" for link in every_link(ports) if "c" in (link.here[0], link.there[0])
    }
    told = found(ports, broken)
    assert told["c"] == ("failed", "rxe0:1 exchanges messages with none of 3 nodes: no answer")
    assert {told[name][0] for name in "abd"} == {"ok"}
    assert told["a"][1] == "2 links to 2 nodes exchanged messages"


def test_one_link_is_named_by_both_of_its_ends_once() -> None:
    ports = {name: [PORT] for name in NAMES}
    (bad,) = links(("b", "d"), ports)
    told = found(ports, {bad: "on b: Failed status transport retry counter exceeded (12)"})
    assert told["b"][0] == "failed"
    assert told["b"][1].startswith("b rxe0:1 and d rxe0:1: on b: Failed status")
    assert {told[name][0] for name in "acd"} == {"ok"}


def test_two_nodes_of_which_none_is_more_to_blame_are_named_together() -> None:
    ports = {name: [PORT] for name in "ab"}
    (bad,) = links(("a", "b"), ports)
    told = found(ports, {bad: "no answer"})
    assert told == {"a": ("failed", "a rxe0:1 and b rxe0:1: no answer")}


def test_ports_of_other_layers_are_not_tried_with_each_other() -> None:
    other = RdmaPort("mlx5_0", "1", "InfiniBand", 4096)
    assert links(("a", "b"), {"a": [other, PORT], "b": [PORT, PORT]}) == [
        Link(("a", PORT), ("b", PORT))
    ]


def test_a_smaller_mtu_than_that_of_others_is_named() -> None:
    large = RdmaPort("rxe0", "1", "Ethernet", 4096, 1)
    ports = {"a": [large], "b": [PORT], "c": [large]}
    warned = [c for c in judge_links(ports, every_link(ports), {}) if c.verdict == "warning"]
    assert [(c.host, c.found) for c in warned] == [("b", "rxe0:1 with 1024")]
    assert warned[0].expected == "an active MTU of 4096, as on other nodes"
    (link,) = links(("a", "b"), ports)
    assert link.mtu == 1024


def test_a_port_that_sent_messages_and_counted_none_is_named() -> None:
    ports = {name: [PORT, replace(PORT, device="mlx5-1")] for name in "abc"}
    root = "/sys/class/infiniband"
    # The first is of soft RoCE, the second of mlx5, whose count of what it waited for moves alone.
    before = (
        f"{root}/rxe0/ports/1/hw_counters/sent_pkts:7\n"
        f"{root}/mlx5-1/ports/1/counters/port_xmit_data:9\n"
        f"{root}/mlx5-1/ports/1/counters/port_xmit_wait:1\n"
    )
    still, moved = before.replace("wait:1", "wait:2"), before.replace(":7", ":8")
    moved = moved.replace(":9", ":10")
    told = dict.fromkeys("abc", before)
    after = {"a": moved, "b": moved.replace(":10", ":9"), "c": still}
    warned = still_counters(every_link(ports), told, after)
    assert [(check.host, check.verdict, check.found) for check in warned] == [
        ("b", "warning", "mlx5-1:1 sent messages uncounted"),
        ("c", "warning", "mlx5-1:1, rxe0:1 sent messages uncounted"),
    ]
    assert still_counters(every_link(ports), told, dict.fromkeys("abc", "")) == []
    assert still_counters([], told, told) == []


def test_the_last_line_that_is_no_address_is_what_was_said() -> None:
    text = "  local address:  LID 0x0000, QPN 0x000011\nFailed to modify QP to RTR\n\n"
    assert words_of(Host("a", "a"), text) == "on a: Failed to modify QP to RTR"
    assert words_of(Host("a", "a"), text.splitlines()[0]) == "on a: no message came"


def test_the_table_of_the_page_is_that_of_the_list() -> None:
    assert_table(Path(__file__).parents[3] / "docs" / "rdma.md", CATALOGUE)

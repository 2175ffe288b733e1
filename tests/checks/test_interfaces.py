"""Which interface is found for training traffic where the inventory names none: by route, by speed,
with the reason.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.checks.facts import node_facts
from orchestrator.checks.interfaces import with_interface, with_interfaces
from orchestrator.checks.network import network_checks
from orchestrator.inventory.hosts import Host

HOSTS = [Host(f"n{last}", f"10.11.0.{last}", gpus=0) for last in (2, 3, 4)]


def network(
    name: str, *addresses: str, mbit: int | None = None, state: str = "up"
) -> dict[str, Any]:
    return {
        "name": name,
        "addresses": list(addresses),
        "state": state,
        "mtu": 1500,
        "speed_mbit": mbit,
        "kind": "1",
    }


def seen(
    *networks: str, mbit: dict[str, int] | None = None, **more: Any
) -> dict[str, dict[str, Any]]:
    """Facts of the three hosts, each with an interface for each ``name network``, reached through
    eth0.
    """
    facts = {}
    for host in HOSTS:
        last = host.address.rpartition(".")[2]
        entries = [
            network(name, f"{base}.{last}/24", mbit=(mbit or {}).get(name))
            for name, base in map(str.split, networks)
        ]
        routes = {other.address: "eth0" for other in HOSTS if other is not host}
        facts[host.name] = {
            "networks": entries,
            "routes": routes,
            "route": {"interface": "eth0", "local": False},
            **more,
        }
    return facts


def chosen(
    facts: dict[str, dict[str, Any]], hosts: list[Host] = HOSTS
) -> dict[str, tuple[str, str]]:
    interfaces = {
        name: values.get("interface") for name, values in with_interfaces(hosts, facts).items()
    }
    return {
        name: (interface["name"], interface["why"])
        for name, interface in interfaces.items()
        if interface
    }


def test_the_route_to_the_other_nodes_decides_where_no_other_network_is_known_to_be_faster() -> (
    None
):
    by_route = {host.name: ("eth0", "the route to the other nodes") for host in HOSTS}
    assert chosen(seen("eth0 10.11.0")) == by_route
    two = ("eth0 10.11.0", "ib0 10.12.0")
    assert chosen(seen(*two)) == by_route  # no speed is known
    assert chosen(seen(*two, mbit={"ib0": 200_000})) == by_route  # nor that of the route
    assert chosen(seen(*two, mbit={"eth0": 25_000, "ib0": 25_000})) == by_route


def test_a_faster_network_of_all_nodes_is_taken_and_the_reason_has_both_speeds() -> None:
    facts = seen(
        "eth0 10.11.0",
        "ib0 10.12.0",
        "eth1 10.13.0",
        mbit={"eth0": 1000, "eth1": 25_000, "ib0": 200_000},
    )
    speeds = "at 200 Gb/s; eth0, the route to the other nodes, has 1 Gb/s"
    why = f"all nodes have an address in 10.12.0.0/24, {speeds}"
    assert chosen(facts) == {host.name: ("ib0", why) for host in HOSTS}
    facts["n3"]["networks"][1]["speed_mbit"] = 10_000  # as fast as its slowest node
    assert {name for name, _ in chosen(facts).values()} == {"eth1"}
    del facts["n4"]["networks"][2]
    assert {name for name, _ in chosen(facts).values()} == {"ib0"}
    facts["n4"]["networks"][1]["state"] = "down"
    assert {name for name, _ in chosen(facts).values()} == {"eth0"}


def test_the_rate_of_an_infiniband_port_counts_where_the_interface_has_no_speed_and_its_devices_are_named() -> (
    None
):
    port = {"device": "mlx5_0", "state": "ACTIVE", "interfaces": "ib0", "rate_gbit": 400.0}
    facts = seen("eth0 10.11.0", "ib0 10.12.0", mbit={"eth0": 1000}, infiniband=[port])
    assert all(
        name == "ib0"
        and "400 Gb/s" in why
        and why.endswith("NCCL's data goes over mlx5_0 unless NCCL_IB_DISABLE is set")
        for name, why in chosen(facts).values()
    )
    facts = seen(
        "eth0 10.11.0", "ib0 10.12.0", mbit={"eth0": 1000}, infiniband=[port | {"state": "DOWN"}]
    )
    assert {name for name, _ in chosen(facts).values()} == {"eth0"}


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("docker0", ["172.17.0.2/16", "172.17.0.3/16", "172.17.0.4/16"]),
        ("virbr0", ["10.12.0.2/24", "10.12.0.3/24", "10.12.0.4/24"]),
        ("eth1", ["192.168.122.1/24"] * 3),  # the same address everywhere: not one network
        ("eth1", ["10.12.1.2/24", "10.12.2.3/24", "10.12.3.4/24"]),
        ("eth1; touch /tmp/x", ["10.12.0.2/24", "10.12.0.3/24", "10.12.0.4/24"]),
        ("eth1", ["10.12.0.2/24", "10.12.0.3/24", "no address"]),
    ],
)
def test_what_does_not_lead_to_the_other_nodes_is_never_taken(
    name: str, addresses: list[str]
) -> None:
    facts = seen("eth0 10.11.0", mbit={"eth0": 1000})
    for host, address in zip(HOSTS, addresses, strict=True):
        facts[host.name]["networks"].append(network(name, address, mbit=100_000))
    assert {name for name, _ in chosen(facts).values()} == {"eth0"}


def test_none_is_found_for_one_machine_one_host_or_a_route_through_docker() -> None:
    assert chosen(seen("eth0 10.11.0", route={"interface": "lo", "local": True})) == {}
    assert chosen({"n2": seen("eth0 10.11.0")["n2"]}, HOSTS[:1]) == {}
    facts = seen("docker0 10.11.0")
    for values in facts.values():
        values["routes"] = dict.fromkeys(values["routes"], "docker0")
    assert chosen(facts) == {}
    assert chosen({name: {} for name in facts}) == {}  # told by an earlier runner
    odd = [
        {"name": 3, "addresses": 4},
        "x",
        {**network("eth0", "10.11.0.2/24"), "speed_mbit": "inf"},
    ]
    assert chosen({name: {"networks": odd, "routes": [], "route": "x"} for name in facts}) == {}


def test_routes_through_two_interfaces_are_a_warning_unless_one_network_is_shared() -> None:
    facts = seen("eth0 10.11.0")
    facts["n2"]["routes"]["10.11.0.4"] = "eth1"
    (check,) = network_checks(HOSTS[0], node_facts(with_interfaces(HOSTS, facts)["n2"]))[:1]
    assert (check.name, check.verdict) == ("interface", "ok")
    assert check.found == "eth0 up, MTU 1500: all nodes have an address in 10.11.0.0/24"
    facts["n3"]["networks"] = []
    (check,) = network_checks(HOSTS[0], node_facts(with_interfaces(HOSTS, facts)["n2"]))[:1]
    assert (check.name, check.verdict) == ("interface", "warning")
    assert check.found == "the other nodes are reached through eth0, eth1"


def test_a_node_whose_address_another_cannot_resolve_is_no_route_and_leaves_the_others_to_decide() -> (
    None
):
    facts = seen("eth0 10.11.0")
    facts["n2"]["routes"]["10.11.0.4"] = None
    assert chosen(facts) == {host.name: ("eth0", "the route to the other nodes") for host in HOSTS}
    facts["n3"]["networks"] = []
    assert [
        check.name
        for check in network_checks(HOSTS[0], node_facts(with_interfaces(HOSTS, facts)["n2"]))
    ] == ["route"]


def test_an_interface_of_the_inventory_stays_and_decides_for_the_others_too() -> None:
    hosts = [Host("n2", "10.11.0.2", gpus=0, vars={"interface": "ib0"}), *HOSTS[1:]]
    facts = seen("eth0 10.11.0", "ib0 10.12.0", mbit={"eth0": 25_000, "ib0": 10_000})
    facts["n2"]["interface"] = {"state": "up", "mtu": 4092}
    result = with_interfaces(hosts, facts)
    assert result["n2"]["interface"] == {"state": "up", "mtu": 4092}
    assert (
        with_interface(hosts[0], facts["n2"]) is hosts[0]
        and with_interface(HOSTS[1], {}) is HOSTS[1]
    )
    assert with_interface(HOSTS[1], result["n3"]).vars == {"interface": "ib0"}


def test_what_was_found_among_other_hosts_does_not_last() -> None:
    facts = with_interfaces(HOSTS, seen("eth0 10.11.0"))
    assert (
        "interface" in facts["n2"]
        and "interface" not in with_interfaces(HOSTS[:1], {"n2": facts["n2"]})["n2"]
    )

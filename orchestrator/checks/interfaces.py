"""The interface of the training traffic of nodes whose inventory names none: found by route and by
speed, with the reason.

The kernel's route to the other nodes leads through one interface. Where the nodes share another
network too, that one is taken if its slowest interface is faster than the slowest of the route. An
interface of unknown speed is never faster. Where the inventory names the interface of some nodes,
the others take theirs in the same network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any

from orchestrator.inventory import Host
from orchestrator.inventory.values import INTERFACE
from orchestrator.inventory.versions import number

__all__ = ["route_interfaces", "with_interface", "with_interfaces"]

_NEVER = ("lo", "docker")
_VIRTUAL = ("veth", "br-", "virbr", "cali", "cni", "flannel", "tap", "tun")
"""Prefixes of interfaces that may have an address in a network of all nodes, and lead to none of
them.
"""


@dataclass(frozen=True, slots=True)
class _Interface:
    """An interface that is up: Mb/s, 0 if the kernel does not know it, its addresses, and its
    facts.
    """

    name: str
    mbit: float
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    facts: Mapping[str, Any]

    @property
    def speed(self) -> str:
        """Its speed for a text, empty if it is not known."""
        return f"{self.mbit / 1000:g} Gb/s" if self.mbit > 0 else ""


def with_interfaces(
    hosts: Sequence[Host], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the facts of all hosts; for one without ``vars.interface``, ``interface`` is then the
    one found for it, with
    ``name`` and ``why``. None is found for a single host, for nodes that are one machine, and where no interface leads to all
    others."""
    chosen = _chosen([host for host in hosts if host.name in facts], facts)
    result = {}
    for name, values in facts.items():
        before = values.get("interface")
        is_found = (
            isinstance(before, Mapping) and "why" in before
        )  # by an earlier look, perhaps among other hosts
        kept = {
            fact: value for fact, value in values.items() if not (is_found and fact == "interface")
        }
        result[name] = kept | ({"interface": chosen[name]} if name in chosen else {})
    return result


def with_interface(host: Host, facts: Mapping[str, Any]) -> Host:
    """Return the host with the interface that was found for it as ``vars.interface``, which launch
    scripts read.
    """
    interface = facts.get("interface")
    if host.vars.get("interface") or not isinstance(interface, Mapping) or "why" not in interface:
        return host
    return replace(host, vars={**host.vars, "interface": interface["name"]})


def _chosen(
    hosts: Sequence[Host], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    seekers = [
        host
        for host in hosts
        if not host.vars.get("interface") and host.container.get("network", "host") == "host"
    ]
    if len(hosts) < 2 or not seekers or any(_is_local(facts[host.name]) for host in hosts):
        return {}
    usable = {host.name: _usable(host, facts[host.name]) for host in hosts}
    routed = {host.name: _routed(host, facts[host.name], usable[host.name]) for host in hosts}
    by_route = {name: interface for name, interface in routed.items() if interface}
    is_routed = len(by_route) == len(hosts)
    network, shared = _fastest_shared(usable)
    is_named = len(seekers) < len(hosts)
    if shared and (is_named or not is_routed or _slowest(shared) > _slowest(by_route) > 0):
        chosen = shared
        why = {
            name: _of_network(network, interface, routed[name])
            for name, interface in shared.items()
        }
    elif is_routed:
        chosen = by_route
        why = {name: "the route to the other nodes" for name in by_route}
    else:
        return {}
    return {
        host.name: {
            **chosen[host.name].facts,
            "name": chosen[host.name].name,
            "why": why[host.name] + _adapters(facts[host.name]),
        }
        for host in seekers
    }


def route_interfaces(facts: Mapping[str, Any]) -> list[str]:
    """Return the interfaces through which a node sends to others, sorted; a node whose address it
    cannot resolve or has no route to, says nothing."""
    routes = facts.get("routes")
    return (
        sorted({str(name) for name in routes.values() if name})
        if isinstance(routes, Mapping)
        else []
    )


def _is_local(facts: Mapping[str, Any]) -> bool:
    route = facts.get("route")
    return isinstance(route, Mapping) and bool(route.get("local"))


def _usable(host: Host, facts: Mapping[str, Any]) -> dict[str, _Interface]:
    """Return the interfaces of a host that may carry its training traffic, by name;
    ``vars.interface`` is the only one.
    """
    rates: dict[str, float] = {}
    for port in facts.get("infiniband") or ():
        for name in (
            str(port.get("interfaces", "")).split() if port.get("state") == "ACTIVE" else ()
        ):
            rates[name] = max(rates.get(name, 0.0), 1000 * number(port.get("rate_gbit")))
    usable = {}
    named, entries = host.vars.get("interface"), facts.get("networks")
    for entry in entries if isinstance(entries, list) else ():
        try:
            name, state = str(entry["name"]), entry["state"]
            addresses = tuple(map(ip_interface, entry["addresses"]))
            mbit = number(entry.get("speed_mbit")) or rates.get(name, 0.0)
            told = {key: entry.get(key) for key in ("state", "mtu", "kind")} | {
                "speed_mbit": int(mbit) or None
            }
        except (
            TypeError,
            KeyError,
            AttributeError,
            ValueError,
            OverflowError,
        ):  # a node may send anything
            continue
        is_possible = name == named if named else not name.startswith(_NEVER)
        if state in ("up", "unknown") and INTERFACE.fullmatch(name) and is_possible:
            usable[name] = _Interface(name, mbit, addresses, told)
    return usable


def _routed(
    host: Host, facts: Mapping[str, Any], usable: Mapping[str, _Interface]
) -> _Interface | None:
    """Return the interface through which the kernel sends to all other nodes; None if there are
    several, or it may not be used."""
    names = route_interfaces(facts)
    name = str(host.vars.get("interface") or (names[0] if len(names) == 1 else ""))
    return usable.get(name)


def _fastest_shared(
    usable: Mapping[str, Mapping[str, _Interface]],
) -> tuple[str, dict[str, _Interface]]:
    """Return the network in which every host has an address of its own, on an interface by host;
    the fastest, by its slowest."""
    by_network: dict[str, dict[str, tuple[_Interface, str]]] = {}
    for host, interfaces in usable.items():
        for interface in sorted(interfaces.values(), key=lambda interface: interface.mbit):
            for address in interface.addresses if not interface.name.startswith(_VIRTUAL) else ():
                by_network.setdefault(str(address.network), {})[host] = interface, str(address.ip)
    shared = {
        network: {host: interface for host, (interface, _) in members.items()}
        for network, members in by_network.items()
        if len(members) == len(usable) == len({address for _, address in members.values()})
    }
    network = max(shared, key=lambda network: _slowest(shared[network]), default="")
    return network, shared.get(network, {})


def _slowest(interfaces: Mapping[str, _Interface]) -> float:
    return min(interface.mbit for interface in interfaces.values())


def _of_network(network: str, interface: _Interface, routed: _Interface | None) -> str:
    text = f"all nodes have an address in {network}"
    if routed and routed.name != interface.name:
        return f"{text}, at {interface.speed}; {routed.name}, the route to the other nodes, has {routed.speed}"
    return text


def _adapters(facts: Mapping[str, Any]) -> str:
    """Return which InfiniBand devices NCCL uses for data by itself; empty without any."""
    active = [
        str(port.get("device"))
        for port in facts.get("infiniband") or ()
        if port.get("state") == "ACTIVE"
    ]
    names = ", ".join(list(dict.fromkeys(active))[:8])
    return f"; NCCL's data goes over {names} unless NCCL_IB_DISABLE is set" if names else ""

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
from ipaddress import IPv4Interface, IPv6Interface
from typing import Any

from orchestrator.checks.facts import NodeFacts, node_facts
from orchestrator.inventory import Host
from orchestrator.inventory.values import INTERFACE

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
    one found for it, with ``name`` and ``why``. None is found for a single host, for nodes that are
    one machine, and where no interface leads to all others."""
    known = {name: node_facts(values) for name, values in facts.items()}
    chosen = _chosen([host for host in hosts if host.name in facts], known)
    result = {}
    for name, values in facts.items():
        result[name] = dict(values)
        if name in chosen:
            result[name]["interface"] = chosen[name]
        elif (before := known[name].interface) and before.why is not None:
            del result[name]["interface"]  # found by an earlier look, perhaps among other hosts
    return result


def with_interface(host: Host, facts: Mapping[str, Any]) -> Host:
    """Return the host with the interface that was found for it as ``vars.interface``, which launch
    scripts read.
    """
    interface = node_facts(facts).interface
    if host.vars.get("interface") or interface is None or interface.why is None:
        return host
    return replace(host, vars={**host.vars, "interface": interface.name})


def _chosen(hosts: Sequence[Host], facts: Mapping[str, NodeFacts]) -> dict[str, dict[str, Any]]:
    seekers = [
        host
        for host in hosts
        if not host.vars.get("interface") and host.container.get("network", "host") == "host"
    ]
    if len(hosts) < 2 or not seekers or any(_is_local(facts[host.name]) for host in hosts):
        return {}
    usable = {host.name: _usable(host, facts[host.name]) for host in hosts}
    routed = {
        host.name: _interface_to_all(host, facts[host.name], usable[host.name]) for host in hosts
    }
    by_route = {name: interface for name, interface in routed.items() if interface}
    is_routed = len(by_route) == len(hosts)
    network, shared = _fastest_common_network(usable)
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


def route_interfaces(facts: NodeFacts) -> list[str]:
    """Return the interfaces through which a node sends to others, sorted; a node whose address it
    cannot resolve or has no route to, says nothing."""
    return sorted({name for name in facts.routes.values() if name})


def _is_local(facts: NodeFacts) -> bool:
    return facts.route is not None and facts.route.local


def _usable(host: Host, facts: NodeFacts) -> dict[str, _Interface]:
    """Return the interfaces of a host that may carry its training traffic, by name;
    ``vars.interface`` is the only one.
    """
    rates: dict[str, float] = {}
    for port in facts.infiniband:
        if port.state == "ACTIVE":
            for name in port.interfaces.split():
                rates[name] = max(rates.get(name, 0.0), 1000 * (port.rate_gbit or 0.0))
    usable = {}
    named = host.vars.get("interface")
    for network in facts.networks:
        name, state = network.name, network.state
        mbit = float(network.speed_mbit or rates.get(name, 0.0))
        told = {"state": state, "mtu": network.mtu, "kind": network.kind}
        told["speed_mbit"] = int(mbit) or None
        is_possible = name == named if named else not name.startswith(_NEVER)
        if state in ("up", "unknown") and INTERFACE.fullmatch(name) and is_possible:
            usable[name] = _Interface(name, mbit, network.addresses, told)
    return usable


def _interface_to_all(
    host: Host, facts: NodeFacts, usable: Mapping[str, _Interface]
) -> _Interface | None:
    """Return the interface through which the kernel sends to all other nodes; None if there are
    several, or it may not be used."""
    names = route_interfaces(facts)
    name = str(host.vars.get("interface") or (names[0] if len(names) == 1 else ""))
    return usable.get(name)


def _fastest_common_network(
    usable: Mapping[str, Mapping[str, _Interface]],
) -> tuple[str, dict[str, _Interface]]:
    """Return the network in which every host has an address of its own, on an interface by host;
    the fastest, by its slowest."""
    by_network: dict[str, dict[str, tuple[_Interface, str]]] = {}
    for host, interfaces in usable.items():
        for interface in sorted(interfaces.values(), key=lambda interface: interface.mbit):
            for address in interface.addresses if not interface.name.startswith(_VIRTUAL) else ():
                by_network.setdefault(str(address.network), {})[host] = interface, str(address.ip)
    shared = {}
    for network, members in by_network.items():
        addresses = {address for _, address in members.values()}
        if len(members) == len(usable) == len(addresses):
            shared[network] = {host: interface for host, (interface, _) in members.items()}
    network = max(shared, key=lambda network: _slowest(shared[network]), default="")
    return network, shared.get(network, {})


def _slowest(interfaces: Mapping[str, _Interface]) -> float:
    return min(interface.mbit for interface in interfaces.values())


def _of_network(network: str, interface: _Interface, routed: _Interface | None) -> str:
    text = f"all nodes have an address in {network}"
    if routed and routed.name != interface.name:
        return f"{text}, at {interface.speed}; {routed.name}, the route to the other nodes, has {routed.speed}"
    return text


def _adapters(facts: NodeFacts) -> str:
    """Return a remark on the InfiniBand devices that NCCL uses for data by itself; empty without
    any.
    """
    active = [port.device for port in facts.infiniband if port.state == "ACTIVE"]
    names = ", ".join(list(dict.fromkeys(active))[:8])
    if not names:
        return ""
    return f"; NCCL's data goes over {names} unless NCCL_IB_DISABLE is set"

"""Checks of a machine's networks: the interface of the training traffic, the route to the master,
names, InfiniBand.
"""

from __future__ import annotations

from ipaddress import ip_address

from orchestrator.checks.check import Check, failure, ok, warning
from orchestrator.checks.facts import InterfaceFacts, NodeFacts, RouteFacts
from orchestrator.checks.infiniband import check_ports
from orchestrator.checks.interfaces import route_interfaces
from orchestrator.devices.vendor import vendor_of
from orchestrator.inventory import Host

_INFINIBAND = "32"  # ARPHRD_INFINIBAND of if_arp.h
_DMABUF_KERNEL = (5, 12)
_REACHABLE = "an address that other nodes can reach"


def network_checks(host: Host, facts: NodeFacts) -> list[Check]:
    """Return every check of this kind, in the order of the table."""
    checks = [
        _interface(host, facts),
        _route(host, facts),
        _hostname(host, facts),
        check_ports(host, facts),
        _gdr(host, facts),
    ]
    return [check for check in checks if check]


def training_interface(facts: NodeFacts) -> InterfaceFacts | RouteFacts | None:
    """Return the facts of the training interface: the inventory's, else the one towards the master."""
    return facts.interface or facts.route


def _state(interface: InterfaceFacts | RouteFacts) -> str:
    speed = interface.speed_mbit or 0
    mtu = f"MTU {interface.mtu}"
    return f"{mtu}, {speed / 1000:g} Gb/s" if speed > 0 else mtu


def _interface(host: Host, facts: NodeFacts) -> Check | None:
    name, state = host.vars.get("interface"), facts.interface
    if not name:
        return _found_interface(host, facts)
    if not state:
        hint = "see ip -brief link on the node, and correct vars.interface"
        return failure(host.name, "interface", f"no {name}", f"{name} up", hint)
    shown = f"{name} {state.state}, {_state(state)}"
    if state.state in ("up", "unknown"):
        return ok(host.name, "interface", shown)
    return failure(host.name, "interface", shown, f"{name} up", "bring it up")


def _found_interface(host: Host, facts: NodeFacts) -> Check | None:
    """Report the interface that was found if the inventory names none, and why.

    It is a warning if no single interface leads to all nodes.
    """
    state, names = facts.interface, route_interfaces(facts)
    if state and state.why is not None:
        return ok(
            host.name,
            "interface",
            f"{state.name} {state.state}, {_state(state)}: {state.why}",
        )
    if len(names) < 2:
        return None
    hint = "name it with vars.interface, or use addresses in one network for all hosts"
    return warning(
        host.name,
        "interface",
        f"the other nodes are reached through {', '.join(names)}",
        "one interface",
        hint,
    )


def _route(host: Host, facts: NodeFacts) -> Check | None:
    if "route" not in facts.told:
        return None
    route, interface = facts.route, host.vars.get("interface")
    if not route:
        return _no_route(host, facts)
    if route.local:
        return None  # `cross_node.local_routes` knows whether the other node is this machine
    way = f"to the master through {route.interface}, {_state(route)}"
    differs = interface and interface != route.interface
    if differs and (facts.interface is None or facts.interface.kind != _INFINIBAND):
        hint = "correct vars.interface, or use addresses in the network of the training traffic for the hosts"
        return warning(
            host.name, "route", way, f"through {interface}, as vars.interface sets", hint
        )
    return ok(host.name, "route", way)


def _no_route(host: Host, facts: NodeFacts) -> Check:
    """Return the failed check of a node that cannot send to the master; on the master, to another
    node.
    """
    address = next(iter(facts.routes), "the master's address")
    if address in facts.unresolved:
        found = f"the name {address} does not resolve on the node"
        hint = "set address: of that host in the inventory; a node knows no names of your ssh configuration"
        return failure(host.name, "route", found, "an address that every node can reach", hint)
    hint = "every node must reach the addresses of the others; see ip route on the node"
    return failure(host.name, "route", f"no route to {address}", "a route", hint)


def _hostname(host: Host, facts: NodeFacts) -> Check | None:
    addresses = facts.hostname_addresses
    if "route" not in facts.told or addresses is None:
        return None
    if not addresses:
        hint = "add it to /etc/hosts on the node; Gloo and others resolve it to find the address that they announce"
        return warning(
            host.name,
            "hostname",
            "its hostname does not resolve on the node",
            "an address that other nodes can reach",
            hint,
        )
    if all(ip_address(address).is_loopback for address in addresses):
        if facts.route and facts.route.local:
            return None  # all nodes are this machine
        found = f"its hostname resolves to {', '.join(addresses)}"
        hint = "give it the machine's own address in /etc/hosts; Gloo and others announce that address to all ranks"
        if not facts.interface:
            return failure(
                host.name, "hostname", found, _REACHABLE, f"{hint}; or set vars.interface"
            )
        return warning(host.name, "hostname", found, _REACHABLE, hint)
    return ok(host.name, "hostname", f"resolves to {_REACHABLE}")


def _gdr(host: Host, facts: NodeFacts) -> Check | None:
    """Check that GPUs and network cards exchange data directly: by nvidia-peermem, or DMA-BUF
    (Linux 5.12, open driver).

    AMD's driver has what RCCL needs for that built in, and no module shows whether it works.
    """
    if (
        not vendor_of(facts.gpu_tool).has_peer_module
        or not facts.infiniband_gbit
        or facts.gpus is None
        or "peermem" not in facts.told
    ):
        return None
    if facts.peermem:
        return ok(host.name, "gdr", "nvidia-peermem is loaded")
    numbers = facts.kernel.split(".")[:2]
    kernel = tuple(int(word) for word in numbers if word.isdecimal())
    if facts.open_driver and kernel >= _DMABUF_KERNEL:
        return ok(host.name, "gdr", "DMA-BUF of the open driver")
    hint = "modprobe nvidia-peermem, as root; without it all data between nodes goes through the host's memory"
    return warning(host.name, "gdr", "neither nvidia-peermem nor DMA-BUF", "one of them", hint)

"""Checks of a machine's networks: the interface of the training traffic, the route to the master,
names, InfiniBand.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address

from orchestrator.checks.check import Check, cure, failure, ok, warning
from orchestrator.checks.facts import InterfaceFacts, NodeFacts, PortFacts, RouteFacts
from orchestrator.checks.interfaces import route_interfaces
from orchestrator.devices.vendor import vendor_of
from orchestrator.inventory import Host
from orchestrator.inventory.versions import number
from orchestrator.plural import plural

_INFINIBAND = "32"  # ARPHRD_INFINIBAND of if_arp.h
_DMABUF_KERNEL = (5, 12)
_STATES = ("ACTIVE", "DOWN", "INIT", "ARMED")
_REACHABLE = "an address that other nodes can reach"


def network_checks(host: Host, facts: NodeFacts) -> list[Check]:
    """Return every check of this kind, in the order of the table."""
    checks = [
        _interface(host, facts),
        _route(host, facts),
        _hostname(host, facts),
        _infiniband(host, facts),
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
        hint = "every node must resolve and reach the address of the first host in the inventory; see ip route on the node"
        return failure(host.name, "route", "no route to the master's address", "a route", hint)
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


def _infiniband(host: Host, facts: NodeFacts) -> Check | None:
    ports = facts.infiniband
    if not ports:
        return None
    active = [port for port in ports if port.state == "ACTIVE"]
    kinds = Counter(f"{_layer(port)} at {_rate(port)}" for port in active)
    counted = f"{len(active)} of {len(ports)} ports active" + "".join(
        f", {count} {kind}" for kind, count in sorted(kinds.items())
    )
    # DOWN is a port that nobody uses; NOP, ACTIVE_DEFER and a state that cannot be read are those
    # of a port that fails.
    odd = [
        f"{_name(port)} {port.state or 'in an unreadable state'}"
        for port in ports
        if port.state not in _STATES
    ]
    odd += [f"{_name(port)} at an unknown rate" for port in active if not port.rate_gbit]
    if odd:
        hint = "see ibstat and dmesg on the node; NCCL_IB_HCA=^… leaves a port out"
        return warning(
            host.name, "infiniband", "; ".join(odd[:8]), "ACTIVE or DOWN, at a known rate", hint
        )
    waiting = [
        f"{_name(port)} {port.state}, {port.physical}"
        for port in ports
        if port.state in ("INIT", "ARMED")
    ]
    if waiting:
        hint = "a subnet manager must run in the fabric (opensm, or the switch's own); see ibstat on the node"
        return warning(host.name, "infiniband", "; ".join(waiting), "ACTIVE", hint)
    if not active:
        hint = "see ibstat on the node; without an active port NCCL falls back to sockets"
        words = "; ".join(f"{_name(port)} {port.state}, {port.physical}" for port in ports[:8])
        return warning(host.name, "infiniband", words, "an active port", hint)
    if facts.verbs == 0:
        hint = cure(
            host,
            "modprobe ib_uverbs, as root",
            "resources: {limits: {rdma/NAME: 1}}, with the name that kubectl describe node lists;"
            " and hostNetwork: true if the plugin gives no interface",
        )
        hint += "; without it NCCL falls back to sockets"
        expected = f"the devices of {plural(len(active), 'active port')}"
        return warning(host.name, "infiniband", "no /dev/infiniband/uverbs*", expected, hint)
    best = {}
    for layer in map(_layer, active):
        best[layer] = max(number(port.rate_gbit) for port in active if _layer(port) == layer)
    slow = [
        f"{_name(port)} at {_rate(port)}"
        for port in active
        if number(port.rate_gbit) < best[_layer(port)]
    ]
    if slow:
        hint = "check its cable and the switch port; exclude a separate storage port with NCCL_IB_HCA=^…"
        rates = ", ".join(f"{layer} ports at {rate:g} Gb/s" for layer, rate in sorted(best.items()))
        return warning(host.name, "infiniband", "; ".join(slow), rates, hint)
    bare = [_name(port) for port in active if _layer(port) == "RoCE" and "RoCE v2" not in port.gids]
    if bare:
        hint = "give its interface an address, and see show_gids on the node; NCCL_IB_GID_INDEX must name a RoCE v2 entry"
        return warning(
            host.name,
            "infiniband",
            f"no RoCE v2 GID on {', '.join(bare)}",
            "one on each port",
            hint,
        )
    gids = sorted({str(port.ipv4_gid) for port in active if port.ipv4_gid is not None})
    return ok(
        host.name,
        "infiniband",
        f"{counted}, RoCE v2 for IPv4 at GID {' or '.join(gids)}" if gids else counted,
    )


def _layer(port: PortFacts) -> str:
    return "RoCE" if port.link_layer == "Ethernet" else "InfiniBand"


def _rate(port: PortFacts) -> str:
    return f"{number(port.rate_gbit):g} Gb/s"


def _name(port: PortFacts) -> str:
    return f"{port.device}:{port.port}"


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

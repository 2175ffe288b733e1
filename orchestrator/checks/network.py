"""What is judged of a machine's networks: the interface of the training traffic, the way to the master, names, InfiniBand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from orchestrator.checks.check import Check, failed, ok, warning
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.versions import number

__all__ = ["network_checks", "training_interface"]

_INFINIBAND = "32"  # ARPHRD_INFINIBAND of if_arp.h
_DMABUF_KERNEL = (5, 12)


def network_checks(host: Host, facts: Mapping[str, Any]) -> list[Check]:
    """Return every check of this kind, in the order in which they are shown."""
    found = [_interface(host, facts), _route(host, facts), _hostname(host, facts), _infiniband(host, facts), _gdr(host, facts)]
    return [check for check in found if check]


def training_interface(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is known of the interface of the training traffic: that of the inventory, else the one to the master."""
    known = (facts.get("interface"), facts.get("route"))
    return next((found for found in known if isinstance(found, Mapping) and found), {})


def _state(found: Mapping[str, Any]) -> str:
    speed = number(found.get("speed_mbit"))
    return f"MTU {found.get('mtu')}" + f", {speed / 1000:g} Gb/s" * (speed > 0)


def _interface(host: Host, facts: Mapping[str, Any]) -> Check | None:
    name = host.vars.get("interface")
    if not name:
        return None
    state = facts.get("interface")
    if not state:
        hint = "see ip -brief link there, and correct vars.interface"
        return failed(host.name, "interface", f"no {name}", f"{name} up", hint)
    found = f"{name} {state['state']}, {_state(state)}"
    if state["state"] in ("up", "unknown"):
        return ok(host.name, "interface", found)
    return failed(host.name, "interface", found, f"{name} up", "bring it up")


def _route(host: Host, facts: Mapping[str, Any]) -> Check | None:
    if "route" not in facts:
        return None
    route, wanted = facts["route"], host.vars.get("interface")
    if not route:
        hint = "the address of the first host in the inventory must resolve and be reached from every node; see ip route there"
        return failed(host.name, "route", "no way to the master's address", "a route", hint)
    found = f"to the master by {route['interface']}, {_state(route)}"
    apart = wanted and wanted != route["interface"] and not route.get("local")
    if apart and (facts.get("interface") or {}).get("kind") != _INFINIBAND:
        hint = "correct vars.interface, or give the hosts their addresses in the network of the training traffic"
        return warning(host.name, "route", found, f"by {wanted}, which vars.interface says", hint)
    return ok(host.name, "route", found)


def _hostname(host: Host, facts: Mapping[str, Any]) -> Check | None:
    addresses = facts.get("hostname_addresses")
    if "route" not in facts or addresses is None:
        return None
    if not addresses:
        hint = "add it to /etc/hosts there; Gloo and others look their own name up to find the address that they tell"
        return warning(host.name, "hostname", "it does not resolve on the node itself", "an address that others reach", hint)
    if all(ip_address(each).is_loopback for each in addresses):
        if (facts["route"] or {}).get("local"):
            return None  # all nodes are this machine
        hint = "give it the machine's own address in /etc/hosts; Gloo and others tell the address of their own name to all"
        return warning(host.name, "hostname", f"it resolves to {', '.join(addresses)}", "an address that others reach", hint)
    return ok(host.name, "hostname", "resolves to an address that others can reach")


def _infiniband(host: Host, facts: Mapping[str, Any]) -> Check | None:
    ports = facts.get("infiniband") or ()
    if not ports:
        return None
    active = [port for port in ports if port["state"] == "ACTIVE"]
    kinds = Counter(f"{_layer(port)} at {number(port['rate_gbit']):g} Gb/s" for port in active)
    found = f"{len(active)} of {len(ports)} ports active" + "".join(
        f", {count} {kind}" for kind, count in sorted(kinds.items())
    )
    waiting = [f"{_name(port)} {port['state']}, {port['physical']}" for port in ports if port["state"] in ("INIT", "ARMED")]
    if waiting:
        hint = "a subnet manager must run in the fabric (opensm, or the switch's own); see ibstat there"
        return warning(host.name, "infiniband", "; ".join(waiting), "ACTIVE", hint)
    if not active:
        hint = "see ibstat there; without an active port NCCL falls back to sockets"
        words = "; ".join(f"{_name(port)} {port['state']}, {port['physical']}" for port in ports[:8])
        return warning(host.name, "infiniband", words, "an active port", hint)
    best = {layer: max(number(port["rate_gbit"]) for port in active if _layer(port) == layer) for layer in map(_layer, active)}
    slow = [
        f"{_name(port)} at {number(port['rate_gbit']):g} Gb/s"
        for port in active
        if number(port["rate_gbit"]) < best[_layer(port)]
    ]
    if slow:
        hint = "look at its cable and at the switch's port; a port apart for storage is named in NCCL_IB_HCA=^…"
        rates = ", ".join(f"{layer} ports at {rate:g} Gb/s" for layer, rate in sorted(best.items()))
        return warning(host.name, "infiniband", "; ".join(slow), rates, hint)
    bare = [_name(port) for port in active if _layer(port) == "RoCE" and "RoCE v2" not in port["gids"]]
    if bare:
        hint = "give its interface an address, and see show_gids there; NCCL wants NCCL_IB_GID_INDEX of a RoCE v2 entry"
        return warning(host.name, "infiniband", f"no GID of RoCE v2 on {', '.join(bare)}", "one on each port", hint)
    gids = sorted({str(port["ipv4_gid"]) for port in active if port.get("ipv4_gid") is not None})
    return ok(host.name, "infiniband", found + f", RoCE v2 for IPv4 at GID {' or '.join(gids)}" * bool(gids))


def _layer(port: Mapping[str, Any]) -> str:
    return "RoCE" if port["link_layer"] == "Ethernet" else "InfiniBand"


def _name(port: Mapping[str, Any]) -> str:
    return f"{port['device']}:{port['port']}"


def _gdr(host: Host, facts: Mapping[str, Any]) -> Check | None:
    """GPUs and network cards exchange data directly through nvidia-peermem, or through DMA-BUF: Linux 5.12, open driver."""
    if not facts.get("infiniband_gbit") or not isinstance(facts.get("gpus"), list) or "peermem" not in facts:
        return None
    if facts["peermem"]:
        return ok(host.name, "gdr", "nvidia-peermem is loaded")
    numbers = str(facts.get("kernel", "")).split(".")[:2]
    kernel = tuple(int(word) for word in numbers if word.isdecimal())
    if facts.get("open_driver") and kernel >= _DMABUF_KERNEL:
        return ok(host.name, "gdr", "DMA-BUF of the open driver")
    hint = "modprobe nvidia-peermem, as root; without it every byte between nodes goes through the host's memory"
    return warning(host.name, "gdr", "neither nvidia-peermem nor DMA-BUF", "one of them", hint)

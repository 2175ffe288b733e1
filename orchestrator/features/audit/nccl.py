"""Variables of NCCL: names that it does not know, values that hurt, and what they point to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from ipaddress import IPv4Interface, IPv6Interface

from orchestrator.checks import split_names
from orchestrator.checks.check import Check, failure, ok, warning
from orchestrator.checks.facts import NodeFacts
from orchestrator.features.audit.catalogue import CATALOGUE
from orchestrator.features.audit.report import HostReport
from orchestrator.inventory import Host

_CURE = next(entry.cure for entry in CATALOGUE if entry.name == "nccl_env")
_INVENTORY = "the inventory"
_HURT = {
    ("NCCL_P2P_DISABLE", "1"): "GPUs exchange data through the host's memory",
    ("NCCL_SHM_DISABLE", "1"): "GPUs without a direct way exchange data through the network",
    ("NCCL_IB_DISABLE", "1"): "sockets in place of InfiniBand and RoCE",
    ("NCCL_NET", "Socket"): "sockets in place of InfiniBand and RoCE",
    ("NCCL_NET_GDR_LEVEL", "LOC"): "no GPUDirect RDMA",
    ("NCCL_NET_GDR_LEVEL", "0"): "no GPUDirect RDMA",
    ("NCCL_NVLS_ENABLE", "0"): "no reduction in NVLink switches",
    ("NCCL_DEBUG", "TRACE"): "a line for each call slows every step",
}
"""What values of variables cost."""
_NEVER_HURTS = {"1": ("_ENABLE",), "0": ("_DISABLE",)}
"""Ends of the names of switches that leave on what is on by default."""
_PLUGINS = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_NET")


@cache
def known_variables() -> Mapping[str, bool]:
    """Return the variables that NCCL knows, True for those of debugging."""
    text = files(__package__).joinpath("nccl_variables.txt").read_text(encoding="utf-8")
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: bool(marks) for name, *marks in rows}


def nearest_variable(name: str) -> str:
    """Return the variable of NCCL that a name almost is; empty for one of NCCL's own, and for a
    name that is near none.

    >>> nearest_variable("NCCL_ALG"), nearest_variable("NCCL_ALGO"), nearest_variable("MY_NCCL")
    ('NCCL_ALGO', '', '')
    """
    known = known_variables()
    return "" if name in known else "".join(get_close_matches(name.strip(), known, 1, 0.85))


def check_nccl(
    host: Host, facts: NodeFacts, others: Sequence[NodeFacts], report: HostReport
) -> Iterator[Check]:
    """Yield what is wrong with the variables of NCCL on a host, else one check that names them.
    ``others``: the facts of the other nodes.
    """
    places = {_INVENTORY: _of_nccl(host.env), **report.nccl}
    places = {where: values for where, values in places.items() if values}
    # Files set what is not set yet: the user's, then that of the machine.
    settings = [pair for values in reversed(places.values()) for pair in values.items()]
    effective = dict(settings)
    found = [
        *_unknown(host.name, places),
        *_hurting(host.name, effective),
        *_missing_devices(host.name, effective, facts),
        *_missing_files(host.name, effective, report),
        *_interfaces(host.name, effective, facts, others, report),
    ]
    if found:
        yield from found
    elif effective:
        yield ok(host.name, "nccl_env", ", ".join(sorted(effective)))
    else:
        yield ok(host.name, "nccl_env", "none set: NCCL configures itself")


def _of_nccl(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("NCCL_")}


def _warn(host: str, found: str, expected: str, hint: str = _CURE) -> Check:
    return warning(host, "nccl_env", found, expected, hint)


def _unknown(host: str, places: Mapping[str, Mapping[str, str]]) -> Iterator[Check]:
    known = known_variables()
    has_plugin = any(name in values for values in places.values() for name in _PLUGINS)
    for where, values in places.items():
        for name in values:
            if name in known:
                continue
            if close := nearest_variable(name):
                words = f"{name!r} of {where}, which NCCL does not read"
                yield _warn(host, words, close, f"did you mean {close}?")
            elif name.strip().startswith("NCCL_") and not has_plugin:
                # A plug-in has variables of its own, and files set those of other libraries.
                words = f"{name!r} of {where}, which NCCL does not read"
                yield _warn(host, words, "names that NCCL knows")


def _hurting(host: str, effective: Mapping[str, str]) -> Iterator[Check]:
    costs = {name: cost for name, value in effective.items() if (cost := _HURT.get((name, value)))}
    for name, cost in costs.items():
        yield _warn(host, f"{name}={effective[name]}: {cost}", "not set")
    known = known_variables()
    left = [
        f"{name}={value}"
        for name, value in sorted(effective.items())
        if known.get(name) and name not in costs and not name.endswith(_NEVER_HURTS.get(value, ()))
    ]
    if left:
        expected = "NCCL's own choice; these are for debugging, and keep it from adapting"
        yield _warn(host, ", ".join(left), expected)


def _missing_devices(host: str, effective: Mapping[str, str], facts: NodeFacts) -> Iterator[Check]:
    """Names of NCCL_IB_HCA that match no device: ``^`` excludes, ``=`` asks for the whole name."""
    value = effective.get("NCCL_IB_HCA", "")
    names = {port.device for port in facts.infiniband}
    excludes, is_exact, listed = split_names(value)
    wanted = [entry.partition(":")[0] for entry in listed]
    lost = [word for word in wanted if not _matching(word, names, is_exact)]
    if lost and not excludes:
        there = ", ".join(sorted(names)) or "none"
        yield _warn(host, f"NCCL_IB_HCA={value}: no device {', '.join(lost)}", f"of {there}")


def _missing_files(host: str, effective: Mapping[str, str], report: HostReport) -> Iterator[Check]:
    for name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"):
        path = effective.get(name)
        if path and report.files.get(path) is False:
            yield _warn(host, f"{name}={path}: no such file", "a file that can be read")


def _interfaces(
    host: str,
    effective: Mapping[str, str],
    facts: NodeFacts,
    others: Sequence[NodeFacts],
    report: HostReport,
) -> Iterator[Check]:
    """The interfaces of NCCL_SOCKET_IFNAME: are there any, and do they lead to the other nodes?"""
    value = effective.get("NCCL_SOCKET_IFNAME", "")
    if not value or not report.interfaces:
        return
    excludes, is_exact, prefixes = split_names(value)
    matched = {name for word in prefixes for name in _matching(word, report.interfaces, is_exact)}
    if excludes:
        matched = set(report.interfaces) - matched - {"lo"}
    shown = f"NCCL_SOCKET_IFNAME={value}"
    if not matched:
        there = ", ".join(report.interfaces)
        yield failure(host, "nccl_env", f"{shown}: no such interface", f"one of {there}", _CURE)
        return
    routes = {name for name in facts.routes.values() if name}
    if not routes or routes & matched or (facts.route and facts.route.local):
        return
    expected = f"an interface that leads to the other nodes, as {', '.join(sorted(routes))}"
    addresses = [address for name in matched for address in _addresses(facts).get(name, ())]
    if not addresses:
        yield _warn(host, f"{shown}: no address on {', '.join(sorted(matched))}", expected)
    elif not all(any(map(_leads_to(other), addresses)) for other in others):
        words = f"{shown}: {', '.join(sorted(matched))} shares no network with the other nodes"
        yield _warn(host, words, expected)


def _addresses(facts: NodeFacts) -> dict[str, tuple[IPv4Interface | IPv6Interface, ...]]:
    return {network.name: network.addresses for network in facts.networks}


def _leads_to(other: NodeFacts) -> Callable[[IPv4Interface | IPv6Interface], bool]:
    """Return a function that tells whether another node has an address in the network of an
    interface. A network of two is one of a routed fabric, in which every node has its own.
    """
    theirs = [address.ip for group in _addresses(other).values() for address in group]

    def leads(own: IPv4Interface | IPv6Interface) -> bool:
        is_routed = own.network.prefixlen >= own.max_prefixlen - 2
        return is_routed or any(ip in own.network for ip in theirs)

    return leads


def _matching(word: str, names: Iterable[str], is_exact: bool) -> list[str]:
    return [name for name in names if name == word or not is_exact and name.startswith(word)]

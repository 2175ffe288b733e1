"""Checks of InfiniBand and RoCE ports: their state, and what NCCL would use of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from orchestrator.checks.check import Check, cure, ok, warning
from orchestrator.checks.facts import NodeFacts, PortFacts
from orchestrator.inventory import Host, fold
from orchestrator.inventory.versions import number
from orchestrator.plural import plural

_STATES = ("ACTIVE", "DOWN", "INIT", "ARMED")


def check_ports(host: Host, facts: NodeFacts) -> Check | None:
    """Return the first finding about the ports of a node, else one check that counts them."""
    ports = facts.infiniband
    if not ports:
        return None
    active = [port for port in ports if port.state == "ACTIVE"]
    wanted = host.env.get("NCCL_IB_HCA", "")
    chosen, used = named_ports(wanted, ports), named_ports(wanted, active)
    kinds = Counter(f"{_layer(port)} at {_rate(port)}" for port in active)
    counted = f"{len(active)} of {len(ports)} ports active" + "".join(
        f", {count} {kind}" for kind, count in sorted(kinds.items())
    )
    # DOWN is a port that nobody uses; NOP, ACTIVE_DEFER and a state that cannot be read are those
    # of a port that fails.
    odd = [
        f"{_name(port)} {port.state or 'in an unreadable state'}"
        for port in chosen
        if port.state not in _STATES
    ]
    odd += [f"{_name(port)} at an unknown rate" for port in used if not port.rate_gbit]
    if odd:
        hint = "see ibstat and dmesg on the node; NCCL_IB_HCA=^… leaves a port out"
        return warning(
            host.name, "infiniband", "; ".join(odd[:8]), "ACTIVE or DOWN, at a known rate", hint
        )
    waiting = [
        f"{_name(port)} {port.state}, {port.physical}"
        for port in chosen
        if port.state in ("INIT", "ARMED")
    ]
    if waiting:
        hint = "a subnet manager must run in the fabric (opensm, or the switch's own); see ibstat on the node"
        return warning(host.name, "infiniband", "; ".join(waiting), "ACTIVE", hint)
    if not active:
        hint = f"see ibstat on the node; {_over_tcp(host, facts)}"
        words = "; ".join(f"{_name(port)} {port.state}, {port.physical}" for port in ports[:8])
        return warning(host.name, "infiniband", words, "an active port", hint)
    if facts.verbs == 0:
        hint = cure(
            host,
            "modprobe ib_uverbs, as root",
            "resources: {limits: {rdma/NAME: 1}}, with the name that kubectl describe node lists;"
            " and hostNetwork: true if the plugin gives no interface",
        )
        hint += f"; {_over_tcp(host, facts)}"
        expected = f"the devices of {plural(len(active), 'active port')}"
        return warning(host.name, "infiniband", "no /dev/infiniband/uverbs*", expected, hint)
    if not used:
        hint = f"correct NCCL_IB_HCA; {_over_tcp(host, facts)}"
        found = f"NCCL_IB_HCA={wanted} leaves no active port"
        names = ", ".join(_name(port) for port in active[:8])
        return warning(host.name, "infiniband", found, f"one or more of {names}", hint)
    best = {}
    for layer in map(_layer, used):
        best[layer] = max(number(port.rate_gbit) for port in used if _layer(port) == layer)
    slow = [
        f"{_name(port)} at {_rate(port)}"
        for port in used
        if number(port.rate_gbit) < best[_layer(port)]
    ]
    if slow:
        hint = "check its cable and the switch port; exclude a separate storage port with NCCL_IB_HCA=^…"
        rates = ", ".join(f"{layer} ports at {rate:g} Gb/s" for layer, rate in sorted(best.items()))
        return warning(host.name, "infiniband", "; ".join(slow), rates, hint)
    if wrong := _wrong_gids(host, used):
        return wrong
    gids = sorted({str(port.ipv4_gid) for port in used if port.ipv4_gid is not None})
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


def _over_tcp(host: Host, facts: NodeFacts) -> str:
    """Return what NCCL does on a node without a port that it may use."""
    names = [
        host.vars.get("interface"),
        facts.interface and facts.interface.name,
        facts.route and facts.route.interface,
    ]
    through = next((f", through {name}" for name in names if name), "")
    return f"without a port, NCCL's data goes over TCP{through}"


def split_names(value: str) -> tuple[bool, bool, list[str]]:
    """Return of a list of names for NCCL whether it excludes them, whether they are whole names and
    not beginnings of names, and the names.

    >>> split_names("^=mlx5_1,mlx5_2:1")
    (True, True, ['mlx5_1', 'mlx5_2:1'])
    """
    names = [word for word in value.lstrip("^=").split(",") if word]
    return value.startswith("^"), "=" in value[:2], names


def named_ports(value: str, ports: Sequence[PortFacts]) -> list[PortFacts]:
    """Return the ports that a value of NCCL_IB_HCA leaves: ``^`` excludes, ``=`` asks for whole
    names, and a name may have a port.

    >>> ports = [PortFacts(device=f"mlx5_{number}", port="1") for number in (1, 2, 10)]
    >>> [[port.device for port in named_ports(value, ports)] for value in ("mlx5_1", "^=mlx5_1:1")]
    [['mlx5_1', 'mlx5_10'], ['mlx5_2', 'mlx5_10']]
    """
    excludes, is_exact, listed = split_names(value)
    words = [word.partition(":") for word in listed]

    def is_named(port: PortFacts) -> bool:
        return any(
            number in ("", port.port)
            and (port.device == device or not is_exact and port.device.startswith(device))
            for device, _, number in words
        )

    return [port for port in ports if not words or is_named(port) != excludes]


def _wrong_gids(host: Host, ports: Sequence[PortFacts]) -> Check | None:
    """Return what is wrong with the GIDs that NCCL would use on RoCE ports."""
    roce = [port for port in ports if _layer(port) == "RoCE"]
    bare = [_name(port) for port in roce if "RoCE v2" not in port.gids]
    if bare:
        hint = "give its interface an address, and see show_gids on the node; NCCL_IB_GID_INDEX must name a RoCE v2 entry"
        found = f"no RoCE v2 GID on {', '.join(bare)}"
        return warning(host.name, "infiniband", found, "one on each port", hint)
    index = host.env.get("NCCL_IB_GID_INDEX", "")
    wrong = {_name(port): flaw for port in roce if (flaw := _gid_flaw(port, index))}
    if wrong:
        found = ", ".join(f"{flaw} on {name}" for name, flaw in wrong.items())
        found = f"NCCL_IB_GID_INDEX={index}: {found}"
        expected = "the GID of RoCE v2 and of an address that other nodes reach"
        return warning(host.name, "infiniband", found, expected, _gid_cure(roce))
    return None


def _gid_flaw(port: PortFacts, index: str) -> str:
    """Return what is wrong with a GID of a RoCE port; empty if nothing is, or none is chosen."""
    if not index.isdecimal():
        return ""
    kinds = [kind for kind, indexes in port.gids.items() if index in indexes.split(",")]
    if not kinds:
        return "no GID"
    if kinds != ["RoCE v2"]:
        return "a GID of RoCE v1"
    return "a link-local GID" if index in port.link_local.split(",") else ""


def _gid_cure(ports: Sequence[PortFacts]) -> str:
    """Say which GID NCCL takes by itself: as its net_ib does, RoCE v2 with an IPv4 address."""
    best = sorted({port.ipv4_gid for port in ports if port.ipv4_gid is not None})
    if not best:
        return "give its interface an IPv4 address; show_gids on the node lists the GIDs"
    shown = " or ".join(map(str, best))
    return f"unset it: NCCL 2.21 and later take GID {shown}; for earlier ones set it to that"


def unlike_pkeys(hosts: Sequence[Host], facts: Mapping[str, NodeFacts]) -> list[Check]:
    """Return a warning for each node with a port that NCCL would use, and that is no full member of
    the partition of most nodes: by the PKey at the index of NCCL_IB_PKEY, or at 0.
    """
    keys: dict[str, list[tuple[str, str]]] = {}
    index_of = {host.name: host.env.get("NCCL_IB_PKEY", "0") for host in hosts}
    for host in hosts:
        ports = facts[host.name].infiniband if host.name in facts else ()
        active = [port for port in ports if port.state == "ACTIVE" and port.pkeys is not None]
        for port in named_ports(host.env.get("NCCL_IB_HCA", ""), active):
            key = (port.pkeys or {}).get(index_of[host.name], "")
            keys.setdefault(host.name, []).append((_name(port), key))
    full = [(host, key) for host, own in keys.items() for _, key in own if _is_full(key)]
    counts = Counter(key for _, key in dict.fromkeys(full))
    # On a tie the default partition, 0xffff, is the usual one.
    usual = max(counts, key=lambda key: (counts[key], key), default="")
    others = fold(dict.fromkeys(host for host, key in full if key == usual))
    expected = f"{usual} as on {others}" if usual else "a PKey of 0x8000 or more"
    hint = (
        "make the port a full member of the partition, in the subnet manager; or name another PKey"
        " by its index with NCCL_IB_PKEY"
    )
    checks = []
    for name, own in keys.items():
        wrong = [f"{port} has {_describe_key(key)}" for port, key in own if key != usual or not key]
        if wrong:
            found = f"{', '.join(wrong[:8])} at index {index_of[name]}"
            checks.append(warning(name, "infiniband", found, expected, hint))
    return checks


def _is_full(key: str) -> bool:
    """Return True for the PKey of a full member: limited ones reach full ones alone."""
    return key >= "0x8000"  # as the kernel writes them, text has the order of numbers


def _describe_key(key: str) -> str:
    if key and not _is_full(key):
        return f"PKey {key} of a limited member"
    return f"PKey {key}" if key else "no PKey"

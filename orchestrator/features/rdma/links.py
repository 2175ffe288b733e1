"""Which RDMA ports to try between which nodes, and what the outcome means; nothing is run here.

A port that is active may still reach nobody: a VLAN, a partition key, a GID index or a firewall
keeps packets back, and NCCL hangs or ends in the middle of a run.

>>> list(rounds(["a", "b", "c"]))
[[('b', 'c')], [('a', 'c')], [('a', 'b')]]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.checks.check import Check, failure, ok, warning
from orchestrator.checks.facts import NodeFacts
from orchestrator.inventory import Host
from orchestrator.plural import plural

_DEVICE = re.compile(r"^hca_id:\s*(\S+)", re.MULTILINE)
_PORT = re.compile(r"^\s+port:\s+(\d+)$(.*?)(?=^\s+port:|\Z)", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"^\s+(state|active_mtu|link_layer):\s+(\S+)", re.MULTILINE)
_SENT = re.compile(
    r"/([^/]+)/ports/(\d+)/(?:counters/port_xmit_(?:data|packets)|hw_counters/sent_pkts):(\d+)$",
    re.MULTILINE,
)
_HINT = (
    "both ports are active, and no answer comes: see the VLAN and partition of the switch ports, "
    "the GID index, and for RoCE a firewall that drops UDP port 4791"
)


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """An active port: its link layer, the bytes of its path MTU, and the index of its GID, which
    an InfiniBand port does without.
    """

    device: str
    port: str
    layer: str
    mtu: int
    gid: int | None = None

    @property
    def name(self) -> str:
        """The device and its port."""
        return f"{self.device}:{self.port}"


@dataclass(frozen=True, slots=True)
class Link:
    """A port of one node and one of another, which are to exchange messages."""

    here: tuple[str, RdmaPort]
    there: tuple[str, RdmaPort]

    @property
    def mtu(self) -> int:
        """The path MTU that both ports have."""
        return min(self.here[1].mtu, self.there[1].mtu)

    def __str__(self) -> str:
        ends = (f"{host} {port.name}" for host, port in (self.here, self.there))
        return " and ".join(ends)


def active_ports(told: str, host: Host, facts: NodeFacts) -> list[RdmaPort]:
    """Return the active ports that ``ibv_devinfo`` tells of, in its order.

    The GID of a RoCE port is that of NCCL_IB_GID_INDEX on the host, else the one of RoCE v2 with an
    IPv4 address.
    """
    found = {(port.device, str(port.port)): port.ipv4_gid for port in facts.infiniband}
    chosen = host.env.get("NCCL_IB_GID_INDEX", "")
    ports = []
    parts = _DEVICE.split(told)
    for device, text in zip(parts[1::2], parts[2::2], strict=True):
        for number, rest in _PORT.findall(text):
            values = dict(_VALUE.findall(rest))
            if values.get("state") != "PORT_ACTIVE":
                continue
            gid = found.get((device, number))
            if chosen.isdecimal():
                gid = int(chosen)
            layer, mtu = values.get("link_layer", ""), values.get("active_mtu", "1024")
            is_routed = layer == "Ethernet"
            ports.append(RdmaPort(device, number, layer, int(mtu), gid if is_routed else None))
    return ports


def rounds(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield every pair of names once, in rounds in which each name has one partner at most: the
    schedule of a round-robin tournament.
    """
    places: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        places = [places[0], places[-1], *places[1:-1]]


def links(pair: tuple[str, str], ports: Mapping[str, Sequence[RdmaPort]]) -> list[Link]:
    """Return the links between two nodes: their ports one to one, in order, as rails are wired."""
    here, there = pair
    return [
        Link((here, one), (there, other))
        for one, other in zip(ports[here], ports[there], strict=False)
        if one.layer == other.layer
    ]


def counts_sent(told: str) -> dict[str, int]:
    """Return by port what its counters of sent data and packets add up to.

    >>> root = "/sys/class/infiniband/rxe0/ports/1"
    >>> counts_sent(f"{root}/hw_counters/sent_pkts:7\\n{root}/counters/port_xmit_data:5\\n")
    {'rxe0:1': 12}
    """
    counts: dict[str, int] = {}
    for device, port, count in _SENT.findall(told):
        name = f"{device}:{port}"
        counts[name] = counts.get(name, 0) + int(count)
    return counts


def still_counters(
    links: Sequence[Link],
    before: Mapping[str, str | None],
    after: Mapping[str, str | None],
) -> list[Check]:
    """Return a warning for each node with a port that has sent messages, and counted none of them:
    by what its counters told ``before`` and ``after``. Ports without counters are left out.
    """
    ends = {end for link in links for end in (link.here, link.there)}
    still: dict[str, list[str]] = {}
    for host, port in sorted(ends, key=lambda end: (end[0], end[1].name)):
        counts = [counts_sent(told[host] or "").get(port.name) for told in (before, after)]
        if None not in counts and counts[0] == counts[1]:
            still.setdefault(host, []).append(port.name)
    hint = "telemetry of runs shows no traffic of it; update its driver or firmware"
    return [
        warning(
            host, "rdma", f"{', '.join(names)} sent messages uncounted", "counters that move", hint
        )
        for host, names in still.items()
    ]


def judge_links(
    ports: Mapping[str, Sequence[RdmaPort]], tried: Sequence[Link], broken: Mapping[Link, str]
) -> list[Check]:
    """Return a check of every node. A port that exchanged messages with no other node is named by
    itself, a single link with both of its ends.
    """
    of_end: dict[tuple[str, RdmaPort], list[Link]] = {}
    for link in tried:
        of_end.setdefault(link.here, []).append(link)
        of_end.setdefault(link.there, []).append(link)
    mute = {end for end, own in of_end.items() if len(own) > 1 and all(x in broken for x in own)}
    checks = []
    for host, own_ports in ports.items():
        ends = [(host, port) for port in own_ports]
        own = [link for end in ends for link in of_end.get(end, ())]
        words = [
            f"{end[1].name} exchanges messages with none of {len(of_end[end])} nodes: "
            f"{broken[of_end[end][0]]}"
            for end in ends
            if end in mute
        ]
        words += [
            f"{link}: {broken[link]}"
            for link in own
            if link in broken and link.here[0] == host and not {link.here, link.there} & mute
        ]
        if words:
            expected = "messages between all pairs of nodes"
            checks.append(failure(host, "rdma", "; ".join(words[:8]), expected, _HINT))
        elif good := [link for link in own if link not in broken]:
            count = len({end[0] for link in good for end in (link.here, link.there)}) - 1
            text = f"{plural(len(good), 'link')} to {plural(count, 'node')} exchanged messages"
            checks.append(ok(host, "rdma", text))
    return [*checks, *_unlike_mtu(ports)]


def _unlike_mtu(ports: Mapping[str, Sequence[RdmaPort]]) -> list[Check]:
    """Return a warning for each node with a port whose MTU is smaller than that of the others."""
    best: dict[str, int] = {}
    for own in ports.values():
        for port in own:
            best[port.layer] = max(best.get(port.layer, 0), port.mtu)
    checks = []
    for host, own in ports.items():
        small = [port for port in own if port.mtu < best[port.layer]]
        if small:
            found = ", ".join(f"{port.name} with {port.mtu}" for port in small)
            most = f"an active MTU of {best[small[0].layer]}, as on other nodes"
            hint = "raise the MTU of its interface and switch port: ip link set … mtu 9000"
            checks.append(warning(host, "rdma", found, most, hint))
    return checks


def without_program(host: str) -> Check:
    """Return the warning about a node on which nothing can be tried."""
    hint = "apt-get install ibverbs-utils, or dnf install libibverbs-utils"
    return warning(host, "rdma", "no ibv_rc_pingpong", "the program", hint)


def without_port(hosts: Sequence[str]) -> list[Check]:
    """Return the warning about nodes without an active port, if others have some."""
    hint = "see the check infiniband"
    return [
        warning(host, "rdma", "no active port", "one, as on other nodes", hint) for host in hosts
    ]


def words_of(host: Host, text: str) -> str:
    """Return what a ping has said in its last lines, for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if not re.match(r"(local|remote) address", line)]
    return f"on {host.name}: {wrong[-1][:200]}" if wrong else f"on {host.name}: no message came"

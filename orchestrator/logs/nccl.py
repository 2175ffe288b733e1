"""NCCL's own log: the network that NCCL chose, and the paths that it set up between ranks.

The lines, as NCCL 2.4 to 2.28 prints them at NCCL_DEBUG=INFO with the subsystems INIT, NET and ENV:

    node1:179:179 [0] NCCL INFO NET/IB : No device found.
    node1:179:179 [0] NCCL INFO NET/Socket : Using [0]eth0:10.11.0.2<0>
    node1:179:179 [0] NCCL INFO Using network Socket                                            since 2.6
    node1:179:179 [0] NCCL INFO Channel 00/02 : 0 1 2 3                                         rings, on rank 0
    node1:179:179 [0] NCCL INFO Trees [0] 1/4/-1->0->-1 [1] 1/-1/-1->0->2
    node1:179:179 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 1 p2p channels per peer
    node1:179:179 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    node1:179:179 [0] NCCL INFO Channel 01/0 : 0[0] -> 2[2] [send] via NET/IB/0/GDRDMA

A path begins with `Ring` up to 2.6 and has no connection index (`/0`) in older versions. Devices in
brackets, missing in some versions, are bus ids up to 2.17. Shared memory is `direct shared memory`
up to 2.12, then `SHM/direct/direct` or `SHM/CE/CE`. The list of channels has no `nvls` before 2.17,
no `collnet` before 2.20, and is missing up to 2.6. Source: src/transport, src/graph and src/init of
NCCL.

RCCL, AMD's version, calls itself NCCL in its lines too, and ends the lines of paths and trees with
the communicator:

    g1:11143:11194 [0] NCCL INFO Channel 00/0 : 1[c6000] -> 4[c1000] [send] via NET/Socket/1 comm 0x95cdeb0 nRanks 08
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.inventory import fold
from orchestrator.logs.notes import (
    NCCL_NETWORK_IN_NODE,
    NCCL_NO_GDRDMA,
    NCCL_NO_NVLS,
    NCCL_SHARED_MEMORY,
    NCCL_SOCKET,
)
from orchestrator.notes import Note

_CHOSEN = re.compile(rb"NCCL INFO Using network (?P<name>[A-Za-z0-9_ -]{1,40}?)\s*$", re.MULTILINE)
_INTERFACE = re.compile(
    rb"NCCL INFO NET/(?P<name>Socket|IB) : Using \[0\](?P<device>[A-Za-z0-9_.-]{1,32})"
)
_PATH = re.compile(
    rb"NCCL INFO (?:Ring|Channel) \d{1,4}(?:/\d{1,4})? : \d{1,7}(?:\[[0-9a-f]{1,16}\])? -> \d{1,7}(?:\[[0-9a-f]{1,16}\])?"
    rb" (?P<way>\[send\] |\[receive\] )?via (?P<kind>direct shared memory|SHM|P2P/(?:(?! comm 0x)[A-Za-z ]){1,20}"
    rb"|NET/(?:(?! comm 0x)[A-Za-z0-9_ -]){1,40})"
    rb"(?P<rest>[^\r\n]{0,60})"
)
_CHANNELS = re.compile(
    rb"NCCL INFO (?P<coll>\d{1,4}) coll channels,(?: \d{1,4} collnet channels,)?(?: (?P<nvls>\d{1,4}) nvls channels,)?"
    rb" (?P<p2p>\d{1,4}) p2p channels"
)
_RINGS = re.compile(
    rb"NCCL INFO Channel \d{1,4}/(?P<rings>\d{1,4}) :(?: {1,8}\d{1,7})+ *\r?$", re.MULTILINE
)
_TREES = re.compile(rb"NCCL INFO Trees(?P<trees>(?: \[\d{1,4}\] [-/>0-9]{1,60})+)")
_MULTICAST = re.compile(rb"NVLS multicast support is (?P<no>not )?available on dev")
_SETTING = re.compile(
    rb"NCCL INFO (?P<name>NCCL_(?:IB|P2P|NVLS)_(?:DISABLE|ENABLE)) set by environment to (?P<value>[0-9]{1,3})"
)
_P2P_OFF = b"P2P is disabled between connected GPUs"


@dataclass(frozen=True, slots=True)
class Paths:
    """NCCL's choices over all ranks.

    ``paths`` counts the connections of each kind: ``P2P/CUMEM``, ``P2P/IPC``, ``P2P/direct
    pointer``, ``SHM``, ``NET/IB``, ``NET/Socket``, and so on. Numbers are the maximum over all
    communicators, None if the log does not contain them. ``gdrdma`` is None if no path uses a
    network; ``multicast``: whether the hardware has NVLS. ``settings`` are the variables that NCCL
    read; ``p2p_refused``: NCCL reports that the driver forbids P2P.
    """

    networks: tuple[str, ...] = ()
    paths: Mapping[str, int] = field(default_factory=dict)
    coll_channels: int | None = None
    p2p_channels: int | None = None
    nvls_channels: int | None = None
    rings: int | None = None
    trees: int | None = None
    gdrdma: bool | None = None
    multicast: bool | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    p2p_refused: bool = False

    def words(self, nodes: int, world_size: int) -> tuple[str, ...]:
        """Return the choices as words for the hardware line; empty for one rank, which sends
        nothing.

        Names a network if a path uses it, or if the run has several nodes and no path is known.
        """
        if world_size == 1:
            return ()
        kinds = sorted(self.paths)
        over = {kind for kind in kinds if kind.startswith("NET/")}
        words = [
            name
            for name in self.networks
            if (nodes > 1 and not kinds) or name.partition(" on ")[0] in over
        ]
        named = {name.partition(" on ")[0] for name in words}
        words += [kind for kind in kinds if kind not in named]
        if self.gdrdma:
            words.append("GDRDMA")
        if self.coll_channels:
            words.append(f"{self.coll_channels} channels")
        if self.nvls_channels:
            words.append(f"{self.nvls_channels} NVLS channels")
        return tuple(words)


def transport(logs: Iterable[bytes]) -> Paths:
    """Return NCCL's choices from all logs of a run. Hostile bytes match no pattern and change
    nothing.

    >>> chosen = transport([b"n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\\n"])
    >>> chosen.paths, chosen.words(nodes=1, world_size=2)
    ({'P2P/CUMEM': 1}, ('P2P/CUMEM',))
    """
    names: dict[str, None] = {}
    paths: Counter[str] = Counter()
    most: dict[str, int] = {}
    settings: dict[str, str] = {}
    direct: set[bool] = set()
    multicast: bool | None = None
    refused = False
    for data in logs:
        names |= dict.fromkeys(networks([data]))
        for match in _PATH.finditer(data):
            kind, over = _kind(match["kind"].decode()), match["kind"].startswith(b"NET/")
            paths[kind] += match["way"] != b"[receive] "
            direct |= {b"GDRDMA" in match["rest"]} if over else set()
        for pattern in (_CHANNELS, _RINGS):
            for match in pattern.finditer(data):
                for name, text in match.groupdict().items():
                    most[name] = max(most.get(name, 0), int(text)) if text else most.get(name, 0)
        for match in _TREES.finditer(data):
            most["trees"] = max(most.get("trees", 0), match["trees"].count(b"["))
        for match in _MULTICAST.finditer(data):
            multicast = not match["no"] and multicast is not False
        settings |= {
            match["name"].decode(): match["value"].decode() for match in _SETTING.finditer(data)
        }
        refused |= _P2P_OFF in data
    return Paths(
        networks=tuple(sorted(names)),
        paths={kind: count for kind, count in sorted(paths.items()) if count},
        coll_channels=most.get("coll"),
        p2p_channels=most.get("p2p"),
        nvls_channels=most.get("nvls"),
        rings=most.get("rings"),
        trees=most.get("trees"),
        gdrdma=all(direct) if direct else None,
        multicast=multicast,
        settings=settings,
        p2p_refused=refused,
    )


def _kind(text: str) -> str:
    if text == "direct shared memory":
        return "SHM"
    return text.rstrip()


def fallbacks(
    chosen: Paths, nodes: int, world_size: int, infiniband_gbit: Mapping[str, float | None]
) -> list[Note]:
    """Return a text for each choice of NCCL that is slower than the hardware allows, as far as the
    log shows it.

    One rank sends nothing and has none. ``infiniband_gbit``: by host, the rate of its active
    InfiniBand ports in Gbit/s; None or 0 without an active port.
    """
    if world_size == 1:
        return []
    active = sorted(host for host, rate in infiniband_gbit.items() if rate)
    over = [kind for kind in chosen.paths if kind.startswith("NET/")]
    sockets = [name for name in chosen.networks or over if name.startswith("NET/Socket")]
    notes = [_socket(name, active, chosen.settings) for name in sockets if nodes > 1]
    notes += [NCCL_NETWORK_IN_NODE(network=kind) for kind in over if nodes == 1]
    if "NET/IB" in over and chosen.gdrdma is False:
        notes.append(NCCL_NO_GDRDMA())
    if chosen.settings.get("NCCL_NVLS_ENABLE") == "0":
        notes.append(NCCL_NO_NVLS())
    if "SHM" in chosen.paths and (
        chosen.p2p_refused or chosen.settings.get("NCCL_P2P_DISABLE") == "1"
    ):
        reason = "NCCL_P2P_DISABLE is 1"
        if chosen.p2p_refused:
            reason = "the driver forbids P2P between connected GPUs"
        notes.append(NCCL_SHARED_MEMORY(reason=reason))
    return notes


def _socket(name: str, active: list[str], settings: Mapping[str, str]) -> Note:
    why = ""
    if name.partition(" on ")[2].startswith("ib"):
        why = ": that interface is IP over InfiniBand"
    if active:
        why = f", although {fold(active)} {'have' if len(active) > 1 else 'has'} active ports"
        why += "; NCCL_IB_DISABLE is 1" if settings.get("NCCL_IB_DISABLE") == "1" else ""
    return NCCL_SOCKET(network=name, why=why)


def networks(logs: Iterable[bytes]) -> tuple[str, ...]:
    """Return the distinct networks that NCCL chose, under NCCL's names, with the first interface of
    each.

    >>> networks([b"n:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.11.0.2<0>\\nn:1:1 [0] NCCL INFO Using network Socket\\n"])
    ('NET/Socket on eth0',)
    """
    names: dict[str, None] = {}
    for data in logs:
        devices = {match["name"]: match["device"].decode() for match in _INTERFACE.finditer(data)}
        for match in _CHOSEN.finditer(data):
            device = devices.get(match["name"])
            name = match["name"].decode()
            names[f"NET/{name} on {device}" if device else f"NET/{name}"] = None
    return tuple(sorted(names))

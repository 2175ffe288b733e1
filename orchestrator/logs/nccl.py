"""What NCCL says of itself in its own log: the network that it chose, and the paths that it set up between ranks.

The lines, as NCCL 2.4 to 2.28 print them at NCCL_DEBUG=INFO with the subsystems INIT, NET and ENV:

    node1:179:179 [0] NCCL INFO NET/IB : No device found.
    node1:179:179 [0] NCCL INFO NET/Socket : Using [0]eth0:10.11.0.2<0>
    node1:179:179 [0] NCCL INFO Using network Socket                                            since 2.6
    node1:179:179 [0] NCCL INFO Channel 00/02 : 0 1 2 3                                         rings, on rank 0
    node1:179:179 [0] NCCL INFO Trees [0] 1/4/-1->0->-1 [1] 1/-1/-1->0->2
    node1:179:179 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 1 p2p channels per peer
    node1:179:179 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    node1:179:179 [0] NCCL INFO Channel 01/0 : 0[0] -> 2[2] [send] via NET/IB/0/GDRDMA

A path begins with `Ring` up to 2.6 and has no connection index (`/0`) in older versions; devices in brackets, which some lack,
are bus ids up to 2.17. Shared memory is `direct shared memory` up to 2.12, then `SHM/direct/direct` or `SHM/CE/CE`. The list of
channels has no `nvls` before 2.17, no `collnet` before 2.20, and is missing up to 2.6. Source: src/transport, src/graph and
src/init of NCCL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.inventory.hostset import fold

__all__ = ["Paths", "fallbacks", "networks", "transport"]

_CHOSEN = re.compile(rb"NCCL INFO Using network (?P<name>[A-Za-z0-9_ -]{1,40}?)\s*$", re.MULTILINE)
_INTERFACE = re.compile(rb"NCCL INFO NET/(?P<name>Socket|IB) : Using \[0\](?P<device>[A-Za-z0-9_.-]{1,32})")
_PATH = re.compile(
    rb"NCCL INFO (?:Ring|Channel) \d{1,4}(?:/\d{1,4})? : \d{1,7}(?:\[[0-9a-f]{1,16}\])? -> \d{1,7}(?:\[[0-9a-f]{1,16}\])?"
    rb" (?P<way>\[send\] |\[receive\] )?via (?P<kind>direct shared memory|SHM|P2P/[A-Za-z ]{1,20}|NET/[A-Za-z0-9_ -]{1,40})"
    rb"(?P<rest>[^\r\n]{0,60})"
)
_CHANNELS = re.compile(
    rb"NCCL INFO (?P<coll>\d{1,4}) coll channels,(?: \d{1,4} collnet channels,)?(?: (?P<nvls>\d{1,4}) nvls channels,)?"
    rb" (?P<p2p>\d{1,4}) p2p channels"
)
_RINGS = re.compile(rb"NCCL INFO Channel \d{1,4}/(?P<rings>\d{1,4}) :(?: {1,8}\d{1,7})+ *\r?$", re.MULTILINE)
_TREES = re.compile(rb"NCCL INFO Trees(?P<trees>(?: \[\d{1,4}\] [-/>0-9]{1,60})+)")
_MULTICAST = re.compile(rb"NVLS multicast support is (?P<no>not )?available on dev")
_SETTING = re.compile(
    rb"NCCL INFO (?P<name>NCCL_(?:IB|P2P|NVLS)_(?:DISABLE|ENABLE)) set by environment to (?P<value>[0-9]{1,3})"
)
_P2P_OFF = b"P2P is disabled between connected GPUs"


@dataclass(frozen=True, slots=True)
class Paths:
    """What NCCL chose, over all ranks. ``paths`` counts the connections that were set up by kind: ``P2P/CUMEM``, ``P2P/IPC``,
    ``P2P/direct pointer``, ``SHM``, ``NET/IB``, ``NET/Socket``, and so on. Numbers are the most that any communicator has, None
    where the log does not tell them; ``gdrdma`` is None where no path goes over a network, ``multicast`` whether the
    hardware has NVLS. ``settings`` are variables that NCCL read, ``p2p_refused`` its word that the driver forbids P2P."""

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
        """Return it for a line of hardware: nothing of one rank, which sends nothing. A network is named where a path goes over
        it, or several nodes are there and no path is known."""
        if world_size == 1:
            return ()
        kinds = sorted(self.paths)
        over = {kind for kind in kinds if kind.startswith("NET/")}
        words = [name for name in self.networks if (nodes > 1 and not kinds) or name.partition(" on ")[0] in over]
        words += [kind for kind in kinds if kind not in {name.partition(" on ")[0] for name in words}]
        words += ["GDRDMA"] * bool(self.gdrdma)
        words += [f"{self.coll_channels} channels"] * bool(self.coll_channels)
        return (*words, *([f"{self.nvls_channels} NVLS channels"] if self.nvls_channels else []))


def transport(logs: Iterable[bytes]) -> Paths:
    """Return what all logs of a run say. Hostile bytes find no pattern, and change nothing.

    >>> found = transport([b"n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\\n"])
    >>> found.paths, found.words(nodes=1, world_size=2)
    ({'P2P/CUMEM': 1}, ('P2P/CUMEM',))
    """
    found: dict[str, None] = {}
    paths: Counter[str] = Counter()
    most: dict[str, int] = {}
    settings: dict[str, str] = {}
    direct: set[bool] = set()
    multicast: bool | None = None
    refused = False
    for data in logs:
        found |= dict.fromkeys(networks([data]))
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
        settings |= {match["name"].decode(): match["value"].decode() for match in _SETTING.finditer(data)}
        refused |= _P2P_OFF in data
    return Paths(
        networks=tuple(sorted(found)),
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
    return "SHM" if text == "direct shared memory" else text.rstrip()


def fallbacks(found: Paths, nodes: int, world_size: int, infiniband_gbit: Mapping[str, float | None]) -> list[str]:
    """Return a text for each choice of NCCL that is slower than what the hardware has, as far as that is known.

    Of one rank, which sends nothing, there is none. ``infiniband_gbit``: by host, the rate of its active InfiniBand ports; None
    or 0 where there is none.
    """
    if world_size == 1:
        return []
    active = sorted(host for host, rate in infiniband_gbit.items() if rate)
    over = [kind for kind in found.paths if kind.startswith("NET/")]
    sockets = [name for name in found.networks or over if name.startswith("NET/Socket")]
    texts = [_socket(name, active, found.settings) for name in sockets if nodes > 1]
    texts += [f"NCCL goes over {kind} between GPUs of one node" for kind in over if nodes == 1]
    if "NET/IB" in over and found.gdrdma is False:
        texts.append("NCCL speaks NET/IB without GDRDMA: what is sent goes through the memory of the host")
    if found.settings.get("NCCL_NVLS_ENABLE") == "0":
        texts.append("NCCL does without NVLS, as NCCL_NVLS_ENABLE is 0")
    if "SHM" in found.paths and (found.p2p_refused or found.settings.get("NCCL_P2P_DISABLE") == "1"):
        why = "the driver forbids P2P between connected GPUs" if found.p2p_refused else "NCCL_P2P_DISABLE is 1"
        texts.append(f"NCCL goes through shared memory between GPUs of a node, not P2P: {why}")
    return texts


def _socket(name: str, active: list[str], settings: Mapping[str, str]) -> str:
    text = f"NCCL speaks {name} between nodes, not InfiniBand"
    if active:
        text += f", of which {fold(active)} {'have' if len(active) > 1 else 'has'} active ports"
        return text + "; NCCL_IB_DISABLE is 1" * (settings.get("NCCL_IB_DISABLE") == "1")
    return text + ": that interface is IP over InfiniBand" * name.partition(" on ")[2].startswith("ib")


def networks(logs: Iterable[bytes]) -> tuple[str, ...]:
    """Return the distinct networks that NCCL chose, as it names them, with the first interface of each.

    >>> networks([b"n:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.11.0.2<0>\\nn:1:1 [0] NCCL INFO Using network Socket\\n"])
    ('NET/Socket on eth0',)
    """
    found: dict[str, None] = {}
    for data in logs:
        devices = {match["name"]: match["device"].decode() for match in _INTERFACE.finditer(data)}
        for match in _CHOSEN.finditer(data):
            device = devices.get(match["name"])
            name = match["name"].decode()
            found[f"NET/{name} on {device}" if device else f"NET/{name}"] = None
    return tuple(sorted(found))

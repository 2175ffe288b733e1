"""Doubts from the samples of nodes and GPUs, in words: foreign use, failures, and differences.

Each text is about all runs of a configuration. `orchestrator.results.hardware` reports lowered
clocks and load by others; it takes their shares of the window, and the names of programs, from
here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.inventory import fold
from orchestrator.notes import Note
from orchestrator.results.numbers.throughput import median
from orchestrator.results.telemetry.notes import (
    CPU_LIMIT,
    GPU_ERRORS,
    GPU_MEMORY,
    GPU_USED_BY_OTHERS,
    LESS_POWER,
    LINK_ERRORS,
    NO_ENERGY,
    STOLEN_PROCESSORS,
    XID,
)
from orchestrator.results.telemetry.utilization import NodeUse, RunUse

_APART = 0.1
"""GPUs of one model that do the same work differ in power by a few percent from each other."""
_FAR = 5.0
_NORMAL = 1.4826
_SHOWN = 4
_XIDS = {
    48: "an uncorrected memory error",
    63: "a remapped row",
    64: "a row that could not be remapped",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "a timeout of its firmware",
    120: "an error of its firmware",
}
"""Of NVIDIA's list of Xid errors, those that are about the machine and not the program."""


def lowered_by_host(use: RunUse | None) -> dict[str, dict[str, float]]:
    """Return for which share of the window clocks were lowered, by host and reason, of the GPU of
    that host that was slowed most. A host whose GPUs do not say is left out."""
    shares: dict[str, dict[str, float]] = {}
    for node in use.nodes if use else ():
        of_gpus = [gpu.lowered for gpu in node.gpus if gpu.lowered]
        if of_gpus:
            shares[node.host] = {}
            for name in of_gpus[0]:
                shares[node.host][name] = max(of_gpu.get(name, 0.0) for of_gpu in of_gpus)
    return shares


def busiest(uses: Iterable[RunUse | None], hosts: Collection[str]) -> str:
    """Return the foreign process that used the hosts' processors most, as ``, most of it by python
    of bob``; empty if none is known.
    """
    nodes = [node for use in uses if use for node in use.nodes if node.host in hosts]
    events = [
        event for node in nodes for event in node.events if event.kind == "busy" and event.cores
    ]
    if not events:
        return ""
    worst = max(events, key=lambda event: event.cores or 0.0)
    return f", most of it by {_describe_process(worst.name, worst.user)}"


def doubts_from(uses: Sequence[RunUse | None]) -> list[Note]:
    """Return the doubts about the runs of a configuration, and why they have no energy; each says
    in how many of them.
    """
    return [*(doubt.note(len(uses)) for doubt in _doubts(uses)), *_no_energy(uses)]


def doubts_by_host(uses: Sequence[RunUse | None]) -> dict[str, list[Note]]:
    """Return the same doubts by the nodes that they are about."""
    by_host: dict[str, list[Note]] = {}
    for doubt in _doubts(uses):
        for host in sorted(doubt.hosts):
            by_host.setdefault(host, []).append(doubt.note(len(uses)))
    return by_host


def _no_energy(uses: Sequence[RunUse | None]) -> list[Note]:
    coarse = []
    hosts: set[str] = set()
    for use in filter(None, uses):
        of_run = {node.host for node in use.nodes if node.is_coarse}
        if of_run:
            coarse.append(use)
            hosts |= of_run
    if not coarse:
        return []
    counted = f", in {len(coarse)} of {len(uses)} runs" if len(uses) > 1 else ""
    window_s = max(use.seconds for use in coarse)
    return [NO_ENERGY(hosts=fold(hosts), window_s=window_s, runs=counted)]


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A doubt about nodes, and in how many runs. ``names_hosts``: its words have them already."""

    text: Note
    hosts: frozenset[str]
    count: int
    names_hosts: bool = False

    def note(self, runs: int) -> Note:
        where = "" if self.names_hosts else f" on {fold(sorted(self.hosts))}"
        return self.text.but(on=f"{where}, in {self.count} of {runs} runs" if runs > 1 else where)


def _doubts(uses: Sequence[RunUse | None]) -> list[_Doubt]:
    sampled = [use for use in uses if use]
    by_text: dict[Note, tuple[set[str], int]] = {}
    for use in sampled:
        of_run: dict[Note, set[str]] = {}
        for node in use.nodes:
            for text in (*_strangers(node), *_more_memory(node), *_failures(node)):
                of_run.setdefault(text, set()).add(node.host)
        for text, hosts in of_run.items():
            before, count = by_text.get(text, (set(), 0))
            by_text[text] = before | hosts, count + 1
    doubts = [_Doubt(text, frozenset(hosts), count) for text, (hosts, count) in by_text.items()]
    return [*doubts, *_doubt_processors(sampled), *_less_power(sampled)]


def _doubt_processors(uses: Sequence[RunUse]) -> list[_Doubt]:
    """Return a doubt about the nodes that had less of their processors than they have, with how
    much in the worst run.
    """
    doubts = []
    for share_of, kind in _TAKEN.items():
        cases = [
            (place, node.host, share_of(node))
            for place, use in enumerate(uses)
            for node in use.nodes
        ]
        taken = [(place, host, share) for place, host, share in cases if share >= _WORTH]
        if taken:
            hosts = {host for _, host, _ in taken}
            text = kind(share=max(share for *_, share in taken), on="")
            doubts.append(_Doubt(text, frozenset(hosts), len({place for place, *_ in taken})))
    return doubts


def _throttled_share(node: NodeUse) -> float:
    return node.held or 0.0


def _stolen(node: NodeUse) -> float:
    return (node.stolen_cores or 0.0) / max(1, node.processors)


_TAKEN = {
    _throttled_share: CPU_LIMIT,
    _stolen: STOLEN_PROCESSORS,
}
_WORTH = 0.05
"""Share of periods, or of processors."""


_AGREE = 3
"""Fewest GPUs of which one can have more memory in use than the others agree on."""
_GIB = 2.0**30
_MEMORY = 0.25 * _GIB
"""More than ranks of one program differ by, and less than another program's context and its data.
"""


def _strangers(node: NodeUse) -> list[Note]:
    """Return a text for each kind of process on a GPU of the run that is not of the run."""
    events = [event for event in node.events if event.kind == "process"]
    names = dict.fromkeys(_describe_process(event.name, event.user) for event in events)
    return [GPU_USED_BY_OTHERS(name=name, on="") for name in list(names)[:_SHOWN]]


def _more_memory(node: NodeUse) -> list[Note]:
    """Return a text for each GPU of the run that has far more memory in use than all the others of
    its node, which agree.

    The processes of another container are not seen, their memory is.
    """
    used = {
        place: gpu.memory_bytes
        for place, gpu in enumerate(node.gpus)
        if gpu.memory_bytes and not gpu.shared
    }
    if len(used) < max(_AGREE, len(node.gpus)) or len({gpu.name for gpu in node.gpus}) > 1:
        return []
    texts = []
    for place, own in used.items():
        others = [other for at, other in used.items() if at != place]
        more = own - max(others)
        if more >= _MEMORY and more > 2 * (max(others) - min(others)):
            texts.append(
                GPU_MEMORY(place=place, own=own / _GIB, others=median(others) / _GIB, on="")
            )
    return texts


def _failures(node: NodeUse) -> list[Note]:
    texts = [LINK_ERRORS(link=name, on="") for name in list(node.link_errors)[:_SHOWN]]
    kinds = dict.fromkeys(kind for gpu in node.gpus for kind in gpu.errors)
    texts += [GPU_ERRORS(part=kind, on="") for kind in kinds]
    for event in node.events:
        if event.kind == "xid":
            meaning = _XIDS.get(event.code or 0, "")
            texts.append(XID(code=event.code, meaning=meaning and f", {meaning},", on=""))
    return texts


def _less_power(uses: Sequence[RunUse]) -> list[_Doubt]:
    """Return a doubt about each node that draws less than the others, or else for each GPU, with
    how much less in the worst run."""
    nodes: dict[str, list[Less]] = {}
    gpus: dict[str, list[Less]] = {}
    for use in uses:
        powers = {node.host: node.power_w for node in use.nodes if node.power_w is not None}
        for host, less in drawing_less(powers).items():
            nodes.setdefault(host, []).append(less)
        of_gpus = {
            f"{place}\0{node.host}": gpu.power_w
            for node in use.nodes
            for place, gpu in enumerate(node.gpus)
            if not gpu.shared  # an instance reports the whole GPU's power
        }
        alike = len({gpu.name for node in use.nodes for gpu in node.gpus}) == 1
        for name, less in drawing_less(
            {key: watts for key, watts in of_gpus.items() if watts} if alike else {}
        ).items():
            gpus.setdefault(name, []).append(less)
    draws = [(f"the GPUs of {host} draw", host, cases) for host, cases in nodes.items()]
    for name, cases in gpus.items():
        place, _, host = name.partition("\0")
        if host not in nodes:
            draws.append((f"GPU {place} of {host} draws", host, cases))
    doubts = []
    for words, host, cases in draws[:_SHOWN]:
        worst = min(cases, key=lambda less: less.watts / less.usual)
        text = LESS_POWER(
            who=words,
            less=1 - worst.watts / worst.usual,
            watts=worst.watts,
            usual=worst.usual,
            on="",
        )
        doubts.append(_Doubt(text, frozenset({host}), len(cases), names_hosts=True))
    return doubts


@dataclass(frozen=True, slots=True)
class Less:
    """A power (W) that is lower than its peers', and their median."""

    watts: float
    usual: float


def drawing_less(powers: Mapping[str, float]) -> dict[str, Less]:
    """Return the nodes or GPUs of one run that draw far less power than the others, by name.

    Far is 10 % below the median of the others, and with three others or more also 5 standard
    deviations below it, estimated by the median absolute deviation of the others (F. R. Hampel,
    "The influence curve and its role in robust estimation", JASA 69, 1974). A node that draws more
    raises no doubt about itself: then the others draw less.

    >>> drawing_less({"node1": 640.0, "node2": 655.0, "node3": 531.0, "node4": 648.0})
    {'node3': Less(watts=531.0, usual=648.0)}
    """
    less = {}
    for name, watts in powers.items():
        others = [other for other_name, other in powers.items() if other_name != name]
        if not others:
            continue
        usual = median(others)
        scatter = 0.0
        if len(others) > 2:
            scatter = _NORMAL * median([abs(other - usual) for other in others])
        if usual > 0 and watts < usual - max(_APART * usual, _FAR * scatter):
            less[name] = Less(watts, usual)
    return less


def _describe_process(name: str, user: str) -> str:
    if user:
        return f"{name or 'a process'} of {user}"
    return name or "a process"

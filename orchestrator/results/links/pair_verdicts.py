"""Verdicts of `orch bench pairs` on each node and link, and of `orch bench peers` on each device and
link, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.results.links.culprits import Culprits, Pair, diagnosis
from orchestrator.results.links.pair_times import BOTH, PairTimes
from orchestrator.results.run import RunResult

Times = Mapping[str, Mapping[Pair, Sequence[float]]]
"""The seconds of each pair by direction, over all repeats."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ends that were all measured with each other: the nodes of a run of pairs, or the devices of a
    node. Pairs are by the places of ``names``; ``size_bytes`` is what an end sends; there are
    ``count`` groups.
    """

    names: tuple[str, ...]
    times: Times
    size_bytes: int
    count: int

    @property
    def title(self) -> str:
        """What the ends are: nodes, or the devices of one."""
        hosts = {host_of(name) for name in self.names}
        return f"devices of {hosts.pop()}" if len(hosts) == 1 else "nodes"

    def culprits(self) -> Culprits:
        """Return the diagnosis of these ends."""
        return diagnosis(self.times[BOTH], len(self.names), self.count)


def host_of(end: str) -> str:
    """Return the host of a node or device by its name."""
    return end.split()[0]


def pair_groups(readings: Iterable[PairTimes]) -> Iterator[Group]:
    """Yield the groups in which all ends are connected, in order of their first end."""
    names: dict[int, str] = {}
    peers: dict[int, set[int]] = {}
    times: dict[str, dict[Pair, list[float]]] = {}
    size_bytes = 0
    for reading in readings:
        a, b = reading.pair
        names |= dict(zip(reading.pair, reading.names, strict=True))
        peers.setdefault(a, {a}).add(b)
        peers.setdefault(b, {b}).add(a)
        times.setdefault(reading.direction, {}).setdefault((a, b), []).extend(reading.times_s)
        if reading.direction == BOTH:
            size_bytes = reading.size_bytes
    groups = dict.fromkeys(tuple(sorted(peers[end])) for end in sorted(names))
    for members in groups:
        place = {end: number for number, end in enumerate(members)}
        yield Group(
            tuple(names[end] for end in members),
            {
                direction: {
                    (place[a], place[b]): values for (a, b), values in pairs.items() if a in place
                }
                for direction, pairs in times.items()
            },
            size_bytes,
            len(groups),
        )


def measured_groups(results: Sequence[RunResult]) -> list[Group]:
    """Return the groups of the good runs of pairs."""
    readings = [
        reading
        for run in results
        if run.is_good and run.spec and run.measure.name == "pairs"
        for reading in run.readings
    ]
    return list(pair_groups(readings))

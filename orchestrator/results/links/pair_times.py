"""Read the times of each pair from the lines of `orch bench pairs`: every time exactly once, or an
error.

With several ranks per node the slowest counts: a pair is done when all its ranks are. Of `orch bench
peers` an end of a pair is one rank, and both are in one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from orchestrator.errors import DataError
from orchestrator.plan import RunSpec
from orchestrator.results.links.culprits import Pair

BOTH, PING = "both", "ping"
ONE_WAY = ("a-to-b", "b-to-a")
_PING_BYTES = 8
_LONGEST_S = 1e6


@dataclass(frozen=True, slots=True)
class PairTimes:
    """The seconds that a pair took in one direction, sweep by sweep. ``names`` are those of its nodes
    or devices; each of these sent ``size_bytes``."""

    pair: Pair
    names: tuple[str, str]
    direction: str
    size_bytes: int
    times_s: tuple[float, ...]


def pair_times(
    spec: RunSpec, lines: Sequence[Mapping[str, str]], observed: Mapping[str, Any]
) -> tuple[PairTimes, ...]:
    """Return the times of a run, pair by pair in order. Raises DataError for a missing, duplicate
    or invalid time.

    ``observed["nodes"]`` names the hosts in order of node_rank.
    """
    directions = {**dict.fromkeys((*ONE_WAY, BOTH), spec.options["size_bytes"]), PING: _PING_BYTES}
    if spec.options["all_reduce"]:
        directions["all-reduce"] = spec.options["size_bytes"]
    sweeps = spec.steps - spec.warmup_steps
    hosts, of_device = observed["nodes"], "GPU" if spec.device == "cuda" else "rank"
    names, places = tuple(hosts), spec.gpus
    pairs = tuple(combinations(range(spec.nodes), 2))
    if spec.model == "peers":
        names, places = (
            tuple(f"{host} {of_device} {k}" for host in hosts for k in range(spec.gpus)),
            1,
        )
        pairs = tuple(
            (first + a, first + b)
            for first in range(0, len(names), spec.gpus)
            for a, b in combinations(range(spec.gpus), 2)
        )
    known = set(pairs)
    expected = len(pairs) * len(directions) * sweeps * places
    if len(lines) != expected:
        raise _damage_error(f"expected {expected} times of pairs, the logs have {len(lines)}")
    by_rank: dict[tuple[Pair, str, int], dict[int, float]] = {}
    for line in lines:
        a, b, sweep, local_rank, size_bytes = (
            int(line[name]) for name in ("a", "b", "sweep", "local_rank", "size_bytes")
        )
        seconds, direction = float(line["time_s"]), line["direction"]
        placed = (a, b) in known and 1 <= sweep <= sweeps and local_rank < places
        if not placed or directions.get(direction) != size_bytes or not 0 < seconds < _LONGEST_S:
            raise _damage_error(
                f"expected a time of this run, got {' '.join(f'{name}={value}' for name, value in line.items())}"
            )
        times = by_rank.setdefault(((a, b), direction, sweep), {})
        if local_rank in times:
            raise _damage_error(
                f"expected the time of {names[a]} and {names[b]}, {direction}, sweep {sweep}, once, got it again"
            )
        times[local_rank] = seconds
    # The number of times is right, all are distinct and all belong to this run, so none is missing.
    measured = []
    for pair in pairs:
        for direction, size_bytes in directions.items():
            of_sweeps = [by_rank[pair, direction, sweep] for sweep in range(1, sweeps + 1)]
            slowest = tuple(max(times.values()) for times in of_sweeps)
            ends = (names[pair[0]], names[pair[1]])
            measured.append(PairTimes(pair, ends, direction, places * size_bytes, slowest))
    return tuple(measured)


def _damage_error(message: str) -> DataError:
    return DataError(message, kind="result_invalid", phase="summarize")

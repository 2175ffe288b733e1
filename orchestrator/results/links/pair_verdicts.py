"""Verdicts of `orch bench pairs` on each node and link, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.results.links.culprits import Culprits, Pair, diagnosis
from orchestrator.results.links.pair_times import BOTH
from orchestrator.results.run import RunResult


def pair_verdicts(results: Sequence[RunResult]) -> tuple[Culprits, Mapping[int, str]] | None:
    """Return the diagnosis from the good runs of pairs, and the host of each node; None without
    such a run.
    """
    times: dict[Pair, list[float]] = {}
    names: dict[int, str] = {}
    nodes = 0
    for run in results:
        if run.is_good and run.spec and run.measure.name == "pairs":
            nodes = run.spec.nodes
            for reading in run.readings:
                names |= dict(zip(reading.pair, reading.hosts, strict=True))
                if reading.direction == BOTH:
                    times.setdefault(reading.pair, []).extend(reading.times_s)
    return (diagnosis(times, nodes), names) if times else None

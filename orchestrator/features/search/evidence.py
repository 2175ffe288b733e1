"""What a search reads of its own bench: finished runs, their candidates, and why a run has no
number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.features.search.record import BisectRecord, Candidate, RungRecord, TuneRecord
from orchestrator.record import BenchDir
from orchestrator.record.bench_parts import PlanEntry
from orchestrator.record.bench_record import BenchRecord
from orchestrator.record.state_file import damaged
from orchestrator.results import NEVER_RUN, RUNNING, Interval, RunResult
from orchestrator.results.progress_so_far import Tally

__all__ = [
    "ENOUGH_PAIRS",
    "Change",
    "candidate_of",
    "candidates_by_cell",
    "failure_of",
    "read_search",
    "reader_of",
]

ENOUGH_PAIRS = 3
"""Pairs of runs from which a candidate may be called faster."""
Search = TypeVar("Search", TuneRecord, BisectRecord)
_NOT_OVER = ("incomplete", RUNNING, NEVER_RUN)


@dataclass(frozen=True, slots=True)
class Change:
    """The typical value of one candidate over that of another, from ``pairs`` of runs one after the
    other.
    """

    ratio: float
    interval: Interval
    pairs: int

    @property
    def is_certain(self) -> bool:
        """Whether the interval is on one side of 1."""
        return not self.interval.low <= 1 <= self.interval.high

    @property
    def decides(self) -> bool:
        """Whether there are enough pairs to decide if the candidate is faster."""
        return self.pairs >= ENOUGH_PAIRS

    @property
    def is_faster(self) -> bool:
        """Whether the candidate is certainly faster, by enough pairs."""
        return self.decides and self.interval.low > 1


def reader_of(
    bench: BenchDir, results: Sequence[RunResult] | None
) -> Callable[[str], RunResult | None]:
    """Return a function from the id of a run to its result, None before its end; ``results`` are
    those already read.
    """
    if results is None:
        return Tally(bench, clock=lambda: 0.0).result
    return {run.run_id: run for run in results if run.state not in _NOT_OVER}.get


def failure_of(result: RunResult) -> str:
    """Return why a run has no number, in the first line of its error; empty without an error."""
    if result.error is None:
        return ""
    parts = (result.error.host, result.error.message.partition("\n")[0], result.error.cause)
    return ": ".join(word for word in parts if word)


def read_search(
    bench: BenchDir,
    search_in: Callable[[BenchRecord], Search | None],
    noun: str,
    read: Callable[[str], RunResult | None],
) -> tuple[Search, list[tuple[PlanEntry, RunResult]]]:
    """Return the record of a search and its finished runs, in order. Raise DataError for a bench
    that has none.
    """
    record = bench.record()
    search, entries = search_in(record), record.plan
    if search is None or entries is None:
        raise damaged(bench.path / "bench.json", f"expected the record of a {noun}, found none")
    runs = []
    for run_id in record.runs:
        result = read(run_id)
        if run_id in entries and result is not None:
            runs.append((entries[run_id], result))
    return search, runs


def candidates_by_cell(rung: RungRecord, default: Candidate) -> dict[int, Candidate]:
    """Return by cell which candidate of a round it is; of two with one spec, the last."""
    return dict(zip(rung.cells, (default, *rung.candidates), strict=True))


def candidate_of(
    bench: BenchDir,
    noun: str,
    entry: PlanEntry,
    rungs: Sequence[RungRecord],
    first: Sequence[Candidate],
) -> Candidate:
    """Return the candidate of a run. ``first`` are those of the cells that a bench begins with, the
    default before others. Raise DataError for a run of no such round or cell.
    """
    by_cell = dict(enumerate(first))
    try:
        if entry.rung is not None:
            by_cell = candidates_by_cell(rungs[entry.rung], first[0])
        return by_cell[entry.cell]
    except (KeyError, IndexError) as error:
        message = f"{noun}: expected runs of its candidates, got {error}"
        raise damaged(bench.path / "bench.json", message) from error

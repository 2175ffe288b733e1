"""What a search reads of its own bench: finished runs, their candidates, and why a run has no
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator.errors import DataError
from orchestrator.features.search.record import Candidate, RungRecord
from orchestrator.record import BenchDir
from orchestrator.record.state_file import damaged
from orchestrator.results import NEVER_RUN, RUNNING, Interval, RunResult
from orchestrator.results.tally import Tally

__all__ = [
    "ENOUGH_PAIRS",
    "Change",
    "candidates_by_cell",
    "failure_of",
    "reader_of",
    "record_missing",
    "refuse_unknown_runs",
]

ENOUGH_PAIRS = 3
"""Pairs of runs from which a candidate may be called faster."""
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


def candidates_by_cell(rung: RungRecord, default: Candidate) -> dict[int, Candidate]:
    """Return by cell which candidate of a round it is."""
    return dict(zip(rung.cells, (default, *rung.candidates), strict=True))


def failure_of(result: RunResult) -> str:
    """Return why a run has no number, in the first line of its error; empty without an error."""
    if result.error is None:
        return ""
    parts = (result.error.host, result.error.message.partition("\n")[0], result.error.cause)
    return ": ".join(word for word in parts if word)


def record_missing(bench: BenchDir, noun: str) -> DataError:
    """Return the error of a bench that has no record of such a search."""
    return damaged(bench.path / "bench.json", f"expected the record of a {noun}, found none")


@contextmanager
def refuse_unknown_runs(bench: BenchDir, noun: str) -> Iterator[None]:
    """Raise DataError where a run is looked up of a round or a cell that the record does not have."""
    try:
        yield
    except (KeyError, IndexError) as error:
        message = f"{noun}: expected runs of its candidates, got {error}"
        raise damaged(bench.path / "bench.json", message) from error

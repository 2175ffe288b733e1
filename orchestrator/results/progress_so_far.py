"""The time that a bench has used and its results so far; each finished run is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.plan import RunSpec
from orchestrator.record import BenchDir
from orchestrator.record.journal import Entry, Event
from orchestrator.record.manifest import read_manifest
from orchestrator.results.bench import place_results
from orchestrator.results.read import read_run
from orchestrator.results.run import RunResult


class Tally:
    """The seconds that a bench has used and the results of its runs that are over, each read once.
    ``read`` holds the results read so far, by run id."""

    def __init__(self, bench: BenchDir, clock: Callable[[], float]) -> None:
        self._bench = bench
        self._clock = clock
        self._began = clock() - spent_s(bench.events())
        self.read: dict[str, RunResult] = {}

    def used_s(self) -> float:
        """Return the seconds that all controllers of the bench have spent on it."""
        return self._clock() - self._began

    def result(self, run_id: str) -> RunResult | None:
        """Return the result of a run, None if it is not over."""
        if run_id not in self.read:
            run = self._bench.run(run_id)
            if not run.path.is_dir() or read_manifest(run).outcome is None:
                return None
            self.read[run_id] = read_run(run)
        return self.read[run_id]

    def results(self) -> list[RunResult]:
        """Return the results of all runs that are over, in execution order."""
        results = [result for run in self._bench.runs() if (result := self.result(run.run_id))]
        return place_results(self._bench, results)


def longest(bench: BenchDir) -> list[tuple[RunSpec, float]]:
    """Return the cells with ended runs, each with the seconds from plan to collected logs of its
    longest run.
    """
    record = bench.record()
    if record.plan is None:  # written by an earlier version
        return []
    by_cell: dict[int, float] = {}
    for run_id, seconds in durations(bench.events()).items():
        if entry := record.plan.get(run_id):
            by_cell[entry.cell] = max(seconds, by_cell.get(entry.cell, 0.0))
    return [(record.cells[cell], seconds) for cell, seconds in by_cell.items()]


def spent_s(events: Sequence[Entry]) -> float:
    """Return the seconds that earlier controllers have spent on a bench, from its journal."""
    spans: list[list[float]] = []
    for event in events:
        if event.at is None:
            continue
        if event.event == Event.BEGUN:
            spans.append([event.at, event.at])
        elif spans:
            spans[-1][1] = event.at
    return sum(max(0.0, last - first) for first, last in spans[:-1])


def durations(events: Sequence[Entry]) -> dict[str, float]:
    """Return the seconds of each run, failed ones included, that a single controller followed from
    plan to end.
    """
    planned: dict[str, float] = {}
    seconds = {}
    for event in events:
        if event.event == Event.BEGUN:
            planned.clear()
        elif event.at is None:
            continue
        elif event.event == Event.PLANNED:
            planned.setdefault(event.run, event.at)
        elif (
            event.event in (Event.FINISHED, Event.FAILED, Event.COLLECTED) and event.run in planned
        ):
            seconds[event.run] = max(0.0, event.at - planned[event.run])
    return seconds

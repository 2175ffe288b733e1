"""Read a search and its state from the files of a bench."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from orchestrator.features.search.bisection.strategy import Bisection
from orchestrator.features.search.halving.strategy import Halving
from orchestrator.features.search.record import (
    Candidate,
    Rung,
    SearchRecord,
    TuneRecord,
    search_of,
)
from orchestrator.features.search.strategy import (
    MOST_FAILURES,
    Round,
    State,
    Strategy,
)
from orchestrator.record import BenchDir
from orchestrator.record.bench_parts import PlanEntry
from orchestrator.record.state_file import state_error
from orchestrator.results import NEVER_RUN, RUNNING, RunResult

_NOT_OVER = ("incomplete", RUNNING, NEVER_RUN)


def open_search(bench: BenchDir, results: Iterable[RunResult]) -> Strategy:
    """Return the search of a bench with these results of its runs. Raise DataError if it is
    damaged.
    """
    record = bench.record()
    search, plan = search_of(record), record.plan or {}
    if search is None:
        message = "expected the record of a tune or a bisect, found none"
        raise state_error(bench.path / "bench.json", message)
    over = {run.run_id: run for run in results if run.state not in _NOT_OVER}
    runs = [(plan[name], over[name]) for name in record.runs if name in over and name in plan]
    of_sides = (run for entry, run in runs if entry.rung is None)
    first = next((run for run in of_sides if not run.is_interrupted), None)
    try:
        if isinstance(search, TuneRecord):
            sides = Halving.sides(search, first)
            state = _state(search, sides, first, runs, Halving.number)
            return Halving(search, state)
        sides = Bisection.sides(search)
        state = _state(search, sides, first, runs, lambda run: Bisection.number(search, run))
        return Bisection(search, state)
    except (KeyError, IndexError) as error:
        message = f"expected runs of its candidates, got {error}"
        raise state_error(bench.path / "bench.json", message) from error


def _state(
    search: SearchRecord,
    sides: tuple[Candidate, ...],
    first: RunResult | None,
    runs: Sequence[tuple[PlanEntry, RunResult]],
    number_of: Callable[[RunResult], float | None],
) -> State:
    opening: dict[Candidate, dict[int, float | None]] = {}
    rounds = [Round(rung, _no_numbers(rung, sides[0]), []) for rung in search.rungs]
    failures: dict[Candidate, list[str]] = {}
    of_sides: dict[Candidate, list[bool]] = {}
    for entry, run in runs:
        candidate, values = sides[entry.cell] if entry.rung is None else (), opening
        if entry.rung is not None:
            rung = search.rungs[entry.rung]
            cells = dict(zip(rung.cells, (sides[0], *rung.candidates), strict=True))
            candidate, values = cells[entry.cell], rounds[entry.rung].values
            rounds[entry.rung].runs.append((candidate, run))
        if run.is_interrupted:
            continue
        number = number_of(run)
        values.setdefault(candidate, {})[entry.repeat] = number
        if number is None:
            failures.setdefault(candidate, []).append(_failure(run))
        if entry.cell < len(sides):
            of_sides.setdefault(candidate, []).append(number is not None)
    failed = ""
    for side, name in zip(sides, "AB", strict=False):
        made = of_sides.get(side, [])
        has_failed = made.count(False) >= MOST_FAILURES or (made and not any(made))
        if has_failed and not failed:
            failed = f"{name}: {failures[side][0]}"
    return State(sides, first, opening, tuple(rounds), failures, failed)


def _no_numbers(rung: Rung, default: Candidate) -> dict[Candidate, dict[int, float | None]]:
    refused = [candidate for candidate, _ in rung.refused]
    return {candidate: {} for candidate in (default, *rung.candidates, *refused)}


def _failure(run: RunResult) -> str:
    """Return why a run has no number, in the first line of its error."""
    if run.error is None:
        return "it has no value of the metric above 0"
    parts = (run.error.host, run.error.message.partition("\n")[0], run.error.cause)
    return ": ".join(word for word in parts if word)

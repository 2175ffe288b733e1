"""A tune and a bisect as the core sees them: benches to which a key of ``bench.json`` belongs, and
whose cells come round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.documents import read
from orchestrator.features.search.record import BisectRecord, SearchRecord, TuneRecord, search_of
from orchestrator.record import BenchDir
from orchestrator.results import RunResult

if TYPE_CHECKING:
    from orchestrator.controller.events import Observer
    from orchestrator.features.search.rounds import Rounds
    from orchestrator.inventory import Host
    from orchestrator.plan.bench import Bench

__all__ = ["KEYS", "in_short", "part_of", "scheduler", "show"]

_RECORDS: Mapping[str, type[SearchRecord]] = {"tune": TuneRecord, "bisect": BisectRecord}
KEYS = frozenset(_RECORDS)


def part_of(key: str, value: Any) -> SearchRecord:
    """Return the record of a search that stands under a key. Raises Invalid."""
    return read(_RECORDS[key], value)


def scheduler(bench: BenchDir, plan: Bench, observe: Observer, hosts: Sequence[Host]) -> Rounds:
    """Return what decides the runs of a search."""
    from orchestrator.features.search.bisection.rounds import Bisection
    from orchestrator.features.search.halving.rounds import Search

    rounds = Search if isinstance(search_of(bench.record()), TuneRecord) else Bisection
    return rounds(bench, plan, observe, hosts=hosts)


def show(bench: BenchDir, as_json: bool) -> None:
    """Print the result of a search, and write it into its bench."""
    from orchestrator.features.search.output import show_bisect, show_tune

    shown = show_tune if isinstance(search_of(bench.record()), TuneRecord) else show_bisect
    shown(bench, as_json)


def in_short(
    bench: BenchDir, planned: Sequence[RunResult], results: Sequence[RunResult]
) -> tuple[Sequence[RunResult], list[str]]:
    """Return the runs of a search that a table for people shows, and notes: its result, and where
    the others are.
    """
    if isinstance(search_of(bench.record()), TuneRecord):
        return _of_tune(bench, results)
    return planned, _of_bisect(bench, results)


def _of_tune(bench: BenchDir, results: Sequence[RunResult]) -> tuple[list[RunResult], list[str]]:
    """Return the runs of the default and the best candidate of a tune, and notes: its result, and
    where the other runs are.
    """
    from orchestrator.features.search.halving import tuned
    from orchestrator.features.search.halving.answer import compared
    from orchestrator.features.search.halving.words import answer

    shown, others = compared(bench, results)
    where = f"orch attach {bench.path.name} lists all candidates of all rounds; --format json, csv and html contain all rows"
    notes = [answer(tuned(bench, results))]
    if len(shown) < len(results):
        notes.append(
            f"{others} other candidates and {len(results) - len(shown)} earlier runs are not shown: {where}"
        )
    return shown, notes


def _of_bisect(bench: BenchDir, results: Sequence[RunResult]) -> list[str]:
    """Return notes of a bisect: its answer, and what it leaves open."""
    from orchestrator.features.search.bisection import bisected
    from orchestrator.features.search.bisection.words import answer, left_open

    result = bisected(bench, results)
    return [answer(result), *left_open(result)]

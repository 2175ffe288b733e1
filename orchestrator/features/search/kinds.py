"""A tune and a bisect as the core sees them: benches to which a key of ``bench.json`` belongs, and
whose cells come round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.documents import read
from orchestrator.features.search.record import BisectRecord, SearchRecord, TuneRecord
from orchestrator.plural import plural
from orchestrator.record import BenchDir
from orchestrator.results import RunResult

if TYPE_CHECKING:
    from orchestrator.controller.events import Observer
    from orchestrator.features.search.rounds import Rounds
    from orchestrator.inventory import Host
    from orchestrator.plan.bench import Bench

_RECORDS: Mapping[str, type[SearchRecord]] = {"tune": TuneRecord, "bisect": BisectRecord}
KEYS = frozenset(_RECORDS)


def part_of(key: str, value: Any) -> SearchRecord:
    """Return the record of a search that stands under a key. Raises Invalid."""
    return read(_RECORDS[key], value)


def scheduler(bench: BenchDir, plan: Bench, observe: Observer, hosts: Sequence[Host]) -> Rounds:
    """Return the scheduler of a search."""
    from orchestrator.features.search.rounds import Rounds

    return Rounds(bench, plan, observe, hosts=hosts)


def show(bench: BenchDir, as_json: bool) -> None:
    """Print the result of a search, and write it into its bench."""
    from orchestrator.features.search import output

    output.show(bench, as_json)


def in_short(
    bench: BenchDir, planned: Sequence[RunResult], results: Sequence[RunResult]
) -> tuple[Sequence[RunResult], list[str]]:
    """Return the runs of a search that a table for people shows, and notes.

    The table shows the last round. The notes give the result, and where the other runs are.
    """
    from orchestrator.features.search.reading import open_search

    search = open_search(bench, results)
    outcome = search.outcome(bench.record())
    notes = [outcome.answer, *outcome.left_open]
    last = [each.runs for each in search.state.rounds if each.runs][-1:]
    if not last:
        return planned, notes
    names = {run.run_id for _, run in last[0]}
    shown = [run for run in results if run.run_id in names]
    where = f"orch attach {bench.path.name} lists all candidates of all rounds"
    note = f"not shown: {plural(len(results) - len(shown), 'earlier run')}; {where}"
    return shown, [*notes, f"{note}; --format json, csv and html contain all rows"]

"""The page of `orch summarize --open`: read a bench from its files and render it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.record import BenchDir
from orchestrator.report.html.navigation import Link
from orchestrator.report.html.page import render
from orchestrator.report.references import compare_with
from orchestrator.report.sections import sections_of
from orchestrator.results import NEVER_RUN, RunResult
from orchestrator.results.bench import notes_of, read_bench
from orchestrator.results.planned import planned_runs
from orchestrator.results.run_history import history_of
from orchestrator.results.summary import Summary, of_bench


@dataclass(frozen=True, slots=True)
class Read:
    """A bench as its files show it: the results of its runs that have begun, as they are, and those
    of its table.
    """

    bench: BenchDir
    runs: Sequence[RunResult]
    results: Sequence[RunResult]
    summary: Summary


def read(bench: BenchDir) -> Read:
    """Return a bench for its page. Raises OrchError if it cannot be read."""
    runs = read_bench(bench)
    planned = planned_runs(bench, runs)
    results = [result for result in planned.results if result.state != NEVER_RUN]
    return Read(bench, runs, results, of_bench(planned, notes_of(bench)))


def bench_page(
    whole: Read,
    *,
    against: str = "",
    explain: bool = False,
    bases: Sequence[Path] = (),
    links: Sequence[Link] = (),
) -> str:
    """Return the page of a bench. ``against``: with the figures of this source, read from the
    framework folders in
    ``bases``; ``explain``: with predictions; ``links`` lead to other pages of a site."""
    bench, summary, results = whole.bench, whole.summary, whole.results
    reference = compare_with(against, summary, bases) if against else None
    references, notes = (reference.tables, reference.notes) if reference else ((), ())
    history = history_of(bench, results)
    sections = sections_of(bench, summary, results, frozenset({"explain"} if explain else ()))
    return render(summary, results, history, references, notes, sections, links)

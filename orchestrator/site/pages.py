"""The page of one bench, of one acceptance, and of a bench beside earlier ones, read from their files.

The page of a bench is that of `orch summarize --open`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.analysis.catalogue import AcceptanceEntry, BenchEntry
from orchestrator.analysis.compare.kept import kept
from orchestrator.analysis.past_cells import damaged_runs, past_cells
from orchestrator.errors import DataError, OrchError
from orchestrator.record import BenchDir, holder
from orchestrator.record.bench_groups import BenchGroup, provider_of
from orchestrator.record.folder_cache import evidence_mark
from orchestrator.record.manifest import read_manifest
from orchestrator.report.html.page import Link, render, subject
from orchestrator.report.references import compare_with
from orchestrator.report.sections import sections_of
from orchestrator.results import NEVER_RUN, RunResult, cells_of
from orchestrator.results.account import account_of
from orchestrator.results.bench import notes_of, read_bench
from orchestrator.results.planned import planned_runs
from orchestrator.results.summary import Summary, of_bench

__all__ = ["Read", "acceptance_page", "bench_page", "entry_of", "mark_of", "read"]


@dataclass(frozen=True, slots=True)
class Read:
    """A bench as its files show it: the results of its runs that have begun, as they are, and those of its table."""

    bench: BenchDir
    runs: Sequence[RunResult]
    results: Sequence[RunResult]
    summary: Summary


def read(bench: BenchDir) -> Read:
    """Return a bench for its page. Raises OrchError if it cannot be read."""
    runs = read_bench(bench, each_rank=True)
    planned = planned_runs(bench, runs)
    results = [result for result in planned.results if result.state != NEVER_RUN]
    return Read(bench, runs, results, of_bench(planned, notes_of(bench)))


def bench_page(
    whole: Read, *, against: str = "", explain: bool = False, bases: Sequence[Path] = (), links: Sequence[Link] = ()
) -> str:
    """Return the page of a bench. ``against``: with the figures of this source, read from the framework folders in
    ``bases``; ``explain``: with predictions; ``links`` lead to other pages of a site."""
    bench, summary, results = whole.bench, whole.summary, whole.results
    reference = compare_with(against, summary, bases) if against else None
    references, notes = (reference.tables, reference.notes) if reference else ((), ())
    account = account_of(bench, results)
    sections = sections_of(bench, summary, results, frozenset({"explain"} if explain else ()))
    return render(summary, results, account, references, notes, sections, links)


def mark_of(bench: BenchDir) -> str:
    """Return a text that changes when the page of a bench may change: with its files, and with what a controller does."""
    return f"{evidence_mark(bench.path)} {'held' if holder(bench) else 'free'}"


def entry_of(whole: Read, name: str, mark: str) -> BenchEntry:
    """Return what overviews show of a bench. ``mark`` was taken before it was read."""
    record, summary, results = whole.bench.record(), whole.summary, whole.results
    counts, entries = summary.runs, (*summary.rows, *summary.sheets)
    hosts = list(record.planned_with.hosts) if record.planned_with else []
    return BenchEntry(
        name=name,
        mark=mark,
        created=record.created,
        label=record.label,
        subject=subject(summary),
        planned=counts.planned if counts else len(results),
        measured=counts.measured if counts else sum(result.is_good for result in results),
        missing=tuple(counts.words()) if counts else (),
        is_held=mark.endswith("held"),
        simulated=any(result.simulated for result in results),
        hosts=tuple(hosts or dict.fromkeys(host for result in results for host in _hosts(whole.bench, result))),
        hardware=tuple(dict.fromkeys(entry.hardware for entry in entries if entry.hardware)),
        blamed=dict(Counter(result.error.host for result in results if result.error and result.error.host)),
        damaged=damaged_runs(whole.runs),
        has_page=True,
        cells=tuple(past_cells(name, record, whole.runs, summary.rows)),
        kept=tuple(kept(cell) for cell in cells_of(whole.runs) if cell.primary and not cell.measure.is_diagnosis),
    )


def _hosts(bench: BenchDir, result: RunResult) -> list[str]:
    try:
        return [slot.host for slot in read_manifest(bench.run(result.run_id)).slots]
    except DataError:
        return []


def acceptance_page(
    folder: BenchGroup, mark: str, links: Sequence[Link], benches: Sequence[str]
) -> tuple[AcceptanceEntry, str]:
    """Return what overviews show of an acceptance, and the page of its certificate, empty if that cannot be computed."""
    name = folder.path.name
    try:
        shown, page = provider_of(folder).overview(folder, links)
    except OrchError as error:
        return AcceptanceEntry(name, mark, benches=tuple(benches), damaged=str(error)), ""
    return AcceptanceEntry(name, mark, benches=tuple(benches), **shown), page

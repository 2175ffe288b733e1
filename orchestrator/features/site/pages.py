"""Entries of overviews for one bench and one acceptance, and the page of an acceptance, read from
their files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.analysis.compare.cell_snapshot import dump_cell
from orchestrator.analysis.past_cells import find_damaged_runs, past_cells
from orchestrator.errors import DataError, OrchError
from orchestrator.features.site.catalogue import AcceptanceEntry, BenchEntry
from orchestrator.record import BenchDir, holder
from orchestrator.record.bench_groups import BenchGroup, provider_of
from orchestrator.record.folder_cache import evidence_mark
from orchestrator.record.manifest import read_manifest
from orchestrator.report.html.bench_page import Read
from orchestrator.report.html.navigation import Link
from orchestrator.report.html.page import subject
from orchestrator.results import RunResult, cells_of


def mark_of(bench: BenchDir) -> str:
    """Return a text that changes when the page of a bench may change: with its files, and with what
    a controller does.
    """
    return f"{evidence_mark(bench.path)} {'held' if holder(bench) else 'free'}"


def entry_of(whole: Read, name: str, mark: str) -> BenchEntry:
    """Return a bench's entry in overviews. ``mark`` was taken before it was read."""
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
        hosts=tuple(
            hosts
            or dict.fromkeys(host for result in results for host in _hosts(whole.bench, result))
        ),
        hardware=tuple(dict.fromkeys(entry.hardware for entry in entries if entry.hardware)),
        blamed=dict(
            Counter(result.error.host for result in results if result.error and result.error.host)
        ),
        damaged=find_damaged_runs(whole.runs),
        has_page=True,
        cells=tuple(past_cells(name, record, whole.runs, summary.rows)),
        kept=tuple(
            dump_cell(cell)
            for cell in cells_of(whole.runs)
            if cell.primary and not cell.measure.is_diagnosis
        ),
    )


def _hosts(bench: BenchDir, result: RunResult) -> list[str]:
    try:
        return [slot.host for slot in read_manifest(bench.run(result.run_id)).slots]
    except DataError:
        return []


def acceptance_page(
    folder: BenchGroup, mark: str, links: Sequence[Link], benches: Sequence[str]
) -> tuple[AcceptanceEntry, str]:
    """Return an acceptance's entry in overviews, and the page of its certificate.

    The page is empty if the certificate cannot be computed.
    """
    name = folder.path.name
    try:
        shown, page = provider_of(folder).overview(folder, links)
    except OrchError as error:
        return AcceptanceEntry(name, mark, benches=tuple(benches), damaged=str(error)), ""
    return AcceptanceEntry(name, mark, benches=tuple(benches), **shown), page

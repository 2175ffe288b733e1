"""Measured rows and published ones of the same model, type and batch size per device, always with
the hardware of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.features.published.tables import PublishedCell, PublishedFile, PublishedTable
from orchestrator.report.references import Match, ReferenceTable
from orchestrator.results.entries import Row
from orchestrator.results.summary import Summary


def reference_tables(
    summary: Summary, files: Iterable[PublishedFile]
) -> tuple[tuple[ReferenceTable, ...], tuple[str, ...]]:
    """Return a comparison of each series with each published table that fits it, and a note for
    each series that none fits.

    Language models are not in these tables: `nearest_records` has their neighbours.
    """
    files = tuple(files)
    compared, notes = [], []
    speeds = replace(summary, rows=tuple(row for row in summary.speeds() if not row.tokens))
    for series, rows in speeds.by_series().items():
        row = rows[0]
        related = [
            file for file in files if row.framework == file.framework or row.framework in file.like
        ]
        fits = False
        for file in related:
            for table in file.tables:
                if _fits(row, file, table):
                    compared.append(_compare(series, rows, file, table))
                    fits = True
        if not fits:
            notes.append(f"{series}: no published table fits; {_offer(related)}")
    return tuple(compared), tuple(notes)


def _fits(row: Row, file: PublishedFile, table: PublishedTable) -> bool:
    measured = (file.models.get(row.model, row.model), row.dtype, row.batch_size)
    return measured == (table.model, table.dtype, table.batch_size)


def _compare(
    series: str, rows: tuple[Row, ...], file: PublishedFile, table: PublishedTable
) -> ReferenceTable:
    # Of several run lengths of a case, the last and longest represents it.
    ours = {row.shape: row for row in rows}
    theirs = {cell.case: cell for cell in table.cells}
    cases = sorted({*ours, *theirs}, key=_size)
    hardware = dict.fromkeys(row.hardware for row in rows if row.hardware)
    notes = [f"loader {rows[0].loader}, published with {table.loader}, version {table.version}"]
    if any(row.simulated for row in rows):
        notes.append("ours is simulated: not a speed of any hardware")
    if any(row.device == "cpu" for row in rows):
        notes.append("ours ran on CPUs")
    return ReferenceTable(
        series=series,
        source=file.source,
        title=table.title,
        our_hardware="; ".join(hardware) or "not recorded",
        published_hardware=table.hardware,
        pairs=tuple(_pair(case, ours.get(case), theirs.get(case)) for case in cases),
        notes=tuple(notes),
    )


def _pair(case: str, row: Row | None, cell: PublishedCell | None) -> Match:
    ours, published = row.median if row else None, cell.speed if cell else None
    return Match(
        case=case,
        ours=ours,
        published=published,
        ratio=ours / published if ours and published else None,
        our_speedup=row.speedup if row else None,
        published_speedup=cell.speedup if cell else None,
    )


def _size(case: str) -> tuple[int, int]:
    nodes, gpus = (int(word) for word in case.removesuffix("g").split("n"))
    return nodes * gpus, nodes


def _offer(files: Iterable[PublishedFile]) -> str:
    offers = sorted(
        {
            f"{table.model} {table.dtype} b{table.batch_size}"
            for file in files
            for table in file.tables
        }
    )
    if not offers:
        return "its framework has no published tables"
    return f"the published tables have {', '.join(offers)}"

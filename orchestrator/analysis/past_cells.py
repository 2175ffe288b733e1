"""Every cell of every bench of a project, oldest first, from the evidence of each bench.

The cells of a bench are cached in one deletable file, and read from there only if no file of the bench has changed its size or
modification time. Reading ten thousand logs again takes half a minute; checking their sizes and times takes a moment.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import DataError, OrchError
from orchestrator.files import write_atomic
from orchestrator.record import BenchDir
from orchestrator.record.benchfile import BenchRecord
from orchestrator.record.past_acceptance import PastAcceptance
from orchestrator.record.rundir import bench_folders
from orchestrator.record.sealed import is_broken, sealed
from orchestrator.record.state_file import read_json
from orchestrator.results import Interval, RunResult
from orchestrator.results.bench import placed
from orchestrator.results.read import read_run
from orchestrator.results.summary import Row, summarize
from orchestrator.version import __version__

__all__ = [
    "History", "PastAcceptance", "PastCell", "chosen", "damaged_runs", "evidence_mark", "history", "history_of", "listed",
    "past_cells", "remembered", "revived",
]  # fmt: skip

_SCHEMA = 6
_NO_EVIDENCE = {"results", "report.html", "owner.lock", "progress.log"}
"""Names of derived files and of files that are no evidence."""


@dataclass(frozen=True, slots=True)
class PastCell:
    """One cell of one bench: typical value of a metric and its 95 % interval in ``unit``, of ``n`` good repeats, None if there
    is none. ``primary``: the metric stands for the run.

    ``spec`` is the whole spec as text, with metric, unit and key: cells with equal ones are comparable. ``created`` is when the
    bench was planned, in UTC, ``label`` is that of the bench.
    """

    created: str
    bench_id: str
    series: str
    framework: str
    model: str
    dtype: str
    shape: str
    spec: str
    metric: str
    unit: str
    primary: bool
    value: float | None
    interval: Interval | None
    n: int
    failed: int
    qualifications: tuple[str, ...]
    hardware: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """All cells; ``damaged`` maps each bench or run with damaged evidence to the reason, ``speedless`` each bench without
    metrics to what it measured, ``seals`` each bench or acceptance of a store to the seal of its archive; ``acceptances`` are
    the oldest first."""

    cells: tuple[PastCell, ...]
    damaged: Mapping[str, str]
    speedless: Mapping[str, str]
    seals: Mapping[str, str] = field(default_factory=dict)
    acceptances: tuple[PastAcceptance, ...] = ()


def history(root: Path, cache: Path) -> History:
    """Return the history of the benches in ``root``; damaged benches raise nothing. ``cache`` need not exist."""
    return history_of(remembered(cache, list(reversed(bench_folders(root))), _read))


def remembered(cache: Path, folders: Sequence[Path], read: Callable[[Path], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return by name what ``read`` says of folders with benches, from ``cache`` where no file of one has changed."""
    cached, entries = _cached(cache), dict[str, dict[str, Any]]()
    for folder in folders:
        mark = evidence_mark(folder)
        entry = cached.get(folder.name)
        entries[folder.name] = entry if entry and entry["mark"] == mark else {"mark": mark, **read(folder)}
    if entries != cached:
        with suppress(OrchError, OSError):  # the cache only saves time
            cache.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomic(cache, json.dumps(sealed({"schema": _SCHEMA, "orch": __version__, "benches": entries})).encode())
    return entries


def history_of(entries: Mapping[str, Mapping[str, Any]]) -> History:
    """Return the history of benches, given by name as `listed` does."""
    cells = [revived(cell) for entry in entries.values() for cell in entry["cells"]]
    damaged = {name: reason for entry in entries.values() for name, reason in entry["damaged"].items()}
    speedless = {name: entry["measures"] for name, entry in entries.items() if entry["measures"]}
    return History(tuple(sorted(cells, key=lambda cell: (cell.created, cell.bench_id))), damaged, speedless)


def chosen(
    cells: Sequence[PastCell], model: str = "", dtype: str = "", shape: str = "", since: str = "", metric: str = ""
) -> tuple[PastCell, ...]:
    """Return the matching cells; an empty text matches any, except that without ``metric`` only primary ones match.

    ``since`` is a date or time in the format of ``created``, ``metric`` a name or ``all``.
    """
    required = {"model": model, "dtype": dtype, "shape": shape}
    return tuple(
        cell
        for cell in cells
        if cell.created >= since
        and (metric in ("all", cell.metric) or (not metric and cell.primary))
        and all(not value or getattr(cell, name) == value for name, value in required.items())
    )


def revived(cell: Mapping[str, Any]) -> PastCell:
    """Return a cell from its `asdict` as JSON has it."""
    interval = Interval(**cell["interval"]) if cell["interval"] else None
    return PastCell(**{**cell, "interval": interval, "qualifications": tuple(cell["qualifications"])})


def _cached(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except OrchError:
        return {}
    intact = isinstance(record, dict) and not is_broken(record) and "seal" in record
    return record["benches"] if intact and (record["schema"], record["orch"]) == (_SCHEMA, __version__) else {}


def evidence_mark(bench: Path) -> str:
    """Return a digest of the names, sizes and modification times of all evidence of a bench."""
    lines = sorted(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in _files(str(bench)))
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _NO_EVIDENCE:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry.path, entry.stat(follow_symlinks=False)


def _read(path: Path) -> dict[str, Any]:
    """Return what `listed` does of the bench in a folder; the reason if it cannot be read."""
    try:
        bench = BenchDir.open(path)
        return listed(bench, path.name, [read_run(run) for run in bench.runs()])
    except OrchError as error:
        return {"cells": [], "damaged": {path.name: str(error)}, "measures": ""}


def listed(bench: BenchDir, name: str, runs: Sequence[RunResult]) -> dict[str, Any]:
    """Return the ``cells`` of a bench, except borrowed ones, which the lender lists, why runs are ``damaged``, and what it
    ``measures`` if that has no metrics, for JSON. ``name`` is what the cells call the bench, ``runs`` are those with files."""
    record = bench.record()
    results = placed(bench, runs)
    cells = past_cells(name, record, results, summarize(results).rows)
    measures = next((run.measure.noun for run in results if run.measure.is_diagnosis), "")
    return {"cells": [asdict(cell) for cell in cells], "damaged": damaged_runs(results), "measures": measures}


def damaged_runs(results: Sequence[RunResult]) -> dict[str, str]:
    """Return why the evidence of runs is damaged, by run id."""
    # Incomplete evidence of a running run is no damage, nor is that of a lost run, whose outcome records the loss.
    # Nor are intact logs in which the log grammar found nothing: they can be read again with a corrected one.
    return {
        run.run_id: str(run.error)
        for run in results
        if isinstance(run.error, DataError) and run.state in ("damaged", "failed") and run.error.kind != "log_unmatched"
    }


def past_cells(bench_id: str, record: BenchRecord, results: Sequence[RunResult], rows: Sequence[Row]) -> list[PastCell]:
    """Return the cells of a bench from the rows of its summary, except borrowed ones, which the lender lists, and those of
    which no run has begun."""
    specs = {run.run_id: run.spec.as_dict() for run in results if run.spec}
    measured = [row for row in rows if not set(row.run_ids) <= set(record.borrowed) and row.run_ids[0] in specs]
    return [_measured(row, record, bench_id, specs[row.run_ids[0]]) for row in measured]


def _measured(row: Row, record: BenchRecord, bench_id: str, spec: Mapping[str, Any]) -> PastCell:
    return PastCell(
        record.created,
        bench_id,
        row.series,
        row.framework,
        row.model,
        row.dtype,
        row.shape,
        json.dumps({**spec, "metric": row.metric, "unit": row.unit, "better": row.better, "key": row.key}, sort_keys=True),
        row.metric,
        row.unit,
        row.primary,
        row.value,
        row.interval,
        row.n,
        row.failed,
        row.qualifications,
        row.hardware,
        record.label,
    )

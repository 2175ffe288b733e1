"""Every cell of every bench of a project, oldest first, as its own evidence shows it.

What was read of a bench is kept in one deletable file, and believed only while no file of the bench has another size or time of
change. Reading ten thousand logs anew takes half a minute; looking at them takes a moment.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.errors import DataError, OrchError
from orchestrator.files import write_atomic
from orchestrator.record import BenchDir
from orchestrator.record.rundir import bench_folders
from orchestrator.record.sealed import is_broken, sealed
from orchestrator.record.state_file import read_json
from orchestrator.results import Interval
from orchestrator.results.read import read_run
from orchestrator.results.summary import Row, summarize

__all__ = ["History", "PastCell", "chosen", "history"]

_SCHEMA = 2
_OURS = {"results", "report.html", "owner.lock", "progress.log"}
"""Derived, or no evidence."""


@dataclass(frozen=True, slots=True)
class PastCell:
    """One cell of one bench: median and 95 % interval in samples/s of ``n`` good repeats, None where there is none.

    ``spec`` is all that was asked for, as text: equal texts may be compared. ``created`` is when the bench was planned, in UTC.
    """

    created: str
    bench_id: str
    series: str
    framework: str
    model: str
    dtype: str
    shape: str
    spec: str
    median_speed: float | None
    interval: Interval | None
    n: int
    failed: int
    qualifications: tuple[str, ...]
    hardware: str


@dataclass(frozen=True, slots=True)
class History:
    """All cells, of each bench or run that cannot be read or believed the reason, and of each bench that has no speeds what it
    measured."""

    cells: tuple[PastCell, ...]
    damaged: Mapping[str, str]
    speedless: Mapping[str, str]


def history(root: Path, cache: Path) -> History:
    """Return the history of the benches in ``root``; nothing of a bench is raised. ``cache`` need not be there."""
    known, found = _cached(cache), {}
    for folder in reversed(bench_folders(root)):
        mark = _mark(folder)
        entry = known.get(folder.name)
        found[folder.name] = entry if entry and entry["mark"] == mark else {"mark": mark, **_read(folder)}
    if found != known:
        with suppress(OrchError, OSError):  # it only saves time
            cache.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomic(cache, json.dumps(sealed({"schema": _SCHEMA, "orch": __version__, "benches": found})).encode())
    cells = [_revived(cell) for one in found.values() for cell in one["cells"]]
    damaged = {name: reason for one in found.values() for name, reason in one["damaged"].items()}
    speedless = {name: one["measures"] for name, one in found.items() if one["measures"]}
    return History(tuple(sorted(cells, key=lambda cell: (cell.created, cell.bench_id))), damaged, speedless)


def chosen(
    cells: Sequence[PastCell], model: str = "", dtype: str = "", shape: str = "", since: str = ""
) -> tuple[PastCell, ...]:
    """Return the cells that are as wanted, an empty text being any; ``since`` is a date or time as ``created`` is written."""
    wanted = {"model": model, "dtype": dtype, "shape": shape}
    return tuple(
        cell
        for cell in cells
        if cell.created >= since and all(not value or getattr(cell, name) == value for name, value in wanted.items())
    )


def _revived(cell: Mapping[str, Any]) -> PastCell:
    interval = Interval(**cell["interval"]) if cell["interval"] else None
    return PastCell(**{**cell, "interval": interval, "qualifications": tuple(cell["qualifications"])})


def _cached(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except OrchError:
        return {}
    whole = isinstance(record, dict) and not is_broken(record) and "seal" in record
    return record["benches"] if whole and (record["schema"], record["orch"]) == (_SCHEMA, __version__) else {}


def _mark(bench: Path) -> str:
    """Return a digest of names, sizes and times of change of all evidence of a bench."""
    lines = sorted(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in _files(str(bench)))
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _OURS:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry.path, entry.stat(follow_symlinks=False)


def _read(path: Path) -> dict[str, Any]:
    """Return the cells of a bench but borrowed ones, which the lender has, and what is damaged, ready for JSON."""
    try:
        bench = BenchDir.open(path)
        record = bench.record()
        results = [read_run(run) for run in bench.runs()]
        specs = {run.run_id: json.dumps(run.spec.as_dict(), sort_keys=True) for run in results if run.spec}
        own = [row for row in summarize(results).rows if not set(row.run_ids) <= set(record.borrowed)]
        cells = [_measured(row, record.created, path.name, specs[row.run_ids[0]]) for row in own]
    except OrchError as error:
        return {"cells": [], "damaged": {path.name: str(error)}, "measures": ""}
    # The evidence of a run that goes on is not whole yet, and one that was lost has said so itself: neither is damage.
    damaged = [run for run in results if isinstance(run.error, DataError) and run.state in ("damaged", "failed")]
    measures = next((run.measure.noun for run in results if not run.measure.has_speed), "")
    reasons = {run.run_id: str(run.error) for run in damaged}
    return {"cells": [asdict(cell) for cell in cells], "damaged": reasons, "measures": measures}


def _measured(row: Row, created: str, bench_id: str, spec: str) -> PastCell:
    return PastCell(
        created,
        bench_id,
        row.series,
        row.framework,
        row.model,
        row.dtype,
        row.shape,
        spec,
        row.median_speed,
        row.speed_interval,
        row.n,
        row.failed,
        row.qualifications,
        row.hardware,
    )

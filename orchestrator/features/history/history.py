"""The history of a project: the cells of every bench, oldest first, and the acceptances of its
hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.analysis.past_cells import (
    History,
    PastBench,
    PastCell,
    dump_past_bench,
    history_of,
)
from orchestrator.documents import read
from orchestrator.errors import OrchError
from orchestrator.feature import providers
from orchestrator.record import BenchDir, Project
from orchestrator.record.folder_cache import read_folders
from orchestrator.record.rundir import bench_folders
from orchestrator.results.read import read_run


def project_history(project: Project) -> History:
    """Return all benches and acceptances of a project; damaged ones raise nothing."""
    benches = history(project.runs, project.history)
    for module in providers("past_acceptances"):
        accepted, damaged = module.past_acceptances(project.runs, project.cache("acceptances"))
        benches = replace(benches, acceptances=accepted, damaged={**benches.damaged, **damaged})
    return benches


def history(root: Path, cache: Path) -> History:
    """Return the history of the benches in ``root``; damaged benches raise nothing. ``cache`` need
    not exist.
    """
    entries = read_folders(cache, list(reversed(bench_folders(root))), _read)
    return history_of({name: read(PastBench, entry) for name, entry in entries.items()})


def _read(path: Path) -> dict[str, Any]:
    """Return the bench in a folder as `dump_past_bench` does, or why it cannot be read."""
    try:
        bench = BenchDir.open(path, path.parent)
        return dump_past_bench(bench, path.name, [read_run(run) for run in bench.runs()])
    except OrchError as error:
        return {"cells": [], "damaged": {path.name: str(error)}, "measures": ""}


def chosen(
    cells: Sequence[PastCell],
    model: str = "",
    dtype: str = "",
    shape: str = "",
    since: str = "",
    metric: str = "",
) -> tuple[PastCell, ...]:
    """Return the matching cells; an empty text matches any, except that without ``metric`` only
    primary ones match.

    ``since`` is a date or time in the format of ``created``, ``metric`` a name or ``all``.
    """
    required = {"model": model, "dtype": dtype, "shape": shape}
    chosen = []
    for cell in cells:
        if (
            cell.created >= since
            and (metric in ("all", cell.metric) or (not metric and cell.primary))
            and all(not value or getattr(cell, name) == value for name, value in required.items())
        ):
            chosen.append(cell)
    return tuple(chosen)

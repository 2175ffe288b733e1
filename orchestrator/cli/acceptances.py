"""The acceptances of a project: by name, and the one that is not over yet."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.record import Project
from orchestrator.record.acceptance import AcceptanceDir, acceptances
from orchestrator.record.rundir import bench_folders

__all__ = ["named", "unfinished"]


def named(name: str) -> AcceptanceDir | None:
    """Return the acceptance with this name or directory; None if it is the name of something else, or empty."""
    places = (Path(name), Project.here(os.environ).runs / name) if name else ()
    return next((folder for folder in map(AcceptanceDir, places) if folder.is_one), None)


def unfinished(name: str) -> AcceptanceDir | None:
    """Return the acceptance with this name or directory; without a name the newest one, if it is not over and newer than every
    bench; None if there is none."""
    if name:
        return named(name)
    runs = Project.here(os.environ).runs
    newest = next(acceptances(runs), None)
    if newest is None or any(path.name > newest.path.name for path in bench_folders(runs)[:1]):
        return None
    record = newest.record()
    return newest if set(record.stages) - set(record.over) else None

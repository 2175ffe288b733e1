"""The acceptances of a project: by name, and the one that is not over yet."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.features.accept.record import AcceptanceDir, acceptances
from orchestrator.files import is_file
from orchestrator.record import Project
from orchestrator.record.rundir import bench_folders

__all__ = ["named", "newest", "stage_of", "unfinished"]


def named(name: str) -> AcceptanceDir | None:
    """Return the acceptance with this name or directory; None if it is the name of something else, or empty."""
    places = (Path(name), Project.here(os.environ).runs / name) if name else ()
    return next((folder for folder in map(AcceptanceDir, places) if folder.is_one), None)


def unfinished(name: str) -> AcceptanceDir | None:
    """Return the acceptance with this name or directory; without a name the newest one, if it is not over and newer than every
    bench; None if there is none."""
    if name:
        return named(name)
    last = newest()
    return None if last is None or last.record().is_over else last


def newest() -> AcceptanceDir | None:
    """Return the newest acceptance of the project; None if there is none, or a bench is newer."""
    runs = Project.here(os.environ).runs
    last = next(acceptances(runs), None)
    if last is None or any(path.name > last.path.name for path in bench_folders(runs)[:1]):
        return None
    return last


def stage_of(name: str) -> Path | None:
    """Return the folder of the last bench of an acceptance, by its name or directory, or of the bench of a stage by its own
    name; without a name that of the newest acceptance, as long as it is under way. None for anything else. Raises ConfigError
    for an acceptance without a bench."""
    runs = Project.here(os.environ).runs
    if name and "/" not in name:
        for acceptance in acceptances(runs):
            if is_file(acceptance.path / name / "bench.json"):
                return acceptance.path / name
    folder = unfinished(name)
    if folder is None:
        return None
    begun = [folder.path / attempt.bench_id for attempt in folder.record().attempts]
    made = [path for path in begun if (path / "bench.json").is_file()]
    if not made and name:
        raise ConfigError("no stage of this acceptance has begun a bench yet", where=str(folder.path))
    return made[-1] if made else None

"""The jobs that benches have submitted and not ended yet: one file for each in ``.orch/jobs/``.

A file is written before the job is submitted, so that no instant exists at which a killed
controller leaves a job that nobody finds: without its number, the job has the bench's name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.documents import read
from orchestrator.errors import DataError
from orchestrator.files import PROJECT_HINT, make_folder, write_atomic
from orchestrator.procs import is_same_process, start_ticks
from orchestrator.record.project import Project
from orchestrator.record.state_file import read_json


@dataclass(frozen=True, slots=True)
class Submission:
    """The job of a bench. ``job`` is empty until its engine has said its name; ``options`` are what
    was asked of the engine. The process with the id ``process`` and start time ``ticks`` is the
    controller that waits for it or uses it.
    """

    bench_id: str
    job: str
    options: tuple[str, ...]
    process: int
    ticks: int
    engine: str = "slurm"

    @property
    def is_attended(self) -> bool:
        """Return whether its controller lives."""
        return is_same_process(self.process, self.ticks)


def submit(
    project: Project, bench_id: str, job: str, engine: str, options: Sequence[str]
) -> Submission:
    """Record the job of a bench, whose controller is this process, before it is submitted and when
    its name is known.
    """
    process = os.getpid()
    record = Submission(bench_id, job, tuple(options), process, start_ticks(process), engine)
    path = _path(project, bench_id)
    make_folder(path.parent, PROJECT_HINT)
    write_atomic(path, json.dumps({"schema": 1, **asdict(record)}).encode(), hint=PROJECT_HINT)
    return record


def submission(project: Project, bench_id: str) -> Submission | None:
    """Return the job of a bench, None if it has none, or has ended it."""
    return _read(_path(project, bench_id))


def submissions(project: Project) -> list[Submission]:
    """Return the jobs of all benches that have one, in the order of their names."""
    folder = project.root / ".orch" / "jobs"
    read_back = [_read(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    return [submission for submission in read_back if submission]


def forget(project: Project, bench_id: str) -> None:
    """Remove the record of a job that has ended."""
    _path(project, bench_id).unlink(missing_ok=True)


def _path(project: Project, bench_id: str) -> Path:
    return project.root / ".orch" / "jobs" / f"{bench_id}.json"


def _read(path: Path) -> Submission | None:
    try:
        return read(Submission, read_json(path))
    except (DataError, ValueError):
        return None

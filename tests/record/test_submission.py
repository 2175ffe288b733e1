"""The record of a submitted job: there before its number is, and it tells whether its controller
lives.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from orchestrator.record import Project
from orchestrator.record.submission import forget, submission, submissions, submit
from tests.support.judge import LIMIT_S


def test_a_record_is_found_until_it_is_forgotten_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert submissions(project) == [] and submission(project, "b1") is None
    submit(project, "b1", "", "slurm", ["--nodes=4"])
    submit(project, "b1", "4711", "slurm", ["--nodes=4"])
    submit(project, "b2", "4712", "kubernetes", [])
    assert [
        (one.bench_id, one.job, one.engine, one.options, one.is_attended)
        for one in submissions(project)
    ] == [
        ("b1", "4711", "slurm", ("--nodes=4",), True),
        ("b2", "4712", "kubernetes", (), True),
    ]
    (tmp_path / ".orch" / "jobs" / "b2.json").write_text("{")
    forget(project, "b1")
    forget(project, "b1")
    assert submissions(project) == []


def test_a_job_whose_controller_has_ended_is_unattended(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from orchestrator.record import Project, submission; "
        "submission.submit(Project(pathlib.Path(sys.argv[1])), 'b1', '7', 'slurm', [])"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=LIMIT_S)
    known = submission(Project(tmp_path), "b1")
    assert known and not known.is_attended

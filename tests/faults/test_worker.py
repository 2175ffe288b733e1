"""The fault suite itself, when the process that hands out its trials is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator import procs
from tests.support import judge
from tests.support.commands import REPOSITORY, inherited_environment


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_no_lab_and_no_trial_outlives_a_suite_that_is_killed(tmp_path: Path) -> None:
    environment = inherited_environment() | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-m", "tests.faults", "P9", "--trials", "9", "--jobs", "1"]
    suite = subprocess.Popen(
        argv, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    judge.wait_for(
        lambda: list(tmp_path.glob("faults-*/P9-*/project/runs/*")), 40, "no run was begun"
    )
    everyone = procs.snapshot()
    alive = {
        pid for pid in everyone if str(tmp_path) in procs.cmdline(pid).decode(errors="replace")
    }
    alive |= procs.descendants([suite.pid], everyone) - {suite.pid}
    assert len(alive) > 4, alive
    suite.send_signal(signal.SIGKILL)
    suite.wait()

    def files() -> list[Path]:
        return [
            path for folder in tmp_path.glob("faults-*") for path in (folder, *folder.rglob("*"))
        ]

    def left() -> list[procs.Stat]:
        now = procs.snapshot()
        return [
            process
            for pid, process in now.items()
            if pid in alive and process.start_ticks == everyone[pid].start_ticks
        ]

    try:
        judge.wait_for(
            lambda: not left() and not files(), 15, lambda: f"left: {left()}, {files()[:20]}"
        )
    finally:
        procs.end_all(lambda: {process.pid: process for process in left()})
        for directory in tmp_path.glob("faults-*/lab-*"):
            labs.down(directory)

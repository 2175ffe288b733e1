"""Processes that share work end with the one that started them, also if nothing tells them so but
its death.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator import procs
from tests.support import judge
from tests.support.benches import bench
from tests.support.commands import REPOSITORY, inherited_environment
from tests.support.features import needs

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one processor: no work is shared"
)

BENCHES = 16
"""More pages than a site makes in one process."""
SHARED = """
import os, sys, time
from pathlib import Path
from orchestrator.pool import share_out

def work(jobs):
    for job in jobs:
        (Path(sys.argv[1]) / f"{job}-{os.getpid()}").touch()
        time.sleep(float(sys.argv[2]))

if __name__ == "__main__":
    for _ in share_out(work, range(8), worth=True, most=2):
        time.sleep(600)  # the workers go on, and wait when nothing is left
"""


def started(argv: Sequence[str], folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    environment = inherited_environment() | {"PYTHONPATH": str(REPOSITORY), **variables}
    return subprocess.Popen(
        [sys.executable, *argv], cwd=folder, env=environment, stderr=subprocess.DEVNULL
    )


def workers(parent: int) -> dict[int, procs.Stat]:
    """Return the processes that a process has started, with the one that keeps their semaphores."""
    everyone = procs.snapshot()
    return {pid: everyone[pid] for pid in procs.descendants([parent], everyone) - {parent}}


def is_left(process: procs.Stat) -> bool:
    """Claim that a process goes on."""
    now = procs.stat(process.pid)
    return now is not None and now.start_ticks == process.start_ticks and now.state not in "ZX"


def killed(parent: subprocess.Popen[bytes], alive: dict[int, procs.Stat]) -> None:
    """Kill a process, and fail if one of those that it has started outlives it by more than three
    seconds.
    """
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    try:
        judge.wait_for(lambda: not any(map(is_left, alive.values())), 3, lambda: f"left: {alive}")
    finally:
        for process in filter(is_left, alive.values()):
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("seconds", "begun"), [(60.0, 0), (60.0, 2), (0.01, 8)], ids=["starting", "at work", "waiting"]
)
def test_workers_end_when_their_parent_is_killed(
    tmp_path: Path, seconds: float, begun: int
) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (tmp_path / "shared.py").write_text(SHARED)
    parent = started(["shared.py", "jobs", str(seconds)], tmp_path)
    judge.wait_for(
        lambda: len(workers(parent.pid)) > 2 and len(list(jobs.iterdir())) >= begun,
        20,
        "no work was begun",
    )
    killed(parent, workers(parent.pid))
    # What was still to be done is not begun any more. Two may have begun between the look and the end.
    assert begun <= len(list(jobs.iterdir())) <= max(begun, 2)


def test_ctrl_c_waits_for_no_share_in_progress(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (tmp_path / "shared.py").write_text(SHARED)
    parent = started(["shared.py", "jobs", "3600"], tmp_path)
    judge.wait_for(lambda: len(list(jobs.iterdir())) >= 2, judge.LIMIT_S, "no work was begun")
    alive = workers(parent.pid)
    parent.send_signal(signal.SIGINT)
    try:
        parent.wait(judge.LIMIT_S)  # a share takes an hour
        judge.wait_for(
            lambda: not any(map(is_left, alive.values())), judge.LIMIT_S, lambda: f"left: {alive}"
        )
    finally:
        parent.kill()
        for process in filter(is_left, alive.values()):
            os.kill(process.pid, signal.SIGKILL)


@needs("site")
def test_a_site_whose_build_is_killed_is_written_no_further(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for day in range(1, BENCHES + 1):
        bench(tmp_path / "runs", f"b{day}", f"2026-10-{day:02}T08:00:00Z", [1.0, 1.01, 0.99])
    parent = started(["-m", "orchestrator", "site", "site"], tmp_path, ORCH_PROJECT=str(tmp_path))
    pages = tmp_path / ".site.orch-site" / "benches"
    judge.wait_for(lambda: pages.is_dir() and any(pages.iterdir()), 30, "no page was made")
    alive = workers(parent.pid)
    assert len(alive) > 2, alive
    killed(parent, alive)
    assert len(list(pages.iterdir())) < BENCHES
    assert not (tmp_path / "site").exists()

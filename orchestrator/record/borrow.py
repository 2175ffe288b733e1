"""Copy runs of an earlier bench into a new one that uses them as its baseline."""

from __future__ import annotations

import shutil

from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir, RunDir


def borrow(bench: BenchDir, run: RunDir) -> None:
    """Copy a finished run of another bench into this one, so that its directory contains the
    baseline.
    """
    target, part = bench.path / run.run_id, bench.path / f".{run.run_id}.part"
    if target.exists():
        return
    shutil.rmtree(part, ignore_errors=True)  # left by a controller that died while copying
    shutil.copytree(run.path, part, symlinks=True)
    part.rename(target)
    bench.event(Event.BORROWED, run=run.run_id, origin=str(run.path.parent.name))

"""Runs of an earlier bench that a new one counts as its own baseline, copied with what they are."""

from __future__ import annotations

import shutil

from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir, RunDir

__all__ = ["borrow"]


def borrow(bench: BenchDir, run: RunDir) -> None:
    """Copy a finished run of another bench into this one, so that this directory alone carries its own baseline."""
    target, part = bench.path / run.run_id, bench.path / f".{run.run_id}.part"
    if target.exists():
        return
    shutil.rmtree(part, ignore_errors=True)  # of a controller that died in the middle
    shutil.copytree(run.path, part, symlinks=True)
    part.rename(target)
    bench.event(Event.BORROWED, run=run.run_id, origin=str(run.path.parent.name))

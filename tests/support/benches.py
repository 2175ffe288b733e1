"""A bench in a project, made from plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.record.rundir import BenchDir
from tests.support.run_folders import build


def bench(root: Path, name: str, created: str, seconds: list[float], **record: Any) -> BenchDir:
    """Return a bench of one cell with a run per step time."""
    runs = [f"{name}-{repeat}" for repeat in range(1, len(seconds) + 1)]
    made = BenchDir.create(root, {"bench_id": name, "created": created, "runs": runs, **record})
    for repeat, step_s in enumerate(seconds, start=1):
        build(made, f"{name}-{repeat}", repeat=repeat, seconds=step_s)
    return made

"""One job of the fault suite: a process with a lab of its own that runs trials one after the other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from orchestrator.lab import Lab
from tests.faults import rows  # noqa: F401 - importing them enters the rows
from tests.faults.suite import Result, run_trial
from tests.support.faultlab import four_nodes

_lab: Lab | None = None


def start_lab(base: str) -> None:
    """Start this process's lab in ``base``; whoever made ``base`` takes it down."""
    global _lab
    directory = Path(base) / f"lab-{os.getpid()}"
    _lab = four_nodes(directory)


def trial(base: str, name: str, number: int, seed: int) -> Result:
    """Run one trial in this process's lab."""
    assert _lab
    scratch = Path(base) / f"{name}-{number}"
    result = run_trial(name, number, seed, _lab, scratch, full=True)
    shutil.rmtree(scratch, ignore_errors=True)
    return result

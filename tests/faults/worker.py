"""One job of the fault suite: a process with a lab of its own that runs trials one after the other."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

from orchestrator import lab as labs
from orchestrator.lab import Lab
from orchestrator.pool import end_with_parent
from tests.faults import rows  # noqa: F401 - importing them enters the rows
from tests.faults.suite import Result, run_trial
from tests.support.faultlab import four_nodes

_lab: Lab | None = None
_on_trial, _orphaned = threading.Lock(), threading.Event()


def start_lab(base: str) -> None:
    """Start this process's lab in ``base``; whoever made ``base`` takes it down, or this process if
    that one is killed.
    """
    global _lab
    signal.signal(signal.SIGINT, _interrupt)
    _lab = four_nodes(Path(base) / f"lab-{os.getpid()}")
    end_with_parent(_leave)


def trial(base: str, name: str, number: int, seed: int) -> Result:
    """Run one trial in this process's lab."""
    assert _lab
    scratch = Path(base) / f"{name}-{number}"
    with _on_trial:
        if _orphaned.is_set():
            raise KeyboardInterrupt
        try:
            return run_trial(name, number, seed, _lab, scratch, full=True)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _interrupt(*_: object) -> None:
    if _on_trial.locked():
        raise KeyboardInterrupt


def _leave() -> None:
    """Stop a trial that is under way as Ctrl-C does, which also ends what it has outside the lab;
    then end lab and process.
    """
    assert _lab
    _orphaned.set()
    os.kill(os.getpid(), signal.SIGINT)
    with _on_trial:
        try:
            base = _lab.directory.parent
            for directory in base.glob(f"{_lab.directory.name}*"):  # rows may have kept labs, too
                labs.down(directory)
            base.rmdir()  # the last one succeeds
        finally:
            os._exit(1)

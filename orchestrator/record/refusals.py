"""Refusals of runs: a node was unfit, held by another run, or out of reach."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError, restore_error
from orchestrator.record.journal import Event, last_controller
from orchestrator.record.ownership import holder
from orchestrator.record.rundir import BenchDir, benches


def errors_before_runs(bench: BenchDir) -> list[OrchError]:
    """Return the errors with which a bench ended before its first run; none if it has runs or is
    being run.
    """
    if _has_runs(bench):
        return []
    return [restore_error(error, "") for error in last_errors(bench)]


def errors_between_runs(bench: BenchDir) -> list[OrchError]:
    """Return the errors that name a host and no run, with which a bench ended that has runs: a node
    was unfit or out of reach when it was resumed. None if it is being run."""
    if not _has_runs(bench):
        return []
    return [
        restore_error(error, "")
        for error in last_errors(bench)
        if error.get("host") and not error.get("run_id")
    ]


def find_passed_over(root: Path, chosen: BenchDir) -> tuple[BenchDir, str] | None:
    """Return the newest bench in ``root`` and why it has no runs, if `latest` passed it over for
    ``chosen``, which is older.
    """
    newest = max(benches(root), key=_age, default=chosen)
    if _age(newest) <= _age(chosen) or _has_runs(newest):
        return None
    if holder(newest) is not None:
        return newest, "has not begun a run yet"
    why = refusal(newest)
    return (
        newest,
        f"was refused before its first run: {why}" if why else "ended before its first run",
    )


def _age(bench: BenchDir) -> tuple[tuple[float, str], str]:
    return bench.record().created_order, bench.path.name


def _has_runs(bench: BenchDir) -> bool:
    return any(bench.path.glob("*/manifest.json"))


def last_errors(bench: BenchDir) -> list[Mapping[str, Any]]:
    """Return the errors that the last process of a bench ended with; none while a process runs it."""
    if holder(bench) is not None:
        return []
    events = last_controller(bench.events())
    errors = events[-1].errors if events and events[-1].event == Event.OVER else ()
    return [error if isinstance(error, dict) else {} for error in errors]


def refusal(bench: BenchDir) -> str:
    """Return why a bench was refused before its first run; empty if it was not, or was interrupted."""
    errors = errors_before_runs(bench)
    if not errors or any(error.kind == "interrupted" for error in errors):
        return ""
    first, *others = errors
    words = f"{first.host}: {first.message}" if first.host else first.message
    if others:
        return f"{words} (and {len(others)} more)"
    return words

"""Why a bench has no run: it was refused before the first one, because a node was unfit, held, or out of reach."""

from __future__ import annotations

from orchestrator.errors import recorded_error
from orchestrator.record.journal import Event, last_controller
from orchestrator.record.ownership import holder
from orchestrator.record.rundir import BenchDir

__all__ = ["refusal"]


def refusal(bench: BenchDir) -> str:
    """Return why a bench was refused before its first run; empty if it has runs, was interrupted, or is being run."""
    if any(bench.path.glob("*/manifest.json")) or holder(bench) is not None:
        return ""
    events = last_controller(bench.events())
    errors = events[-1].errors if events and events[-1].event == Event.OVER else ()
    if not errors or any(error.get("kind") == "interrupted" for error in errors):
        return ""
    first, *others = errors
    error = recorded_error(first, "")
    words = f"{error.host}: {error.message}" if error.host else error.message
    return f"{words} (and {len(others)} more)" if others else words

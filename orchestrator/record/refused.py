"""Why a bench has no run: it was refused before the first one, because a node was unfit, held, or out of reach."""

from __future__ import annotations

from orchestrator.errors import OrchError, recorded_error
from orchestrator.record.journal import Event, last_controller
from orchestrator.record.ownership import holder
from orchestrator.record.rundir import BenchDir

__all__ = ["errors_before_runs", "refusal"]


def errors_before_runs(bench: BenchDir) -> list[OrchError]:
    """Return the errors with which a bench ended before its first run; none if it has runs or is being run."""
    if any(bench.path.glob("*/manifest.json")) or holder(bench) is not None:
        return []
    events = last_controller(bench.events())
    errors = events[-1].errors if events and events[-1].event == Event.OVER else ()
    return [recorded_error(error, "") for error in errors]


def refusal(bench: BenchDir) -> str:
    """Return why a bench was refused before its first run; empty if it was not, or was interrupted."""
    errors = errors_before_runs(bench)
    if not errors or any(error.kind == "interrupted" for error in errors):
        return ""
    first, *others = errors
    words = f"{first.host}: {first.message}" if first.host else first.message
    return f"{words} (and {len(others)} more)" if others else words

"""Cells as JSON, with what a comparison of their values needs and nothing else: a site compares many benches without reading
their logs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.logs.metrics import metric_of
from orchestrator.record.recorded_spec import spec_of
from orchestrator.results import Cell, RunResult

__all__ = ["cell_of", "kept"]


def kept(cell: Cell) -> dict[str, Any]:
    """Return a cell for JSON: spec, metric, key, its runs, and their numbers."""
    return {
        "spec": cell.spec.as_dict(),
        "simulated": cell.simulated,
        "runs": {run.run_id: run.repeat for run in cell.runs},
        "metric": asdict(cell.metric),
        "key": list(cell.metric_key),
        "primary": cell.primary,
        "numbers": dict(cell.numbers),
    }


def cell_of(content: Mapping[str, Any]) -> Cell:
    """Return the cell that `kept` wrote; its runs have no more than their ids. Raises KeyError, TypeError or ValueError."""
    spec, metric = spec_of(content["spec"], {}), metric_of(content["metric"])
    runs = tuple(
        RunResult(run_id, repeat, spec, content["simulated"], "", metrics=(metric,))
        for run_id, repeat in content["runs"].items()
    )
    key = tuple(content["key"])
    return Cell(spec, content["simulated"], runs, metric, key, content["primary"], content["numbers"])

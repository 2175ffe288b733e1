"""Cells as JSON, with what a comparison of their values needs and nothing else: a site compares
many benches without reading their logs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.logs.metrics import metric_of
from orchestrator.record.recorded_spec import spec_of
from orchestrator.results import Cell, RunResult
from orchestrator.results.numbers.drift import STEADY, Drift


def dump_cell(cell: Cell) -> dict[str, Any]:
    """Return a cell for JSON: spec, metric, key, its runs, their numbers and places in the bench,
    and the drift of that.
    """
    return {
        "spec": cell.spec.as_dict(),
        "simulated": cell.simulated,
        "runs": {run.run_id: [run.repeat, run.place] for run in cell.runs},
        "metric": asdict(cell.metric),
        "key": list(cell.metric_key),
        "primary": cell.primary,
        "numbers": dict(cell.numbers),
        "drift": asdict(cell.drift) if cell.drift.slope else None,
    }


def cell_of(content: Mapping[str, Any]) -> Cell:
    """Return the cell that `dump_cell` wrote; its runs have no more than their ids. Raises
    KeyError, TypeError or ValueError.
    """
    spec, metric = spec_of(content["spec"], {}), metric_of(content["metric"])
    runs = tuple(
        RunResult(run_id, repeat, spec, content["simulated"], "", metrics=(metric,), place=place)
        for run_id, (repeat, place) in content["runs"].items()
    )
    key = tuple(content["key"])
    drift = Drift(**content["drift"]) if content["drift"] else STEADY
    return Cell(
        spec,
        content["simulated"],
        runs,
        metric,
        key,
        content["primary"],
        content["numbers"],
        drift=drift,
    )

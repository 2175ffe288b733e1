"""A summary as JSON for programs: numbers unrounded, null for numbers that do not exist, and a
schema number that increases with every change.

``summary.schema.json`` in the same folder is its JSON Schema, draft 2020-12.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.notes import as_note
from orchestrator.results.entries import Entry
from orchestrator.results.summary import Summary
from orchestrator.results.telemetry.utilization import RunUse

SCHEMA = 8
"""1: first version. 2: intervals. 3: sheets, explanations. 4: typical speeds, repeats, counts of
planned runs. 5: labels, skipped configurations. 6: rows of any metric, each with its unit and key;
`speed` is `value`; expectations. 7: where the steady state of a repeat began; telemetry of runs;
the parts of the steps of each rank; profiles; hangs. 8: the code and severity of each note."""


def render(summary: Summary) -> str:
    """Return one JSON document, ASCII only. ``baselines`` has, by series, the runs that it is
    compared with, and the value that its speedups are divided by."""
    document = {
        "schema": SCHEMA,
        "label": summary.label,
        "baselines": {
            series: {
                "shape": row.shape,
                "value": summary.divisor(series),
                "n": row.n,
                "run_ids": list(row.run_ids),
            }
            for series, row in summary.baseline.items()
        },
        "drifts": dict(summary.drifts),
        "rows": [_entry(row) for row in summary.rows],
        "sheets": [_entry(sheet) for sheet in summary.sheets],
        "runs": asdict(summary.runs) if summary.runs else None,
        "skipped": [asdict(configuration) for configuration in summary.skipped],
        "expected": [asdict(judgement) for judgement in summary.expected],
        "telemetry": [
            {"run_id": run_id, **_telemetry(use)} for run_id, use in summary.uses.items()
        ],
        "notes": list(summary.notes),
        "note_codes": codes_of(summary.notes),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def codes_of(notes: Sequence[str]) -> list[dict[str, str]]:
    """Return the code and severity of each note, parallel to the list of sentences."""
    return [{"code": note.code, "severity": note.severity} for note in map(as_note, notes)]


def _entry(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "qualification_codes": codes_of(entry.qualifications)}


def _telemetry(use: RunUse) -> dict[str, Any]:
    """Return how the nodes of a run were used, without the lines that only a chart needs, and what a
    note says.
    """
    content = asdict(use)
    for node in content["nodes"]:
        del node["lines"], node["is_coarse"]
    return content

"""A summary as a text file for Prometheus' node exporter: one gauge per number, one sample per row.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/, text-based format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.cells import case
from orchestrator.report.text import one_line
from orchestrator.results.entries import SPEED, Row
from orchestrator.results.summary import Summary

_GAUGES = {
    "value": (
        "orch_speed_samples_per_second",
        "Typical throughput of the good repeats of a configuration.",
    ),
    "interval": (
        "orch_speed_{}_samples_per_second",
        "{} end of the 95 % confidence interval of the throughput.",
    ),
    "speedup": (
        "orch_speedup_ratio",
        "Typical value over that of the baseline, the reverse where lower is better.",
    ),
    "speedup_interval": (
        "orch_speedup_{}_ratio",
        "{} end of the 95 % confidence interval of the speedup.",
    ),
    "efficiency": ("orch_scaling_efficiency_ratio", "Speedup over the ratio of world sizes."),
    "n": ("orch_good_repeats", "Repeats with a number."),
    "planned": ("orch_planned_repeats", "Planned repeats."),
    "failed": ("orch_failed_repeats", "Repeats that failed."),
    "interrupted": ("orch_interrupted_repeats", "Repeats that were stopped before their end."),
    "running": ("orch_running_repeats", "Repeats under way."),
    "never_run": ("orch_never_run_repeats", "Repeats that were never started."),
    "world_size": ("orch_world_size_ranks", "Ranks of a configuration."),
}
_OF_ANY_METRIC = {
    "value": ("orch_metric_value", "Typical value of a metric other than samples/s, in its unit."),
    "interval": ("orch_metric_{}", "{} end of the 95 % confidence interval of the value."),
}
_ENDS = {"low": "Lower", "high": "Upper"}


def render(summary: Summary) -> str:
    """Return every number unrounded; a number that does not exist has no sample."""
    speeds = [row for row in summary.rows if row.metric == SPEED]
    others = [row for row in summary.rows if row.metric != SPEED]
    lines: list[str] = []
    for field, gauge in _GAUGES.items():
        lines += _lines(field, gauge, speeds if field in _OF_ANY_METRIC else summary.rows)
    for field, gauge in _OF_ANY_METRIC.items() if others else ():
        lines += _lines(field, gauge, others)
    return "".join(f"{line}\n" for line in lines)


def _lines(field: str, gauge: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    name, text = gauge
    lines: list[str] = []
    for end, word in _ENDS.items() if field.endswith("interval") else (("", ""),):
        samples = [(_labels(row), _number(row, field, end)) for row in rows]
        lines += [
            f"# HELP {name.format(end)} {text.format(word)}",
            f"# TYPE {name.format(end)} gauge",
        ]
        lines += [
            f"{name.format(end)}{labels} {value!r}"
            for labels, value in samples
            if value is not None
        ]
    return lines


def _number(row: Row, field: str, end: str) -> float | None:
    value = getattr(row, field)
    if value is None:
        return None
    return float(getattr(value, end) if end else value)


def _labels(row: Row) -> str:
    """Return labels that identify a configuration among all of a summary."""
    labels = {
        "series": row.series,
        "case": case(row),
        "framework": row.framework,
        "model": row.model,
    }
    if row.metric != SPEED:
        labels |= {
            "metric": row.metric,
            "unit": row.unit,
            **{f"key_{name}": str(value) for name, value in row.key.items()},
        }
    labels |= {
        "dtype": row.dtype,
        "nodes": str(row.nodes),
        "gpus": str(row.gpus),
        "simulated": str(row.simulated).lower(),
    }
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')

"""Speedups by the divisor that a published rule declares, where it is not the ratio of medians."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.results.entries import Row
from orchestrator.results.numbers.throughput import scaling_efficiency, speedup
from orchestrator.results.summary import Summary

MEDIANS = "median/median"


def apply_divisors(summary: Summary, divisors: Mapping[str, str]) -> Summary:
    """Return a summary of medians with the speedups of each framework by its divisor, such as
    ``mean/mean``.

    The speed of a row is then the one that is divided, without an interval.
    """
    if all(divisor == MEDIANS for divisor in divisors.values()):
        return summary
    bases = {series: _speed(row, divisors) for series, row in summary.baseline.items()}
    rows = {
        id(row): _row(row, divisors, bases.get(row.series), summary.baseline.get(row.series))
        for row in summary.rows
    }
    baseline = {
        series: _row(row, divisors, bases[series], row) for series, row in summary.baseline.items()
    }
    return replace(
        summary,
        rows=tuple(rows[id(row)] for row in summary.rows),
        baseline=baseline,
        of_medians=False,
    )


def _row(row: Row, divisors: Mapping[str, str], base: float | None, of: Row | None) -> Row:
    speed = _speed(row, divisors)
    times = speedup(speed, base) if speed and base else None
    efficiency = scaling_efficiency(times, row.world_size, of.world_size) if times and of else None
    return replace(
        row, value=speed, interval=None, speedup=times, speedup_interval=None, efficiency=efficiency
    )


def _speed(row: Row, divisors: Mapping[str, str]) -> float | None:
    statistic = divisors.get(row.framework, MEDIANS).partition("/")[0]
    speeds = {"median": row.median, "mean": row.average, "min": row.minimum, "max": row.maximum}
    return speeds[statistic]

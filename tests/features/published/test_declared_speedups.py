"""Speedups by the divisor of a rule: what is divided is what the table shows as the speed."""

from __future__ import annotations

import pytest

from orchestrator.features.published.declared_speedups import apply_divisors
from orchestrator.report.formats import json as jsonout
from orchestrator.results.summary import Summary, summarize
from tests.support.cells import SPEC, cell

SPEEDS = {"1n1g": [100.0, 104.0, 120.0], "2n1g": [150.0, 190.0, 200.0]}


@pytest.fixture
def medians() -> Summary:
    """Return the summary of three runs on one node and three on two."""
    return summarize(
        [run for shape, speeds in SPEEDS.items() for run in cell(shape, speeds)], of_medians=True
    )


@pytest.mark.parametrize(
    ("divisor", "base", "larger"),
    [("mean/mean", 108.0, 180.0), ("min/min", 100.0, 150.0), ("max/max", 120.0, 200.0)],
)
def test_speedup_efficiency_and_baseline_belong_to_the_divisor(
    medians: Summary, divisor: str, base: float, larger: float
) -> None:
    summary = apply_divisors(medians, {SPEC.framework: divisor})
    first, second = summary.rows
    assert (first.value, second.value) == (base, larger)
    assert (first.speedup, second.speedup) == (1.0, larger / base)
    assert (first.efficiency, second.efficiency) == (1.0, larger / base / 2)
    assert first.interval is second.speedup_interval is None
    assert [summary.divisor(series) for series in summary.baseline] == [base]
    assert (second.median, second.average) == (190.0, 180.0)
    assert f'"value": {base}' in jsonout.render(summary)


def test_medians_stay_as_they_are(medians: Summary) -> None:
    assert apply_divisors(medians, {SPEC.framework: "median/median"}) is medians
    assert apply_divisors(medians, {}) is medians
    of_another = apply_divisors(medians, {"another": "mean/mean"})
    assert [row.speedup for row in of_another.rows] == [row.speedup for row in medians.rows]


def test_without_a_baseline_there_is_no_speedup() -> None:
    (row,) = apply_divisors(
        summarize(cell("2n1g", SPEEDS["2n1g"]), of_medians=True), {SPEC.framework: "mean/mean"}
    ).rows
    assert (row.value, row.speedup, row.efficiency) == (180.0, None, None)

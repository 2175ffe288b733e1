"""Texts of cells that a table has no room for."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from orchestrator.report.cells import details
from orchestrator.report.formats import csv as delimited
from orchestrator.results.numbers.tempo import StepTimes
from orchestrator.results.summary import summarize
from tests.support.cells import cell


def test_csv_and_page_have_the_repeats_and_the_percentiles_of_steps() -> None:
    times = [
        StepTimes(0.1, 0.01, 0.10, 0.11, 0.12, 0.13),
        StepTimes(0.1, 0.01, 0.12, 0.13, 0.14, 0.15),
    ]
    runs = [
        replace(run, step_times=step_times)
        for run, step_times in zip(cell("1n1g", [100.0, 104.0]), times, strict=True)
    ]
    summary = summarize(runs)
    (line,) = csv.DictReader(io.StringIO(delimited.render(summary)))
    assert (line["repeats"], line["step_p50_s"], line["step_p90_s"], line["step_p99_s"]) == (
        "100; 104",
        "0.11",
        "0.12",
        "0.14",
    )
    assert (
        details(summary.rows[0])
        == "standard deviation 2.83 samples/s; step time in ms p50 110.00, p90 120.00, p99 140.00"
    )

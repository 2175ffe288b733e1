"""The rows of a summary as Markdown, CSV, JSON, JUnit and Prometheus have them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from junitparser import JUnitXml
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.logs.metrics import Metric
from orchestrator.report.formats import csv as delimited
from orchestrator.report.formats import json as jsonout
from orchestrator.report.formats import junit, markdown, prometheus
from orchestrator.results.entries import Row
from orchestrator.results.notes import NO_BASELINE
from orchestrator.results.summary import Summary, summarize
from tests.support.summaries import example, measured, runs


def test_markdown_is_a_table_with_footnotes(summary: Summary) -> None:
    assert markdown.render(summary) == (
        "### pytorch resnet50 fp16 b128 synthetic\n"
        "\n"
        "baseline 1n1g: 354.03 samples/s, n=3  \n"
        "NVIDIA H200 · torch 2.13.0 · NCCL 2.27.3  \n"
        "\n"
        "| case | n | average_speed | median_speed | min | max | speed | speed 95% | ms/step | per rank | speedup "
        "| speedup 95% | efficiency | notes |\n"
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |\n"
        "| 1n1g | 3 | 354.03 | 354.02 | 353.62 | 354.44 | 354.03 | 353.01 to 355.05 | 361.55 | 354.03 "
        "| 1.00 | – | 100.0% |  |\n"
        "| 1n8g | 3 | 2244.24 | 2277.07 | 2144.24 | 2311.41 | 2243.07 | 2032.24 to 2475.76 | 456.52 | 280.38 "
        "| 6.34 | 5.74 to 6.99 | 79.2% | 1 |\n"
        "| 4n8g | 0 (1 failed) | – | – | – | – | – | – | – | – | – | – | – | 2 |\n"
        "\n"
        "1. repeats spread over 7.3% of the median\n"
        "2. 4n8g-1 failed: node2: rank 5 ended with SIGKILL\n"
    )


def test_csv_has_one_line_per_cell_and_empty_fields_where_there_is_no_number(
    summary: Summary,
) -> None:
    lines = list(csv.DictReader(io.StringIO(delimited.render(summary))))
    assert [(line["nodes"], line["gpus"], line["median"]) for line in lines] == [
        ("1", "1", "354.02"),
        ("1", "8", "2277.07"),
        ("4", "8", ""),
    ]
    assert (lines[1]["speedup"], lines[1]["efficiency"], lines[2]["failed"]) == (
        "6.34",
        "0.7920",
        "1",
    )
    assert (lines[1]["speedup_interval"], lines[1]["efficiency_interval"]) == (
        "5.74 to 6.99",
        "0.7179 to 0.8737",
    )
    assert lines[0]["interval"] == "353.01 to 355.05" and lines[2]["interval"] == ""


def test_json_has_every_digit_and_every_field(summary: Summary) -> None:
    document = json.loads(jsonout.render(summary))
    assert document["schema"] == 8 and {row["unit"] for row in document["rows"]} == {"samples/s"}
    assert [set(row) for row in document["rows"]] == [
        {field.name for field in fields(Row)} | {"qualification_codes"}
    ] * 3
    assert document["rows"][1]["speedup"] == pytest.approx(
        (2277.07 * 2311.41 * 2144.24 / 353.62 / 354.44 / 354.02) ** (1 / 3)
    )
    assert [run["value"] for run in document["rows"][1]["repeats"]] == [2277.07, 2311.41, 2144.24]
    assert document["rows"][2]["median"] is None and document["rows"][2]["interval"] is None
    assert document["rows"][1]["speedup_interval"].keys() == {"low", "high", "level"}
    assert document["baselines"]["pytorch resnet50 fp16 b128 synthetic"]["run_ids"] == [
        "1n1g-1",
        "1n1g-2",
        "1n1g-3",
    ]
    assert jsonout.render(summary) == jsonout.render(summary)


def test_json_has_the_code_of_each_note(summary: Summary) -> None:
    notes = (NO_BASELINE(series="a", shape="1n1g", how="b"), "of an earlier record")
    rows = tuple(replace(row, qualifications=notes) for row in summary.rows)
    document = json.loads(jsonout.render(replace(summary, notes=notes, rows=rows)))
    codes = [
        {"code": "no_baseline", "severity": "refusal"},
        {"code": "other", "severity": "remark"},
    ]
    assert (document["notes"], document["note_codes"]) == (list(notes), codes)
    assert [(row["qualifications"], row["qualification_codes"]) for row in document["rows"]] == [
        (list(notes), codes)
    ] * 3


def test_junit_has_a_case_per_cell_that_fails_where_a_run_failed(summary: Summary) -> None:
    (suite,) = JUnitXml.fromstring(junit.render(summary).encode())
    assert (suite.name, suite.tests, suite.failures) == (
        "pytorch resnet50 fp16 b128 synthetic",
        3,
        1,
    )
    cases = {case.name: case for case in suite}
    assert list(cases) == ["1n1g", "1n8g", "4n8g"]
    assert [case.is_passed for case in cases.values()] == [True, True, False]
    (failure,) = cases["4n8g"].result
    assert failure.message == "1 of 1 runs have no number: 1 failed"
    assert failure.text == "4n8g-1 failed: node2: rank 5 ended with SIGKILL"
    said = str(cases["1n8g"].system_out).splitlines()
    assert {"median_speed: 2277.07", "speedup: 6.34", "speedup 95%: 5.74 to 6.99"} < set(said)
    assert said[-1] == "repeats spread over 7.3% of the median"


def test_prometheus_reads_every_number_and_no_missing_one(summary: Summary) -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(prometheus.render(summary))
    }
    assert {family.type for family in families.values()} == {"gauge"} and all(
        one.documentation for one in families.values()
    )
    speeds = {
        sample.labels["case"]: sample.value
        for sample in families["orch_speed_samples_per_second"].samples
    }
    assert speeds == pytest.approx({"1n1g": 354.0265, "1n8g": 2243.0683}, rel=1e-6)
    (low,) = families["orch_speedup_low_ratio"].samples
    assert low.value == summary.rows[1].speedup_interval.low  # type: ignore[union-attr]
    assert [sample.value for sample in families["orch_failed_repeats"].samples] == [0, 0, 1]
    assert families["orch_speedup_ratio"].samples[1].labels == {
        "series": "pytorch resnet50 fp16 b128 synthetic", "case": "1n8g", "framework": "pytorch", "model": "resnet50",
        "dtype": "fp16", "nodes": "1", "gpus": "8", "simulated": "false",
    }  # fmt: skip


def test_cells_that_differ_in_any_way_are_different_samples() -> None:
    both = [
        *runs("1n1g", [1.0] * 3),
        *runs("1n1g", [2.0] * 3, spec={"steps": 60}),
        *runs("1n1g", [3.0] * 3, simulated=True),
    ]
    both = [replace(run, run_id=f"{place}") for place, run in enumerate(both)]
    for family in text_string_to_metric_families(prometheus.render(summarize(both))):
        labels = [tuple(sample.labels.items()) for sample in family.samples]
        assert len(set(labels)) == len(labels)


def both_kinds() -> Summary:
    """A training, and a program with a metric by size and one without keys."""
    declared = (Metric("busbw", "GB/s", keys=("size_bytes",)), Metric("latency", "us", "lower"))
    values = {"busbw": {1024: 5.0, 4096: 20.0}, "latency": 8.0}
    return summarize(
        [*runs("1n1g", [354.0] * 3), *measured("1n2g", declared, values, values, values)]
    )


def test_prometheus_has_each_gauge_once_and_other_metrics_by_name_unit_and_key() -> None:
    rendered = prometheus.render(both_kinds())
    helps = re.findall(r"^# HELP (\S+)", rendered, re.MULTILINE)
    assert len(set(helps)) == len(helps)
    families = {family.name: family for family in text_string_to_metric_families(rendered)}
    found = {
        (one.labels["metric"], one.labels["unit"], one.labels.get("key_size_bytes", "")): one.value
        for one in families["orch_metric_value"].samples
    }
    assert found == {
        ("busbw", "GB/s", "1024"): pytest.approx(5.0), ("busbw", "GB/s", "4096"): pytest.approx(20.0),
        ("latency", "us", ""): pytest.approx(8.0),
    }  # fmt: skip
    assert [one.value for one in families["orch_speed_samples_per_second"].samples] == [
        pytest.approx(354.0)
    ]
    assert (
        len(families["orch_good_repeats"].samples) == 4
        and len(families["orch_metric_low"].samples) == 3
    )
    labels = [tuple(one.labels.items()) for one in families["orch_good_repeats"].samples]
    assert len(set(labels)) == len(labels)


def test_csv_and_junit_have_other_metrics_with_their_units_and_keys() -> None:
    lines = list(csv.DictReader(io.StringIO(delimited.render(both_kinds()))))
    shown_lines = [
        (line["metric"], line["unit"], line["better"], line["key.size_bytes"], line["value"])
        for line in lines
    ]
    assert sorted(shown_lines) == [
        ("busbw", "GB/s", "higher", "1024", "5.00"), ("busbw", "GB/s", "higher", "4096", "20.00"),
        ("latency", "us", "lower", "", "8.00"), ("samples_per_s", "samples/s", "higher", "", "354.00"),
    ]  # fmt: skip
    suites = {
        suite.name: suite for suite in JUnitXml.fromstring(junit.render(both_kinds()).encode())
    }
    assert len(suites) == 4
    (case,) = suites["probe disk fp16 busbw size_bytes=4096"]
    said = str(case.system_out).splitlines()
    assert {"value: 20.00", "median: 20.00"} <= set(said)
    assert not [line for line in said if line.startswith(("ms/step", "per rank", "speed:"))], (
        "it has no steps"
    )


@pytest.mark.parametrize("render", [markdown.render, delimited.render, jsonout.render])
def test_every_number_shown_is_finite(render: Callable[[Summary], str], summary: Summary) -> None:
    assert not {"nan", "inf", "infinity"} & set(render(summary).lower().replace(",", " ").split())
    assert all(math.isfinite(row.median) for row in summary.rows if row.median is not None)


def test_the_ends_of_intervals_are_numbers_of_their_own_in_csv() -> None:
    lines = list(csv.DictReader(io.StringIO(delimited.render(example()))))
    with_interval = [line for line in lines if line["interval"]]
    assert with_interval
    for line in lines:
        for name in ("interval", "speedup_interval", "efficiency_interval"):
            ends = [line[f"{name}_low"], line[f"{name}_high"]]
            assert line[name] == (" to ".join(ends) if line[name] else "")
            assert all(float(low) <= float(high) for low, high in [ends] if low)

"""What people and programs see of a summary, and that nothing of a node's text acts on either."""

from __future__ import annotations

import csv
import doctest
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from orchestrator.logs.metrics import Metric
from orchestrator.plan.spec import Skipped
from orchestrator.report import terminal
from orchestrator.report import text as text_module
from orchestrator.report.cells import COLUMNS
from orchestrator.report.formats import csv as delimited
from orchestrator.report.formats import json as jsonout
from orchestrator.report.formats import junit, markdown, prometheus
from orchestrator.report.text import lines_of, one_line, visible
from orchestrator.results.planned import Counts, Planned
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Row, Summary, lacking, summarize
from tests.support.summaries import evil, example, measured, runs, with_text


def shown(summary: Summary, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    terminal.render(summary, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


HEAD = """\
pytorch resnet50 fp16 b128 synthetic
baseline 1n1g: 354.03 samples/s, n=3
NVIDIA H200 · torch 2.13.0 · NCCL 2.27.3
"""
FOOT = """
 1 repeats spread over 7.3% of the median
 2 4n8g-1 failed: node2: rank 5 ended with SIGKILL
"""
# A step of 1n8g: 128 x 8 samples over 2277.07 samples/s.
WIDE = [
    "case n average_speed median_speed min max speed speed 95% ms/step per rank speedup speedup 95% efficiency notes",
    "1n1g 3 354.03 354.02 353.62 354.44 354.03 353.01 to 355.05 361.55 354.03 1.00 – 100.0%",
    "1n8g 3 2244.24 2277.07 2144.24 2311.41 2243.07 2032.24 to 2475.76 456.52 280.38 6.34 5.74 to 6.99 79.2% 1",
    "4n8g 0 (1 failed) – – – – – – – – – – – 2",
]
NARROW = [
    "case n speed speed 95% speedup efficiency notes",
    "1n1g 3 354.03 353.01 to 355.05 1.00 100.0%",
    "1n8g 3 2243.07 2032.24 to 2475.76 6.34 79.2% 1",
    "4n8g 0 (1 failed) – – – – 2",
    "hidden at 80 columns: average_speed, median_speed, min, max, ms/step, per rank,",
    "speedup 95%; COLUMNS=155 shows them, or orch summarize --format markdown, csv or",
    "json",
]


@pytest.fixture
def summary() -> Summary:
    return example()


@pytest.mark.parametrize(("width", "expected"), [(156, WIDE), (80, NARROW)])
def test_a_terminal_shows_a_table_with_its_baseline_hardware_and_footnotes(
    summary: Summary, width: int, expected: list[str]
) -> None:
    text = shown(summary, width)
    assert text.startswith(HEAD) and text.endswith(FOOT)
    lines = text.removeprefix(HEAD).removesuffix(FOOT).splitlines()
    assert [" ".join(line.split()) for line in lines] == expected
    assert lines[1].index("353.01") + len("353.01 to 355.05") == lines[0].index("speed 95%") + len("speed 95%")


def test_a_dumb_terminal_which_heeds_no_columns_is_not_told_to_set_them(summary: Summary) -> None:
    environment = {"TERM": "dumb", "COLUMNS": "155"}
    console = Console(file=io.StringIO(), color_system=None, force_terminal=True, _environ=environment)
    terminal.render(summary, console)
    assert isinstance(console.file, io.StringIO)
    words = " ".join(console.file.getvalue().split())
    assert "hidden at 80 columns: average_speed" in words and "COLUMNS" not in words
    assert "speedup 95%; orch summarize --format markdown, csv or json shows them" in words


def test_a_stacked_table_repeats_all_columns_that_tell_its_rows_apart() -> None:
    rows = [(repeat, size, f"{repeat}{size}1.5", f"{repeat}{size}2.5") for repeat in "12" for size in "48"]
    console = Console(file=io.StringIO(), width=20, color_system=None, force_terminal=False)
    console.print(terminal.fitting(("repeat", "size", "out", "in"), rows, (), console, "elsewhere"))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[0] == ["repeat", "size", "out"] and lines[5] == ["repeat", "size", "in"]
    assert lines[6:] == [[repeat, size, f"{repeat}{size}2.5"] for repeat in "12" for size in "48"]


@pytest.mark.parametrize("width", range(46, 160, 6))
def test_no_line_is_wider_than_the_terminal_and_the_speed_always_stays(summary: Summary, width: int) -> None:
    text = shown(summary, width)
    assert all(len(line) <= width for line in text.splitlines()) and "…" not in text
    titles = [line for line in text.splitlines() if line.startswith("case ")]
    there = " ".join(titles)
    assert "speed" in there.split() and "2243.07" in text and "speedup" in there and "SIGKILL" in text
    assert "average_speed" in there or "min" not in there.split()
    assert "median_speed" in there or "average_speed" not in there
    assert "efficiency" in there or "95%" not in there
    assert "speed 95%" in there.replace("speedup 95%", "") or "speedup 95%" not in there
    # A column is in the table, or said to be left out; where all of them are there, nothing is said.
    hidden = " ".join(text.split()).partition("hidden at")[2].partition("COLUMNS=")[0]
    missing = [name for name in COLUMNS if not re.search(rf"(?<!\S){name}(?!\S)", there)]
    assert all(name in hidden for name in missing) and bool(missing) == bool(hidden)


def test_a_table_that_is_too_wide_without_them_as_well_goes_on_below_with_its_first_column_again() -> None:
    wide = list("abcdefgh")
    rows = [("node1", *(f"{place}11111.11" for place in range(8))), ("node2", *(f"{place}22222.22" for place in range(8)))]
    console = Console(file=io.StringIO(), width=30, color_system=None, force_terminal=False)
    console.print(terminal.fitting(("node", *wide), rows, [("h",)], console, "elsewhere"))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert [line.split() for line in text.splitlines()] == [
        ["node", "a", "b"], ["node1", "011111.11", "111111.11"], ["node2", "022222.22", "122222.22"],
        ["node", "c", "d"], ["node1", "211111.11", "311111.11"], ["node2", "222222.22", "322222.22"],
        ["node", "e", "f"], ["node1", "411111.11", "511111.11"], ["node2", "422222.22", "522222.22"],
        ["node", "g"], ["node1", "611111.11"], ["node2", "622222.22"],
        ["hidden", "at", "30", "columns:", "h;"], ["COLUMNS=93", "shows", "them,", "or"], ["elsewhere"],
    ]  # fmt: skip


def test_simulated_is_stamped_on_its_own_table_only() -> None:
    text = shown(summarize([*runs("1n1g", [1.0] * 3), *runs("1n2g", [2.0] * 3, simulated=True)]), 120)
    titles = [line for line in text.splitlines() if line.startswith("pytorch resnet50")]
    assert titles[0] == "pytorch resnet50 fp16 b128 synthetic"
    assert titles[1] == "pytorch resnet50 fp16 b128 synthetic   SIMULATED"


def test_a_missing_baseline_is_said_with_what_gives_one() -> None:
    text = shown(summarize(runs("4n8g", [9.0] * 3)), 200)
    assert "no baseline: no speedup" in text
    assert "orch bench without --no-baseline" in text


def test_cells_that_differ_in_length_only_can_be_told_apart() -> None:
    text = shown(summarize([*runs("1n1g", [1.0] * 3), *runs("1n2g", [1.0] * 3, spec={"steps": 60})]), 120)
    assert "1n1g steps=120" in text and "1n2g steps=60" in text


def sweep() -> Summary:
    """1n1g and 1n2g with three sizes of an option, one of them with another batch size; and one cell of another dtype."""
    cells = [
        run
        for size, speed in ((25, 100.0), (5, 50.0), (100, 80.0))
        for shape, times in (("1n1g", 1.0), ("1n2g", 1.5))
        for run in runs(
            shape,
            [speed * times] * 3,
            spec={"options": {"mb": size, "on": True}, "env": {"NCCL_ALGO": "Ring"} if size == 5 else {}},
        )
    ]
    cells += runs("1n1g", [70.0] * 3, spec={"options": {"mb": 25, "on": True}, "batch_size": 64})
    cells += runs("1n1g", [60.0] * 3, spec={"options": {"mb": 25, "on": True}, "dtype": "fp32"})
    return summarize([replace(run, run_id=str(number)) for number, run in enumerate(cells)])


def test_what_differs_in_a_sweep_is_a_column_and_numbers_are_in_order() -> None:
    text = shown(sweep(), 220)
    table = text[text.index("pytorch resnet50 fp16") :].splitlines()
    assert table[0] == "pytorch resnet50 fp16 synthetic"
    assert table[1] == "baseline 1n1g of the same batch_size, NCCL_ALGO, mb"
    lines = [line.split() for line in table if line.startswith(("case", "1n"))]
    assert lines[0][:5] == ["case", "batch_size", "NCCL_ALGO", "mb", "n"]
    rows = [line for line in table if line.startswith("1n")]
    assert [" ".join(row.split()[:4]) for row in rows[:-1]] == [
        "1n1g 64 25 3", "1n1g 128 25 3", "1n2g 128 25 3", "1n1g 128 100 3", "1n2g 128 100 3", "1n1g 128 Ring 5",
        "1n2g 128 Ring 5",
    ]  # fmt: skip
    assert "pytorch resnet50 fp32 b128 synthetic mb=25\nbaseline 1n1g: 60.00 samples/s, n=3" in text


def test_each_speedup_of_a_sweep_is_that_over_the_baseline_of_the_same_settings() -> None:
    pairs = {(row.options["mb"], row.batch_size, row.dtype, row.shape): row.speedup for row in sweep().rows}
    assert {key: value for key, value in pairs.items() if key[3] == "1n2g"} == {
        (size, 128, "fp16", "1n2g"): pytest.approx(1.5) for size in (5, 25, 100)
    }


def test_a_table_that_is_too_wide_repeats_all_columns_that_tell_its_rows_apart() -> None:
    headers = [line.split() for line in shown(sweep(), 46).splitlines() if line.startswith("case")]
    fp16 = [header for header in headers if "NCCL_ALGO" in header]
    assert len(fp16) > 1 and all(header[:4] == ["case", "batch_size", "NCCL_ALGO", "mb"] for header in fp16)


def test_markdown_csv_and_json_have_what_differs_too() -> None:
    assert "| case | batch\\_size | NCCL\\_ALGO | mb | n |" in markdown.render(sweep())
    lines = list(csv.DictReader(io.StringIO(delimited.render(sweep()))))
    columns = [(line["options.mb"], line["options.NCCL_ALGO"], line["batch_size"], line["dtype"]) for line in lines]
    assert len(set(columns)) == 5 and ("5", "Ring", "128", "fp16") in columns and ("25", "", "64", "fp16") in columns
    assert "options.on" not in lines[0]  # the same everywhere
    small = [*runs("1n1g", [1.0], spec={"options": {"lr": 0.0001}}), *runs("1n2g", [1.0], spec={"options": {"lr": 1e-05}})]
    rates = [line["options.lr"] for line in csv.DictReader(io.StringIO(delimited.render(summarize(small))))]
    assert rates == ["0.0001", "1e-05"]
    rows = json.loads(jsonout.render(sweep()))["rows"]
    assert {row["options"]["mb"] for row in rows} == {5, 25, 100}


def test_an_option_with_the_name_of_a_column_keeps_its_values() -> None:
    summary = summarize(
        [*runs("1n1g", [1.0] * 3, spec={"options": {"n": 7}}), *runs("1n2g", [2.0] * 3, spec={"options": {"n": 8}})]
    )
    header, first, second = (line.split() for line in shown(summary, 200).splitlines() if line.startswith(("case", "1n")))
    assert header[:4] == ["case", "option", "n", "n"] and (first[:3], second[:3]) == (["1n1g", "7", "3"], ["1n2g", "8", "3"])


def test_the_head_names_no_column_that_follows_from_the_shape() -> None:
    def batch(shape: str, size: int, lr: float) -> list[RunResult]:
        spec = {"batch_size": size, "options": {"lr": lr}, "follows": "batch_size"}
        return [replace(result, run_id=f"{result.run_id}-{lr}") for result in runs(shape, [1.0] * 3, spec=spec)]

    cells = [result for lr in (0.1, 0.2) for shape, size in (("1n1g", 16), ("1n2g", 8)) for result in batch(shape, size, lr)]
    assert "\nbaseline 1n1g of the same lr\n" in shown(summarize(cells), 200)


def test_a_bench_without_the_baselines_of_a_sweep_says_so() -> None:
    cells = [*runs("1n1g", [1.0] * 3, spec={"options": {"mb": 1}}), *runs("1n2g", [2.0] * 3, spec={"options": {"mb": 2}})]
    assert "\nbaseline 1n1g of the same mb; without one, no speedup\n" in shown(summarize(cells), 200)


def test_skipped_configurations_are_shown_by_every_output() -> None:
    choices = {"nodes": 9, "gpus": 8, "dtype": "fp16", "env.NCCL_ALGO": None}
    skipped = (Skipped("pytorch", "resnet50", choices, "--nodes: expected 9 hosts"), Skipped("pytorch", "vgg16", choices, "no"))
    planned = Planned((), Counts(0, 0, 0, 0, 0, 0), "", "a label", skipped)
    summary = lacking(example(), planned)
    words = "skipped, because impossible: pytorch resnet50 9n8g dtype=fp16 NCCL_ALGO=(not set): --nodes: expected 9 hosts"
    assert words in " ".join(shown(summary, 200).split()) and shown(summary, 200).startswith("a label\n")
    assert summary.notes[:2] == (words, "skipped, because impossible: pytorch vgg16 9n8g dtype=fp16 NCCL_ALGO=(not set): no")
    document = json.loads(jsonout.render(summary))
    assert document["skipped"][0] == {
        "framework": "pytorch", "model": "resnet50", "choices": choices, "reason": "--nodes: expected 9 hosts",
    }  # fmt: skip
    suite = next(suite for suite in JUnitXml.fromstring(junit.render(summary).encode()) if suite.name == "impossible")
    assert [case.is_skipped for case in suite] == [True, True] and suite.skipped == 2


def test_hardware_that_differs_between_cells_is_said_for_each() -> None:
    text = shown(summarize([*runs("1n1g", [1.0] * 3), *runs("1n2g", [1.0] * 3, observed={"devices": ["V100"]})]), 120)
    assert "1n1g: NVIDIA H200 · torch 2.13.0 · NCCL 2.27.3\n1n2g: V100\n" in text


def test_nothing_to_show_is_said() -> None:
    assert shown(Summary((), {}, ()), 80).strip() == "no runs"
    assert markdown.render(Summary((), {}, ())) == "no runs\n"


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


def test_a_slow_program_has_its_digits_in_every_table() -> None:
    slow = summarize([*runs("1n1g", [0.0119, 0.0121, 0.0120]), *runs("1n2g", [0.0117, 0.0116, 0.0118])])
    assert "baseline 1n1g: 0.0120 samples/s, n=3" in shown(slow, 156)
    for text in (shown(slow, 156), markdown.render(slow), delimited.render(slow)):
        assert "0.0119" in text and "0.0116" in text and "0.01 to 0.01" not in text
        assert "0.0118 to 0.0123" in text and "0.975" in text


def test_csv_has_one_line_per_cell_and_empty_fields_where_there_is_no_number(summary: Summary) -> None:
    lines = list(csv.DictReader(io.StringIO(delimited.render(summary))))
    assert [(line["nodes"], line["gpus"], line["median"]) for line in lines] == [
        ("1", "1", "354.02"),
        ("1", "8", "2277.07"),
        ("4", "8", ""),
    ]
    assert (lines[1]["speedup"], lines[1]["efficiency"], lines[2]["failed"]) == ("6.34", "0.7920", "1")
    assert (lines[1]["speedup_interval"], lines[1]["efficiency_interval"]) == ("5.74 to 6.99", "0.7179 to 0.8737")
    assert lines[0]["interval"] == "353.01 to 355.05" and lines[2]["interval"] == ""


def test_json_has_every_digit_and_every_field(summary: Summary) -> None:
    document = json.loads(jsonout.render(summary))
    assert document["schema"] == 7 and {row["unit"] for row in document["rows"]} == {"samples/s"}
    assert [set(row) for row in document["rows"]] == [{field.name for field in fields(Row)}] * 3
    assert document["rows"][1]["speedup"] == pytest.approx((2277.07 * 2311.41 * 2144.24 / 353.62 / 354.44 / 354.02) ** (1 / 3))
    assert [run["value"] for run in document["rows"][1]["repeats"]] == [2277.07, 2311.41, 2144.24]
    assert document["rows"][2]["median"] is None and document["rows"][2]["interval"] is None
    assert document["rows"][1]["speedup_interval"].keys() == {"low", "high", "level"}
    assert document["baselines"]["pytorch resnet50 fp16 b128 synthetic"]["run_ids"] == ["1n1g-1", "1n1g-2", "1n1g-3"]
    assert jsonout.render(summary) == jsonout.render(summary)


def test_junit_has_a_case_per_cell_that_fails_where_a_run_failed(summary: Summary) -> None:
    (suite,) = JUnitXml.fromstring(junit.render(summary).encode())
    assert (suite.name, suite.tests, suite.failures) == ("pytorch resnet50 fp16 b128 synthetic", 3, 1)
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
    families = {family.name: family for family in text_string_to_metric_families(prometheus.render(summary))}
    assert {family.type for family in families.values()} == {"gauge"} and all(one.documentation for one in families.values())
    speeds = {sample.labels["case"]: sample.value for sample in families["orch_speed_samples_per_second"].samples}
    assert speeds == pytest.approx({"1n1g": 354.0265, "1n8g": 2243.0683}, rel=1e-6)
    (low,) = families["orch_speedup_low_ratio"].samples
    assert low.value == summary.rows[1].speedup_interval.low  # type: ignore[union-attr]
    assert [sample.value for sample in families["orch_failed_repeats"].samples] == [0, 0, 1]
    assert families["orch_speedup_ratio"].samples[1].labels == {
        "series": "pytorch resnet50 fp16 b128 synthetic", "case": "1n8g", "framework": "pytorch", "model": "resnet50",
        "dtype": "fp16", "nodes": "1", "gpus": "8", "simulated": "false",
    }  # fmt: skip


def test_cells_that_differ_in_any_way_are_different_samples() -> None:
    both = [*runs("1n1g", [1.0] * 3), *runs("1n1g", [2.0] * 3, spec={"steps": 60}), *runs("1n1g", [3.0] * 3, simulated=True)]
    both = [replace(run, run_id=f"{place}") for place, run in enumerate(both)]
    for family in text_string_to_metric_families(prometheus.render(summarize(both))):
        labels = [tuple(sample.labels.items()) for sample in family.samples]
        assert len(set(labels)) == len(labels)


def both_kinds() -> Summary:
    """A training, and a program with a metric by size and one without keys."""
    declared = (Metric("busbw", "GB/s", keys=("size_bytes",)), Metric("latency", "us", "lower"))
    values = {"busbw": {1024: 5.0, 4096: 20.0}, "latency": 8.0}
    return summarize([*runs("1n1g", [354.0] * 3), *measured("1n2g", declared, values, values, values)])


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
    assert [one.value for one in families["orch_speed_samples_per_second"].samples] == [pytest.approx(354.0)]
    assert len(families["orch_good_repeats"].samples) == 4 and len(families["orch_metric_low"].samples) == 3
    labels = [tuple(one.labels.items()) for one in families["orch_good_repeats"].samples]
    assert len(set(labels)) == len(labels)


def test_csv_and_junit_have_other_metrics_with_their_units_and_keys() -> None:
    lines = list(csv.DictReader(io.StringIO(delimited.render(both_kinds()))))
    shown_lines = [(line["metric"], line["unit"], line["better"], line["key.size_bytes"], line["value"]) for line in lines]
    assert sorted(shown_lines) == [
        ("busbw", "GB/s", "higher", "1024", "5.00"), ("busbw", "GB/s", "higher", "4096", "20.00"),
        ("latency", "us", "lower", "", "8.00"), ("samples_per_s", "samples/s", "higher", "", "354.00"),
    ]  # fmt: skip
    suites = {suite.name: suite for suite in JUnitXml.fromstring(junit.render(both_kinds()).encode())}
    assert len(suites) == 4
    (case,) = suites["probe disk fp16 busbw size_bytes=4096"]
    said = str(case.system_out).splitlines()
    assert {"value: 20.00", "median: 20.00"} <= set(said)
    assert not [line for line in said if line.startswith(("ms/step", "per rank", "speed:"))], "it has no steps"


# ------------------------------------------------------------------ hostile text

STEERING = "".join(
    map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F)])
) + "".join(map(chr, [*range(0x2066, 0x206A), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF]))


@evil
def test_a_terminal_gets_no_control_character_and_reads_no_markup(text: str) -> None:
    printed = shown(with_text(text), 100)
    assert not set(printed) & (set(STEERING) - {"\n"})
    printed.encode("utf-8")
    if text.startswith("[bold"):
        assert "[bold red]markup[/]" in printed.replace("\n   ", "")


def test_the_only_escapes_sent_to_a_terminal_are_our_own() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor")
    terminal.render(with_text("\x1b[31mred\x1b]52;c;AAAA\x07"), console)
    assert isinstance(console.file, io.StringIO)
    sent = console.file.getvalue()
    assert "\x1b[31m" not in sent and "\x1b]" not in sent and "\x07" not in sent
    assert "\\x1b[31mred\\x1b]52;c;AAAA\\x07" in sent


@evil
def test_markdown_keeps_its_shape_and_holds_nothing_live(text: str) -> None:
    rendered = markdown.render(with_text(text))
    assert not set(rendered) & (set(STEERING) - {"\n"})
    assert "<" not in rendered and "://" not in rendered and "www." not in rendered and "@" not in rendered
    for line in rendered.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 16
    unescaped = re.sub(r"\\.", "", rendered)
    assert not [mark for mark in ("](", "`", "**", "~~", "$") if mark in unescaped]


@evil
def test_junit_and_prometheus_stay_what_they_are(text: str) -> None:
    rendered = junit.render(with_text(text)), prometheus.render(with_text(text))
    assert not any(set(one) & (set(STEERING) - {"\n"}) for one in rendered)
    cases = [case for suite in JUnitXml.fromstring(rendered[0].encode()) for case in suite]
    assert sorted(case.is_passed for case in cases) == [False, True]
    found = {family.name: family for family in text_string_to_metric_families(rendered[1])}
    assert sorted(sample.value for sample in found["orch_good_repeats"].samples) == [0, 2]


@evil
def test_csv_cells_never_begin_a_formula(text: str) -> None:
    rendered = delimited.render(with_text(text))
    assert not set(rendered) & (set(STEERING) - {"\n"})
    lines = list(csv.reader(io.StringIO(rendered)))
    assert {len(line) for line in lines} == {51}
    for cell in (cell for line in lines for cell in line):
        assert cell in ("+1", "-1") or not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))


def test_a_formula_that_leads_its_field_is_made_text() -> None:
    first = runs("1n1g", [1.0] * 3, qualifications=('=HYPERLINK("x")',))
    assert next(csv.DictReader(io.StringIO(delimited.render(summarize(first)))))["qualifications"] == '\'=HYPERLINK("x")'


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("-1", "-1"),
        ("+2.5e-3", "+2.5e-3"),
        ("-.5", "-.5"),
        ("-1+cmd()", "'-1+cmd()"),
        ("-", "'-"),
        ("=1", "'=1"),
        (" -1", "' -1"),
    ],
)
def test_a_number_is_data_and_anything_else_that_leads_a_formula_is_text(text: str, written: str) -> None:
    first = runs("1n1g", [1.0] * 3, qualifications=(text,))
    assert next(csv.DictReader(io.StringIO(delimited.render(summarize(first)))))["qualifications"] == written


@evil
def test_json_is_ascii_and_gives_the_text_back(text: str) -> None:
    rendered = jsonout.render(with_text(text))
    assert rendered.isascii() and not set(rendered) & (set(STEERING) - {"\n"})
    assert any(text in row["qualifications"] for row in json.loads(rendered)["rows"])


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from(STEERING))))
def test_visible_text_steers_nothing_and_keeps_the_rest(text: str) -> None:
    assert not set(visible(text)) & set(STEERING)
    assert not set(one_line(text)) & set(STEERING + "\n\t")
    plain = "".join(character for character in text if character not in STEERING)
    assert visible(plain) == plain


@given(st.lists(st.sampled_from(["é", "token=s3cret", "\u202e", " ", "\n", "\r\n", "\r"]), max_size=12), st.data())
def test_a_log_in_pieces_has_the_lines_of_the_log_in_one(parts: list[str], data: st.DataObject) -> None:
    log = "".join(parts).encode()
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=5))), len(log)]
    pieces = [log[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert list(lines_of(pieces)) == [line.decode() for line in log.splitlines()]


def test_of_bytes_that_are_no_text_each_is_seen_and_a_line_without_end_comes_in_parts() -> None:
    assert list(lines_of([b"ok\xff", b"\xe6\x97"])) == ["ok\\xff\\xe6\\x97"]
    assert [len(line) for line in lines_of([b"x" * 700_000] * 4)] == [1_400_000, 1_400_000]


@pytest.mark.parametrize("render", [markdown.render, delimited.render, jsonout.render])
def test_every_number_shown_is_finite(render: Callable[[Summary], str], summary: Summary) -> None:
    assert not {"nan", "inf", "infinity"} & set(render(summary).lower().replace(",", " ").split())
    assert all(math.isfinite(row.median) for row in summary.rows if row.median is not None)


def test_the_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(text_module)
    assert results.attempted and not results.failed


def test_the_ends_of_intervals_are_numbers_of_their_own_in_csv() -> None:
    lines = list(csv.DictReader(io.StringIO(delimited.render(example()))))
    with_interval = [line for line in lines if line["interval"]]
    assert with_interval
    for line in lines:
        for name in ("interval", "speedup_interval", "efficiency_interval"):
            ends = [line[f"{name}_low"], line[f"{name}_high"]]
            assert line[name] == (" to ".join(ends) if line[name] else "")
            assert all(float(low) <= float(high) for low, high in [ends] if low)

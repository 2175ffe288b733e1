"""What differs between the cells of a sweep, in every output."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from orchestrator.report.formats import csv as delimited
from orchestrator.report.formats import dlperf, markdown
from orchestrator.report.formats import json as jsonout
from orchestrator.report.html import metric_charts
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Summary, summarize
from tests.report.printed import shown
from tests.support.summaries import runs


def test_cells_that_differ_in_length_only_can_be_told_apart() -> None:
    text = shown(
        summarize([*runs("1n1g", [1.0] * 3), *runs("1n2g", [1.0] * 3, spec={"steps": 60})]), 120
    )
    assert "1n1g steps=120" in text and "1n2g steps=60" in text


def test_a_choice_that_all_rows_share_is_an_option_of_each_and_in_no_name() -> None:
    spec = {"cpu_binding": "numa"}
    of_two_lengths = [
        *runs("1n1g", [1.0], spec=spec),
        *runs("1n1g", [2.0], spec=spec | {"steps": 60}, run_id="2"),
    ]
    summary = summarize(of_two_lengths)
    assert [row.options for row in summary.rows] == [
        {"cpu_binding": "numa", "steps": 60},
        {"cpu_binding": "numa", "steps": 120},
    ]
    series = "pytorch resnet50 fp16 b128 synthetic"
    assert {row.series for row in summary.rows} == {series}
    assert [group.title for group in summary.groups()] == [series]
    assert list(dlperf.result_document(summary)["resnet50"]) == ["1n1g steps=60", "1n1g steps=120"]
    assert [name for _, name in metric_charts.legend(summary.rows, "")] == [
        "1n1g steps=60 steps=60", "1n1g steps=120 steps=120",
    ]  # fmt: skip


def sweep() -> Summary:
    """1n1g and 1n2g with three sizes of an option, one of them with another batch size; and one
    cell of another dtype.
    """
    cells = [
        run
        for size, speed in ((25, 100.0), (5, 50.0), (100, 80.0))
        for shape, times in (("1n1g", 1.0), ("1n2g", 1.5))
        for run in runs(
            shape,
            [speed * times] * 3,
            spec={
                "options": {"mb": size, "on": True},
                "env": {"NCCL_ALGO": "Ring"} if size == 5 else {},
            },
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
    assert "\n| :--- | ---: | :--- | ---: | ---: |" in markdown.render(sweep())
    assert [" ".join(row.split()[:4]) for row in rows[:-1]] == [
        "1n1g 64 25 3", "1n1g 128 25 3", "1n2g 128 25 3", "1n1g 128 100 3", "1n2g 128 100 3", "1n1g 128 Ring 5",
        "1n2g 128 Ring 5",
    ]  # fmt: skip
    assert "pytorch resnet50 fp32 b128 synthetic mb=25\nbaseline 1n1g: 60.00 samples/s, n=3" in text


def test_each_speedup_of_a_sweep_is_that_over_the_baseline_of_the_same_settings() -> None:
    pairs = {
        (row.options["mb"], row.batch_size, row.dtype, row.shape): row.speedup
        for row in sweep().rows
    }
    assert {key: value for key, value in pairs.items() if key[3] == "1n2g"} == {
        (size, 128, "fp16", "1n2g"): pytest.approx(1.5) for size in (5, 25, 100)
    }


def test_a_table_that_is_too_wide_repeats_all_columns_that_tell_its_rows_apart() -> None:
    headers = [line.split() for line in shown(sweep(), 46).splitlines() if line.startswith("case")]
    fp16 = [header for header in headers if "NCCL_ALGO" in header]
    assert len(fp16) > 1 and all(
        header[:4] == ["case", "batch_size", "NCCL_ALGO", "mb"] for header in fp16
    )


def test_markdown_csv_and_json_have_what_differs_too() -> None:
    assert "| case | batch\\_size | NCCL\\_ALGO | mb | n |" in markdown.render(sweep())
    lines = list(csv.DictReader(io.StringIO(delimited.render(sweep()))))
    columns = [
        (line["options.mb"], line["options.NCCL_ALGO"], line["batch_size"], line["dtype"])
        for line in lines
    ]
    assert (
        len(set(columns)) == 5
        and ("5", "Ring", "128", "fp16") in columns
        and ("25", "", "64", "fp16") in columns
    )
    assert "options.on" not in lines[0]  # the same everywhere
    small = [
        *runs("1n1g", [1.0], spec={"options": {"lr": 0.0001}}),
        *runs("1n2g", [1.0], spec={"options": {"lr": 1e-05}}),
    ]
    rates = [
        line["options.lr"]
        for line in csv.DictReader(io.StringIO(delimited.render(summarize(small))))
    ]
    assert rates == ["0.0001", "1e-05"]
    rows = json.loads(jsonout.render(sweep()))["rows"]
    assert {row["options"]["mb"] for row in rows} == {5, 25, 100}


def test_an_option_with_the_name_of_a_column_keeps_its_values() -> None:
    summary = summarize(
        [
            *runs("1n1g", [1.0] * 3, spec={"options": {"n": 7}}),
            *runs("1n2g", [2.0] * 3, spec={"options": {"n": 8}}),
        ]
    )
    header, first, second = (
        line.split() for line in shown(summary, 200).splitlines() if line.startswith(("case", "1n"))
    )
    assert header[:4] == ["case", "option", "n", "n"] and (first[:3], second[:3]) == (
        ["1n1g", "7", "3"],
        ["1n2g", "8", "3"],
    )


def test_the_head_names_no_column_that_follows_from_the_shape() -> None:
    def batch(shape: str, size: int, lr: float) -> list[RunResult]:
        spec = {"batch_size": size, "options": {"lr": lr}, "follows": "batch_size"}
        return [
            replace(result, run_id=f"{result.run_id}-{lr}")
            for result in runs(shape, [1.0] * 3, spec=spec)
        ]

    cells = [
        result
        for lr in (0.1, 0.2)
        for shape, size in (("1n1g", 16), ("1n2g", 8))
        for result in batch(shape, size, lr)
    ]
    assert "\nbaseline 1n1g of the same lr\n" in shown(summarize(cells), 200)


def test_a_bench_without_the_baselines_of_a_sweep_says_so() -> None:
    cells = [
        *runs("1n1g", [1.0] * 3, spec={"options": {"mb": 1}}),
        *runs("1n2g", [2.0] * 3, spec={"options": {"mb": 2}}),
    ]
    assert "\nbaseline 1n1g of the same mb; without one, no speedup\n" in shown(
        summarize(cells), 200
    )

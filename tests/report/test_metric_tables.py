"""The tables of metrics other than samples/s: what stands in a line, and that no number is lost
where there is little room.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.errors import RunError
from orchestrator.logs.metrics import Metric
from orchestrator.report import terminal
from orchestrator.report.formats import csv as delimited
from orchestrator.report.formats import junit, markdown, prometheus
from orchestrator.report.metric_tables import MetricTable
from orchestrator.report.tables import of_metrics
from orchestrator.results.summary import Summary, summarize
from tests.report.printed import shown
from tests.support.summaries import SEEN, evil, measured

IOPS = Metric("read_iops", "IOPS", speedup=True)
LATENCY = Metric("latency", "us", "lower", speedup=True)
FAULTS = Metric("faults", "1", "lower")
KEYS = ("size_bytes", "op")
BUSBW, TIME = Metric("busbw", "GB/s", keys=KEYS), Metric("time", "us", "lower", keys=KEYS)
BAD = RunError("rank 5 ended with SIGKILL", kind="rank_failed", host="node2")
SLOW, FAST, LONE = (1024, "read"), (4096, "read"), (1024, "write")


def one_table(summary: Summary) -> MetricTable:
    (found,) = of_metrics(summary)
    return found


def listed() -> Summary:
    """Three metrics without keys of 1n1g and 1n2g; only 1n1g has the third."""
    one = [{"read_iops": 100.0, "latency": 8.0, "faults": number} for number in (0.0, 0.0, 3.0)]
    two = [{"read_iops": 180.0, "latency": 4.0}] * 3
    metrics = (IOPS, LATENCY, FAULTS)
    return summarize([*measured("1n1g", metrics, *one), *measured("1n2g", metrics, *two)])


def times(factor: float) -> Mapping[str, Any]:
    """The values of a run; of the writes it has no time."""
    return {
        "busbw": {SLOW: factor, FAST: 3 * factor, LONE: factor / 2},
        "time": {SLOW: 10 / factor, FAST: 13 / factor},
    }


def keyed() -> Summary:
    """Two metrics with two keys of 1n2g and 2n2g; a repeat of 2n2g failed."""
    metrics = (BUSBW, TIME)
    bad = [
        replace(run, run_id="bad")
        for run in measured("2n2g", metrics, {}, state="failed", error=BAD)
    ]
    good = measured("2n2g", metrics, times(20.0), times(20.0))
    return summarize([*measured("1n2g", metrics, *[times(10.0)] * 3), *good, *bad])


def test_metrics_without_keys_have_a_line_each_in_the_order_of_their_declaration() -> None:
    found = one_table(listed()).table
    assert (found.title, found.head) == (
        "probe disk fp16",
        ("NVIDIA H200 · torch 2.13.0 · NCCL 2.27.3",),
    )
    assert found.columns == (
        "case", "metric", "unit", "n", "value", "95%", "median", "min", "max", "speedup", "speedup 95%", "efficiency", "notes",
    )  # fmt: skip
    assert [row[:5] for row in found.rows] == [
        ("1n1g", "read_iops", "IOPS", "3", "100.00"), ("1n2g", "read_iops", "IOPS", "3", "180.00"),
        ("1n1g", "latency", "us", "3", "8.00"), ("1n2g", "latency", "us", "3", "4.00"),
        ("1n1g", "faults", "1", "3", "1.00"),
    ]  # fmt: skip


def test_a_metric_of_which_less_is_better_has_a_speedup_above_one_where_it_is_less() -> None:
    rows = {(row[0], row[1]): row[-4:-1] for row in one_table(listed()).table.rows}
    assert rows["1n2g", "read_iops"] == ("1.80", "1.80 to 1.80", "90.0%")
    assert rows["1n2g", "latency"] == ("2.00", "2.00 to 2.00", "100.0%")
    assert rows["1n1g", "latency"] == ("1.00", "–", "100.0%") and rows["1n1g", "faults"] == (
        "–",
        "–",
        "–",
    )


def test_values_that_are_not_above_zero_have_their_mean_and_its_interval() -> None:
    (row,) = (row for row in one_table(listed()).table.rows if row[1] == "faults")
    # The mean of 0, 0 and 3 is 1, its standard error 1, and Student's t of two degrees of freedom
    # 4.303.
    assert row[4:9] == ("1.00", "-3.30 to 5.30", "0.00", "0.00", "3.00")


def test_a_metric_with_keys_has_its_speedup_beside_its_value() -> None:
    time = replace(TIME, keys=("op",), speedup=True)
    rate = replace(BUSBW, keys=("op",))
    one = [
        {"time": {("read",): 8.0, ("write",): 6.0}, "busbw": {("read",): 1.0, ("write",): 1.0}}
    ] * 3
    two = [
        {"time": {("read",): 4.0, ("write",): 5.0}, "busbw": {("read",): 2.0, ("write",): 2.0}}
    ] * 3
    summary = summarize(
        [*measured("1n1g", (time, rate), *one), *measured("1n2g", (time, rate), *two)]
    )
    table = one_table(summary).table
    ratios = ("time speedup", "time speedup 95%", "time efficiency")
    assert table.columns[2:] == (
        "time us",
        "time 95%",
        *ratios,
        "busbw GB/s",
        "busbw 95%",
        "n",
        "notes",
    )
    assert [(*row[:2], *row[4:7]) for row in table.rows] == [
        ("1n1g", "read", "1.00", "–", "100.0%"), ("1n1g", "write", "1.00", "–", "100.0%"),
        ("1n2g", "read", "2.00", "2.00 to 2.00", "100.0%"), ("1n2g", "write", "1.20", "1.20 to 1.20", "60.0%"),
    ]  # fmt: skip
    narrow = shown(summary, 80)
    assert (
        "time speedup" in narrow and "time efficiency" in narrow.split("hidden at 80 columns: ")[1]
    )


def test_without_a_speedup_there_is_no_column_for_it() -> None:
    columns = one_table(summarize(measured("1n2g", (FAULTS,), {"faults": 1.0}))).table.columns
    assert columns == (
        "case",
        "metric",
        "unit",
        "n",
        "value",
        "95%",
        "median",
        "min",
        "max",
        "notes",
    )


def test_metrics_with_keys_have_a_line_for_each_configuration_and_key_and_a_dash_where_one_is_missing() -> (
    None
):
    found = one_table(keyed())
    assert found.table.columns == (
        "case", "size_bytes", "op", "busbw GB/s", "busbw 95%", "time us", "time 95%", "n", "notes",
    )  # fmt: skip
    even = "10.00 to 10.00"
    assert [row[:8] for row in found.table.rows[:3]] == [
        ("1n2g", "1024", "read", "10.00", even, "1.00", "1.00 to 1.00", "3"),
        ("1n2g", "1024", "write", "5.00", "5.00 to 5.00", "–", "–", "3"),
        ("1n2g", "4096", "read", "30.00", "30.00 to 30.00", "1.30", "1.30 to 1.30", "3"),
    ]
    assert [row[:4] for row in found.table.rows[3:]] == [
        ("2n2g", "1024", "read", "20.00"), ("2n2g", "1024", "write", "10.00"), ("2n2g", "4096", "read", "60.00"),
    ]  # fmt: skip
    assert found.over == "size_bytes"


@pytest.mark.parametrize(
    ("better", "best"),
    [("higher", "60.00 GB/s at size_bytes=4096"), ("lower", "10.00 GB/s at size_bytes=1024")],
)
def test_above_the_table_stands_the_best_value_of_the_primary_metric_of_each_configuration(
    better: str, best: str
) -> None:
    metrics = (replace(BUSBW, better=better), TIME)
    head = one_table(summarize(measured("2n2g", metrics, times(20.0)))).table.head
    assert head == (
        f"best busbw 2n2g: {best} op={'read' if better == 'higher' else 'write'}",
        "NVIDIA H200 · torch 2.13.0 · NCCL 2.27.3",
    )
    both = one_table(keyed()).table.head
    assert [line.split(":")[0] for line in both[:2]] == ["best busbw 1n2g", "best busbw 2n2g"]


def test_a_note_stands_once_below_the_table_and_every_line_has_its_number() -> None:
    found = one_table(keyed()).table
    assert found.footnotes == (
        "2 good repeats: interval unreliable below n=3", "2 repeats where other cells have 3",
        "bad failed: node2: rank 5 ended with SIGKILL",
    )  # fmt: skip
    assert [row[-2:] for row in found.rows] == [("3", "")] * 3 + [("2 (1 failed)", "1 2 3")] * 3


def test_a_configuration_without_any_number_is_a_line_with_its_cause() -> None:
    found = one_table(
        summarize(measured("2n2g", (BUSBW, TIME), {}, state="failed", error=BAD))
    ).table
    assert found.rows == (("2n2g", "busbw", "GB/s", "0 (1 failed)", "–", "–", "–", "–", "–", "1"),)
    assert found.footnotes == ("2n2g-1 failed: node2: rank 5 ended with SIGKILL",)


def test_settings_that_differ_are_columns_and_tell_lines_apart() -> None:
    cells = [
        run
        for depth in (8, 16)
        for run in measured(
            "1n2g", (BUSBW,), {"busbw": {SLOW: float(depth)}}, spec={"options": {"depth": depth}}
        )
    ]
    found = one_table(
        summarize([replace(run, run_id=f"r{place}") for place, run in enumerate(cells)])
    ).table
    assert found.columns[:4] == ("case", "depth", "size_bytes", "op") and found.keys == 4
    assert [row[:5] for row in found.rows] == [
        ("1n2g", "8", "1024", "read", "8.00"),
        ("1n2g", "16", "1024", "read", "16.00"),
    ]
    assert [line.split(":")[0] for line in found.head[:2]] == [
        "best busbw 1n2g depth=8",
        "best busbw 1n2g depth=16",
    ]


def test_a_setting_or_a_key_with_the_name_of_a_column_keeps_its_values() -> None:
    odd = Metric("rate", "1/s", keys=("n", "case", "depth"))
    cells = [
        run
        for depth in (8, 16)
        for run in measured(
            "1n2g",
            (odd,),
            {"rate": {(7, "b", 3): 5.0}},
            spec={"options": {"depth": depth, "notes": depth}},
        )
    ]
    summary = summarize([replace(run, run_id=f"r{place}") for place, run in enumerate(cells)])
    columns = one_table(summary).table.columns
    assert len(set(columns)) == len(columns)
    assert columns[:6] == ("case", "depth", "option notes", "key n", "key case", "key depth")
    (line, _) = (
        line.split() for line in shown(summary, 200).splitlines() if line.startswith("1n2g")
    )
    assert line == ["1n2g", "8", "8", "7", "b", "3", "5.00", "–", "1", "1"]


@pytest.mark.parametrize("width", range(46, 150, 8))
@pytest.mark.parametrize("summary", [listed(), keyed()], ids=["listed", "keyed"])
def test_a_narrow_terminal_never_cuts_a_number_and_says_which_columns_it_hides(
    summary: Summary, width: int
) -> None:
    text = shown(summary, width)
    found = one_table(summary).table
    assert all(len(line) <= width for line in text.splitlines()) and "…" not in text
    words = " ".join(text.split())
    hidden = words.partition("hidden at")[2].partition("COLUMNS=")[0]
    for place, name in enumerate(found.columns):
        titled = name in hidden or all(row[place] in words for row in found.rows)
        assert titled, name
        assert name in words
    values = {"value"} if "value" in found.columns else {"busbw GB/s", "busbw 95%", "time us"}
    assert not [name for name in values if name in hidden.split(": ")[-1].split(", ")]
    # Each part of a table that goes on below repeats what tells its lines apart.
    parts = [line.split()[: found.keys] for line in text.splitlines() if line.startswith("case ")]
    assert parts and all(part == list(found.columns[: found.keys]) for part in parts)


@evil
def test_a_key_from_a_log_acts_on_nothing(text: str) -> None:
    summary = summarize(
        measured("1n2g", (BUSBW,), {"busbw": {(1024, text): 5.0, (4096, "b"): 6.0}}, observed=SEEN)
    )
    rendered = [
        shown(summary, 100),
        markdown.render(summary),
        delimited.render(summary),
        junit.render(summary),
    ]
    for one in (*rendered, prometheus.render(summary)):
        assert not set(one) & set("\x00\x07\x1b\x9b\u202e\r\t")
        one.encode("utf-8")
    assert "<" not in rendered[1] and "](" not in re.sub(r"\\.", "", rendered[1])
    lines = list(csv.DictReader(io.StringIO(rendered[2])))
    assert [line["key.size_bytes"] for line in lines] == ["1024", "4096"]
    assert all(
        line["key.op"] in ("+1", "-1") or line["key.op"].lstrip(" ")[0] not in "=+-@"
        for line in lines
    )


def test_keys_that_leave_no_room_for_a_value_have_their_titles_broken() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    titles = [
        "case",
        "accumulation",
        "parallel",
        "pipeline_parallel",
        "tensor_parallel",
        "tokens_per_s_per_device tokens/s",
    ]
    rows = [["1n1g", "4", "fsdp", "1", "1", "35368.40"], ["2n1g", "2", "ddp", "2", "1", "15368.40"]]
    console.print(terminal.fitting(titles, rows, (), console, "", keys=5))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split() for line in lines[-2:]] == rows and all(len(line) <= 80 for line in lines)
    assert (
        "".join("".join(lines[:-2]).split()).count("parallel") == 3
        and lines[-3].split()[0] == "case"
    )

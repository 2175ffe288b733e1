"""A summary at a terminal of any width, and what every output says of it."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from junitparser import JUnitXml
from rich.console import Console

from orchestrator.plan.spec import Skipped
from orchestrator.report import terminal
from orchestrator.report.cells import COLUMNS
from orchestrator.report.formats import csv as delimited
from orchestrator.report.formats import json as jsonout
from orchestrator.report.formats import junit, markdown
from orchestrator.report.text import stdout_console
from orchestrator.results.planned import Counts, Planned
from orchestrator.results.summary import Summary, lacking, summarize
from tests.report.printed import shown
from tests.support.summaries import example, runs

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


def test_columns_of_words_are_at_the_left_and_those_of_numbers_at_the_right() -> None:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    columns = {
        "when": ("2026-07-08 10:00", "2026-07-11 09:30"),
        "signed by": ("ann", ""),
        "case": ("1n1g", "16n8g"),
        "n": ("3", "10 (1 failed)"),
        "speed": ("1,234.50", "–"),
        "spread": ("0.4%", "12.5%"),
        "range": ("1.5 to 2.5", "10 to 20"),
        "times": ("1.98x", "15.7x"),
        "agree": ("6/6", "10/12"),
    }
    rows = list(zip(*columns.values(), strict=True))
    console.print(terminal.fitting(list(columns), rows, (), console, ""))
    assert isinstance(console.file, io.StringIO)
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        "when              signed by  case               n     speed  spread       range  times  agree",
        "2026-07-08 10:00  ann        1n1g               3  1,234.50    0.4%  1.5 to 2.5  1.98x    6/6",
        "2026-07-11 09:30             16n8g  10 (1 failed)         –   12.5%    10 to 20  15.7x  10/12",
    ]


@pytest.mark.parametrize(("width", "expected"), [(156, WIDE), (80, NARROW)])
def test_a_terminal_shows_a_table_with_its_baseline_hardware_and_footnotes(
    summary: Summary, width: int, expected: list[str]
) -> None:
    text = shown(summary, width)
    assert text.startswith(HEAD) and text.endswith(FOOT)
    lines = text.removeprefix(HEAD).removesuffix(FOOT).splitlines()
    assert [" ".join(line.split()) for line in lines] == expected
    assert lines[1].index("353.01") + len("353.01 to 355.05") == lines[0].index("speed 95%") + len(
        "speed 95%"
    )


def test_a_dumb_terminal_which_heeds_no_columns_is_not_told_to_set_them(summary: Summary) -> None:
    environment = {"TERM": "dumb", "COLUMNS": "155"}
    console = Console(
        file=io.StringIO(), color_system=None, force_terminal=True, _environ=environment
    )
    terminal.render(summary, console)
    assert isinstance(console.file, io.StringIO)
    words = " ".join(console.file.getvalue().split())
    assert "hidden at 80 columns: average_speed" in words and "COLUMNS" not in words
    assert "speedup 95%; orch summarize --format markdown, csv or json shows them" in words


def test_columns_without_any_value_are_the_first_to_be_left_out(summary: Summary) -> None:
    rows = tuple(
        replace(row, speedup=None, speedup_interval=None, efficiency=None)
        for row in summary.rows[:2]
    )
    lines = shown(replace(summary, rows=rows, baseline={}), 100).splitlines()
    (head,) = [line.split() for line in lines if line.startswith("case ")]
    assert "ms/step" in head and "per" in head and not {"speedup", "efficiency"} & set(head)
    assert "speedup, speedup 95%, efficiency" in " ".join(lines)


def test_a_stacked_table_repeats_all_columns_that_tell_its_rows_apart() -> None:
    rows = [
        (repeat, size, f"{repeat}{size}1.5", f"{repeat}{size}2.5")
        for repeat in "12"
        for size in "48"
    ]
    console = Console(file=io.StringIO(), width=20, color_system=None, force_terminal=False)
    console.print(terminal.fitting(("repeat", "size", "out", "in"), rows, (), console, "elsewhere"))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[0] == ["repeat", "size", "out"] and lines[5] == ["repeat", "size", "in"]
    assert lines[6:] == [[repeat, size, f"{repeat}{size}2.5"] for repeat in "12" for size in "48"]


@pytest.mark.parametrize("width", range(46, 160, 6))
def test_no_line_is_wider_than_the_terminal_and_the_speed_always_stays(
    summary: Summary, width: int
) -> None:
    text = shown(summary, width)
    assert all(len(line) <= width for line in text.splitlines()) and "…" not in text
    titles = [line for line in text.splitlines() if line.startswith("case ")]
    there = " ".join(titles)
    assert (
        "speed" in there.split() and "2243.07" in text and "speedup" in there and "SIGKILL" in text
    )
    assert "average_speed" in there or "min" not in there.split()
    assert "median_speed" in there or "average_speed" not in there
    assert "efficiency" in there or "95%" not in there
    assert "speed 95%" in there.replace("speedup 95%", "") or "speedup 95%" not in there
    # A column is in the table, or said to be left out; where all of them are there, nothing is
    # said.
    hidden = " ".join(text.split()).partition("hidden at")[2].partition("COLUMNS=")[0]
    missing = [name for name in COLUMNS if not re.search(rf"(?<!\S){name}(?!\S)", there)]
    assert all(name in hidden for name in missing) and bool(missing) == bool(hidden)


def test_a_table_that_is_too_wide_without_them_as_well_goes_on_below_with_its_first_column_again() -> (
    None
):
    wide = list("abcdefgh")
    rows = [
        ("node1", *(f"{place}11111.11" for place in range(8))),
        ("node2", *(f"{place}22222.22" for place in range(8))),
    ]
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
    text = shown(
        summarize([*runs("1n1g", [1.0] * 3), *runs("1n2g", [2.0] * 3, simulated=True)]), 120
    )
    titles = [line for line in text.splitlines() if line.startswith("pytorch resnet50")]
    assert titles[0] == "pytorch resnet50 fp16 b128 synthetic"
    assert titles[1] == "pytorch resnet50 fp16 b128 synthetic   SIMULATED"


def test_a_missing_baseline_is_said_with_what_gives_one() -> None:
    text = shown(summarize(runs("4n8g", [9.0] * 3)), 200)
    assert "no baseline: no speedup" in text
    assert "orch bench without --no-baseline" in text


def test_skipped_configurations_are_shown_by_every_output() -> None:
    choices = {"nodes": 9, "gpus": 8, "dtype": "fp16", "env.NCCL_ALGO": None}
    skipped = (
        Skipped("pytorch", "resnet50", choices, "--nodes: expected 9 hosts"),
        Skipped("pytorch", "vgg16", choices, "no"),
    )
    planned = Planned((), Counts(0, 0, 0, 0, 0, 0), "", "a label", skipped)
    summary = lacking(example(), planned)
    words = "skipped, because impossible: pytorch resnet50 9n8g dtype=fp16 NCCL_ALGO=(not set): --nodes: expected 9 hosts"
    assert words in " ".join(shown(summary, 200).split()) and shown(summary, 200).startswith(
        "a label\n"
    )
    assert summary.notes[:2] == (
        words,
        "skipped, because impossible: pytorch vgg16 9n8g dtype=fp16 NCCL_ALGO=(not set): no",
    )
    document = json.loads(jsonout.render(summary))
    assert document["skipped"][0] == {
        "framework": "pytorch", "model": "resnet50", "choices": choices, "reason": "--nodes: expected 9 hosts",
    }  # fmt: skip
    suite = next(
        suite
        for suite in JUnitXml.fromstring(junit.render(summary).encode())
        if suite.name == "impossible"
    )
    assert [case.is_skipped for case in suite] == [True, True] and suite.skipped == 2


def test_hardware_that_differs_between_cells_is_said_for_each() -> None:
    text = shown(
        summarize(
            [*runs("1n1g", [1.0] * 3), *runs("1n2g", [1.0] * 3, observed={"devices": ["V100"]})]
        ),
        120,
    )
    assert "1n1g: NVIDIA H200 · torch 2.13.0 · NCCL 2.27.3\n1n2g: V100\n" in text


def test_nothing_to_show_is_said() -> None:
    assert shown(Summary((), {}, ()), 80).strip() == "no runs"
    assert markdown.render(Summary((), {}, ())) == "no runs\n"


def test_a_slow_program_has_its_digits_in_every_table() -> None:
    slow = summarize(
        [*runs("1n1g", [0.0119, 0.0121, 0.0120]), *runs("1n2g", [0.0117, 0.0116, 0.0118])]
    )
    assert "baseline 1n1g: 0.0120 samples/s, n=3" in shown(slow, 156)
    for text in (shown(slow, 156), markdown.render(slow), delimited.render(slow)):
        assert "0.0119" in text and "0.0116" in text and "0.01 to 0.01" not in text
        assert "0.0118 to 0.0123" in text and "0.975" in text


def test_lines_have_no_blanks_at_their_end_where_nobody_sees_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.render(example(), stdout_console())
    lines = capsys.readouterr().out.splitlines()
    assert any("repeats spread over" in line for line in lines)
    assert [line for line in lines if line.endswith(" ")] == []

"""Text of nodes and programs in every output: it is shown, and nothing of it acts."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from orchestrator.report import terminal
from orchestrator.report.cells import COLUMNS
from orchestrator.report.formats import csv as delimited
from orchestrator.report.formats import json as jsonout
from orchestrator.report.formats import junit, markdown, prometheus
from orchestrator.report.text import lines_of, one_line, visible
from orchestrator.results.summary import summarize
from tests.report.printed import shown
from tests.support.summaries import evil, runs, with_text

STEERING = "".join(
    map(
        chr,
        [
            *range(9),
            *range(11, 32),
            *range(127, 160),
            0x061C,
            0x200E,
            0x200F,
            0x2028,
            0x2029,
            *range(0x202A, 0x202F),
        ],
    )
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
    assert (
        "<" not in rendered
        and "://" not in rendered
        and "www." not in rendered
        and "@" not in rendered
    )
    for line in rendered.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == len(COLUMNS) + 2
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
    assert len({len(line) for line in lines}) == 1
    for cell in (cell for line in lines for cell in line):
        assert cell in ("+1", "-1") or not cell.lstrip(" ").startswith(
            ("=", "+", "-", "@", "\t", "\r")
        )


def test_a_formula_that_leads_its_field_is_made_text() -> None:
    first = runs("1n1g", [1.0] * 3, qualifications=('=HYPERLINK("x")',))
    assert (
        next(csv.DictReader(io.StringIO(delimited.render(summarize(first)))))["qualifications"]
        == '\'=HYPERLINK("x")'
    )


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
def test_a_number_is_data_and_anything_else_that_leads_a_formula_is_text(
    text: str, written: str
) -> None:
    first = runs("1n1g", [1.0] * 3, qualifications=(text,))
    assert (
        next(csv.DictReader(io.StringIO(delimited.render(summarize(first)))))["qualifications"]
        == written
    )


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


@given(
    st.lists(
        st.sampled_from(["é", "token=s3cret", "\u202e", " ", "\n", "\r\n", "\r"]), max_size=12
    ),
    st.data(),
)
def test_a_log_in_pieces_has_the_lines_of_the_log_in_one(
    parts: list[str], data: st.DataObject
) -> None:
    log = "".join(parts).encode()
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=5))), len(log)]
    pieces = [log[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert list(lines_of(pieces)) == [line.decode() for line in log.splitlines()]


def test_of_bytes_that_are_no_text_each_is_seen_and_a_line_without_end_comes_in_parts() -> None:
    assert list(lines_of([b"ok\xff", b"\xe6\x97"])) == ["ok\\xff\\xe6\\x97"]
    assert [len(line) for line in lines_of([b"x" * 700_000] * 4)] == [1_400_000, 1_400_000]

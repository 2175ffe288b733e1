"""Logs that are damaged or hostile: they are read as far as they can be trusted, and in time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import DataError
from orchestrator.logs import text as logtext
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.parse import _MAX_SAMPLES, LINE_LIMIT, parse
from orchestrator.logs.steps import StepSample
from tests.logs.programs import LOG, OURS, step_line, steps
from tests.support.examples import examples


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_make_it_raise(noise: bytes) -> None:
    parsed = parse(noise + b"\n" + LOG, OURS)
    assert steps(parsed.samples)[-3:] == [0, 1, 2]


def test_a_flood_of_steps_is_refused_and_not_kept() -> None:
    line = b"orch step=%d t=1.0 step_time_s=0.5 samples=64\n"
    log = b"".join(line % step for step in range(_MAX_SAMPLES))
    assert len(parse(log, OURS).samples) == _MAX_SAMPLES
    with pytest.raises(DataError, match="expected at most 400000 step lines in a file, got more"):
        parse(log + line % 0, OURS)


@pytest.mark.parametrize(
    ("closing", "why"),
    [
        (b"{}}", "byte 2"),
        (b"{3}", "byte 1"),
        (b'{"a": NaN}', "number NaN"),
        (b'{"a": 1e999}', "number 1e999"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "50 levels"),
        (b'{"a": ' + b"[" * 20000 + b"]" * 20000 + b"}", "50 levels"),
        (b'{"a": ' + b"9" * 6000 + b"}", "thousands of digits"),
    ],
    ids=["braces", "no key", "nan", "infinite", "twice", "60 levels", "20000 levels", "digits"],
)
def test_a_damaged_closing_line_is_a_warning_with_its_reason(closing: bytes, why: str) -> None:
    parsed = parse(LOG[: LOG.rfind(b"orch done")] + b"orch done " + closing + b"\n", OURS)
    assert steps(parsed.samples) == [0, 1, 2]
    assert parsed.closing is None
    assert len(parsed.warnings) == 1 and why in parsed.warnings[0]


def test_a_value_that_is_no_number_leaves_its_line_out_with_one_warning() -> None:
    log = b"".join(
        b"orch step=%d t=1.2.3 step_time_s=0.5 samples=64\n" % step for step in range(1000)
    ) + step_line(7, 1.0)
    parsed = parse(log, OURS)
    assert steps(parsed.samples) == [7]
    assert len(parsed.warnings) == 1


def test_a_step_of_thousands_of_digits_is_no_step() -> None:
    assert (
        parse(b"orch step=" + b"9" * 5000 + b" t=1 step_time_s=1 samples=1\n", OURS).samples == ()
    )


@settings(max_examples=examples(300))
@given(
    st.integers(0, 70_000),
    st.integers(-2, 40),
    st.integers(0, 200),
    st.lists(
        st.tuples(
            st.integers(0, 199),
            st.sampled_from(["7", "007", "", "-1", "1.0", "1_0", " 1", "٣", "9" * 15, "9" * 16]),
        )
    ),
)
def test_numbers_that_count_up_are_read_as_any_others(
    first: int, apart: int, count: int, odd: list[tuple[int, str]]
) -> None:
    texts = [str(abs(first + apart * row)) for row in range(count)]
    for row, text in odd:
        texts[row : row + 1] = [text] * (row < count)
    if all(re.fullmatch("[0-9]{1,15}", text) for text in texts):
        assert logtext.wholes(texts) == [int(text) for text in texts]
    else:
        with pytest.raises(ValueError, match="whole numbers|invalid literal"):
            logtext.wholes(texts)


def test_digits_of_other_scripts_are_no_digits() -> None:
    loose = LogGrammar(files=("x",), patterns=(r"step=(?P<step>\d+) t=(?P<timestamp>\S+)",))
    assert parse("step=٣ t=1\nstep=3 t=2\n".encode(), loose).samples == (
        StepSample(3, timestamp=2.0),
    )


def test_a_number_at_the_cut_of_an_endless_line_is_not_taken() -> None:
    head = b"orch step=5 t=1.0 step_time_s=0.5 samples="
    log = b"x" * (LINE_LIMIT - len(head) - 2) + head + b"123456\n" + step_line(6, 2.0)
    assert steps(parse(log, OURS).samples) == [6]


@pytest.mark.parametrize(
    ("piece", "times"),
    [
        (b"x", 100_000_000),
        (b"orch step=1 ", 8_000_000),
        (b"\x1b[", 40_000_000),
        (b"orch step=1 t=" * 4000 + b"\n", 1700),
        (b"[1,1" * 15000 + b"\n", 1500),
        (b"\r\n", 50_000_000),
    ],
    ids=["no line end", "one line", "escapes", "long lines", "half tags", "line ends"],
)
def test_a_hundred_megabytes_of_nothing_do_not_stall(piece: bytes, times: int) -> None:
    data = piece * times + b"\n" * (times != 100_000_000)
    assert parse(data, OURS).samples == ()


def test_the_caller_can_end_a_file_that_takes_too_long() -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise DataError("too long", kind="result_invalid")

    with pytest.raises(DataError, match="too long"):
        parse(b"a\n" * 100_000, OURS, check)


@pytest.mark.parametrize("end", [b"", b"\x1b[0m"])
def test_an_unended_last_line_with_results_is_not_read_and_is_named(end: bytes) -> None:
    grammar = LogGrammar(
        files=("node.out",), patterns=(), readings=(r"^size=(?P<size>\S+) rate=(?P<rate>[0-9.]+)",)
    )
    log = b"size=1 rate=100\nsize=2 rate=200\nsize=4 rate=90"
    parsed = parse(log + end, grammar)
    assert [line["size"] for line in parsed.readings] == ["1", "2"]
    assert parsed.warnings == (
        "the last line has no line end, so it may be cut off, and was not read: size=4 rate=90",
    )
    assert parse(b"size=4 rate=90", grammar).warnings == parsed.warnings
    for ended in (log + b"0\n", log + b"0\r", log + b"0\n 99%|done", b""):
        assert parse(ended, grammar).warnings == ()
    assert len(parse(log + b"0\n", grammar).readings) == 3


@pytest.mark.parametrize(
    ("last", "is_named"),
    [("size=4 rate=9", True), ("size=4 ra", True), ("size=4", False), ("size=4 done", False)],
)
def test_the_beginning_of_a_result_at_the_end_of_a_log_is_named(last: str, is_named: bool) -> None:
    grammar = LogGrammar((), readings=(r"^size=(?P<size>[0-9]+) rate=(?P<rate>[0-9.]+) GB/s$",))
    parsed = parse(f"size=1 rate=100 GB/s\n{last}".encode(), grammar)

    assert [note.code for note in parsed.warnings] == ["line_cut_off"] * is_named

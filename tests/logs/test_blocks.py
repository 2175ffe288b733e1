"""A log in blocks, its lines one by one, and a file that is mapped: all say the same."""

from __future__ import annotations

import mmap
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.logs import text as logtext
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.parse import LINE_LIMIT, parse
from orchestrator.logs.patterns import columns, compile_pattern
from orchestrator.logs.steps import VALUES, StepSample
from orchestrator.plan import folders as library
from tests.logs.line_by_line import in_words, line_by_line
from tests.logs.programs import LOG, OURS, TENSORFLOW, grammars, steps
from tests.support.examples import examples

SAMPLE_LOGS = [(path / "sample.log").read_bytes() for path in library.frameworks().values()]
SAMPLES = b"".join(SAMPLE_LOGS)
PIECES = [
    *(line for line in (SAMPLES + LOG).splitlines(keepends=True) if len(line) < 400),
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b" ",
        b"\t",
        b"orch step=",
        b"step",
        b"12",
        b"0.5",
        b"orch done {}",
        b"12:00:01.5 ",
    ),
    *(
        b"\x1b[3",
        b"\x1b[32m",
        b"\x1b]0;t",
        b"\x07",
        b"\x1b",
        b"\x9b1m",
        b"\xc2\x9b1m",
        b"\xc2",
        b"\x00",
        b"\x7f",
    ),
    *(
        b"images/sec: ",
        b"\xf0\x9f",
        b"\xe2\x96\x88",
        b"[1,1]<stdout>:",
        b"[1,0]<stdout>:",
        b"[p@1,2]<stderr>: ",
        b"]<std",
    ),
    *(b"x" * 5000, b"y" * (LINE_LIMIT - 60)),
]


@settings(max_examples=examples(400), deadline=None)
@given(
    st.deferred(lambda: st.sampled_from(grammars())),
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=6), max_size=60),
    st.data(),
)
def test_blocks_say_what_their_lines_say_one_by_one(
    rules: LogGrammar, pieces: list[bytes], data: st.DataObject
) -> None:
    log = b"".join(pieces)
    log = log[: data.draw(st.integers(0, len(log)))] + data.draw(st.sampled_from([b"", b"\n"]))
    assert in_words(parse(log, rules)) == in_words(line_by_line(log, rules))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.deferred(lambda: st.sampled_from(grammars())),
    st.randoms(use_true_random=False),
    st.lists(st.sampled_from(PIECES), max_size=3),
)
def test_long_logs_of_step_lines_say_the_same_in_blocks(
    rules: LogGrammar, chance: random.Random, odd: list[bytes]
) -> None:
    sample = chance.choice(SAMPLE_LOGS).splitlines(keepends=True)
    lines = [line for line in sample if chance.random() < 0.3] * chance.randrange(1, 30)
    for piece in odd:
        lines.insert(chance.randrange(len(lines) + 1), piece)
    log = b"".join(lines)
    assert in_words(parse(log, rules)) == in_words(line_by_line(log, rules))


SEVERAL = LogGrammar(
    files=("x",),
    patterns=(
        r"step (?P<step>[0-9]+) begins",
        r"step (?P<step>[0-9]+) ends at (?P<timestamp>[0-9.:]+)(?=\s|$)",
        r"rate (?P<samples_per_s>[0-9.]+)/s",
        r"took (?P<step_time_s>[0-9.]+) s, clock (?P<timestamp>[0-9.:]+)",
    ),
)
EVENTS = [
    "step {} begins",
    "step {} ends at 12:00:01.5",
    "step {} ends at 7.5",
    "rate 2.5/s",
    "took 0.5 s, clock 23:59:59",
]
ODD_EVENTS = [
    "step {} fails",
    "rate 2.5.1/s",
    "took 1 s, clock 25.5",
    "rate 2/s step {} begins",
    "step {} begins\x1b[0m",
    "",
]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "[1,0]<stdout>:", "[1,3]<stdout>:"]), st.sampled_from(EVENTS)
        ),
        max_size=6,
    ),
    st.lists(
        st.tuples(st.integers(0, 1000), st.sampled_from([*EVENTS, *ODD_EVENTS]), st.integers(0, 2)),
        max_size=3,
    ),
    st.integers(1, 300),
)
def test_patterns_that_complete_each_other_say_in_blocks_what_they_say_line_by_line(
    round_of_lines: list[tuple[str, str]], odd: list[tuple[int, str, int]], rounds: int
) -> None:
    lines = [
        tag + event.format(step) for step in range(1, rounds + 1) for tag, event in round_of_lines
    ]
    for at, event, back in odd:
        lines.insert(at, event.format(max(0, at // (len(round_of_lines) or 1) - back)))
    log = "".join(f"{line}\n" for line in lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logtext, "_BLOCK", 1)
        assert in_words(parse(log, SEVERAL)) == in_words(line_by_line(log, SEVERAL))


def test_columns_refuse_what_only_the_order_of_lines_tells() -> None:
    begins, _, rate, took = (
        compile_pattern("x", text, ("step", *VALUES)) for text in SEVERAL.patterns
    )
    assert columns((begins, rate), "rate 1/s\nstep 1 begins\nrate 2/s") == (
        {"samples_per_s": "1"},
        {"step": ["1"], "samples_per_s": ["2"]},
    )
    for lines in (
        ["rate 1/s", "took 1 s, clock 2"],
        ["step 1 begins", "rate 1/s", "rate 2/s"],
        ["step 1 begins rate 1/s"],
    ):
        with pytest.raises(ValueError):
            columns((begins, rate, took), "\n".join(lines))


@pytest.mark.parametrize(
    "between",
    [r"\s+", r"\s", r"[^0-9]+", r"\D+", r"[ \n]", r"\W", r"(?:\n|,)", "(?:\n|,)", "(?s:.)"],
)
def test_a_match_never_goes_on_in_the_next_line(between: str) -> None:
    grammar = LogGrammar(
        files=("x",), patterns=(rf"step=(?P<step>[0-9]+){between}t=(?P<timestamp>[0-9.]+)",)
    )
    log = b"step=1\nt=1.5\nstep=2 t=2.5\nstep=3,t=3.5\n"
    assert in_words(parse(log, grammar)) == in_words(line_by_line(log, grammar))


def test_an_empty_line_says_nothing_to_a_pattern_that_matches_nothing() -> None:
    grammar = LogGrammar(files=("x",), patterns=("(?P<step>[0-9]*)",))
    assert parse(b"\n\n", grammar).warnings == line_by_line(b"\n\n", grammar).warnings == ()


def test_two_lines_of_a_step_are_one_sample_wherever_a_block_ends() -> None:
    lines = [f"step {step} begins\nrate {step}.5/s\n".encode() for step in range(1, 20_000)]
    log = b"rate 7.5/s\n" + b"".join(lines) + b"rate 8.5/s\n"
    parsed = parse(log, SEVERAL)
    assert parsed.samples == tuple(
        StepSample(step, samples_per_s=step + 0.5) for step in range(1, 20_000)
    )
    assert len(parsed.warnings) == 2


def test_a_file_in_memory_and_one_that_is_mapped_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOG + b"x" * 10_000 + b"\n" + SAMPLES)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert in_words(parse(mapped, OURS)) == in_words(parse(path.read_bytes(), OURS))


@pytest.mark.parametrize("control", [b"\x00", b"\x1b[1m", b"\xc2\x9b1m", b"\x7f"])
def test_a_control_character_within_every_literal_hides_nothing(control: bytes) -> None:
    words = (b"or", b"ch st", b"ep=3 ", b"t=1.0 step_", b"time_s=0.5 sam", b"ples=64\n")
    assert steps(parse(control.join(words) + b"noise\n" * 50_000, OURS).samples) == [3]


def test_a_line_that_is_read_alone_after_all_does_not_add_a_day_twice() -> None:
    line = "{}.000000 1 a.py:1] TimeHistory: 1 seconds, {} examples/second between steps 0 and {}\n"
    log = (
        line.format("23:59:59", "5.0", 100)
        + line.format("00:00:09", "5.0", 200)
        + line.format("00:00:19", "1.2.3", 300)
    )
    assert [sample.timestamp for sample in parse(log.encode(), TENSORFLOW).samples] == [
        86399.0,
        86409.0,
    ]

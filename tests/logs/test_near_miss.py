"""Where a pattern stops in the line that it nearly matches."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs.near_miss import near_miss

LOG = "loading data\nepoch 1 step 10 | loss 6.9 | tps: 7,512\nepoch 1 step 20 | loss 6.8 | tps: 7,530\ndone\n"


@pytest.mark.parametrize(
    ("pattern", "upto", "rest"),
    [
        (r"step (?P<step>[0-9]+) \| loss (?P<loss>[0-9.]+) \| tps=(?P<samples>[0-9]+)", "| tps", "=(?P<samples>[0-9]+)"),
        (r"step=(?P<step>[0-9]+) .*tps: [0-9.]+", "epoch 1 step", "=(?P<step>[0-9]+) .*tps: [0-9.]+"),
        (r"step (?P<step>[a-z]+)", "epoch 1 step ", "(?P<step>[a-z]+)"),
        (r"step \(?(?P<step>[0-9]+)\)", "epoch 1 step 10", r"\)"),
        (r"tps: (?P<samples_per_s>[0-9.]+)$", "tps: 7", "$"),
        (r"^epoch (?:1|2) step (?P<step>\d+),", "epoch 1 step 10", ","),
        (r"^epoch (?P<step>\d{2}) step", "epoch 1", "{2}) step"),
        (r"(?:epoch|round) [0-9]+ iteration (?P<step>\d+)", "epoch 1 ", "iteration (?P<step>\\d+)"),
        (r"nothing like it|epoch 1 stop (?P<step>\d+)", "epoch 1 st", "op (?P<step>\\d+)"),
        (r"epoch 1 (?!step)(?P<step>\d+)", "epoch 1 ", "(?!step)(?P<step>\\d+)"),
    ],
)  # fmt: skip
def test_a_pattern_stops_in_the_first_line_that_it_matches_longest(
    pattern: str, upto: str, rest: str
) -> None:
    miss = near_miss(pattern, LOG)

    assert miss
    assert (miss.number, miss.line) == (2, LOG.split("\n")[1])
    assert miss.line[: miss.column - 1].endswith(upto)
    assert (miss.matched, miss.rest) == (pattern.removesuffix(rest), rest)


def test_the_line_that_matches_longest_counts_not_the_first() -> None:
    miss = near_miss(
        r"step (?P<step>[0-9]+) took (?P<step_time_s>[0-9.]+) s",
        "step\nstep 3\nstep 3 took 5 ms\nstep 3 t\n",
    )

    assert miss
    assert (miss.number, miss.column) == (3, len("step 3 took 5 ") + 1)


def test_lines_that_match_are_no_near_misses() -> None:
    pattern = r"step (?P<step>[0-9]+) in (?P<step_time_s>[0-9.]+)s"
    miss = near_miss(pattern, "step 1 in 0.5s\nstep 2 in 1m0s\n")

    assert miss
    assert miss.number == 2
    assert near_miss(pattern, "step 1 in 0.5s\nready\n") is None


@pytest.mark.parametrize("text", ["", "\n\n", "INFO\n", "Ithaca\n"])
def test_a_few_characters_that_match_by_chance_come_not_near(text: str) -> None:
    assert near_miss(r"Iteration (?P<step>[0-9]+)", text) is None


def test_a_sentence_says_what_came_and_what_the_pattern_has() -> None:
    miss = near_miss(r"tps=(?P<samples_per_s>[0-9.]+)", LOG)

    assert str(miss) == (
        "line 2 matches up to 'epoch 1 step 10 | loss 6.9 | tps', then ': 7,512' where the pattern has "
        "'=(?P<samples_per_s>[0-9.]+)'"
    )
    ended = near_miss(r"done in (?P<elapsed_s>[0-9]+)", LOG)
    assert (
        str(ended)
        == "line 4 matches up to 'done', then the end of the line where the pattern has ' in (?P<elapsed_s>[0-9]+)'"
    )


def test_a_long_line_is_shown_in_part() -> None:
    miss = near_miss("x+=(?P<step>[0-9]+)", "x" * 100_000)

    assert miss
    assert len(str(miss)) < 400


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(re.error):
        near_miss("step (?P<step>[0-9]+", "step 1")


def test_a_large_log_takes_no_longer_than_a_reader_waits() -> None:
    text = "".join(
        f"[{i}] NCCL INFO Channel {i % 32}/0 : {i} -> {i + 1} via P2P/CUMEM\n"
        for i in range(100_000)
    )
    near_miss(
        r"^\[?(?P<timestamp>[0-9: ]+)\]? step (?P<step>[0-9]+) .* loss=(?P<loss>[0-9.]+) in (?P<step_time_s>[0-9.]+)",
        text,
    )


@given(
    st.text(alphabet="ab1 .", max_size=30),
    st.sampled_from([r"a+ (?P<step>[0-9])\.b", r"(?:ab|b1)(?P<step>1*) a", r"^a.?b|1 1 1"]),
)
def test_the_two_parts_are_the_pattern_and_the_first_one_matches_up_to_the_column(
    text: str, pattern: str
) -> None:
    miss = near_miss(pattern, text)

    if miss:
        assert miss.matched + miss.rest == pattern
        assert miss.line == text.split("\n")[miss.number - 1]
        assert not re.search(pattern, miss.line)
        closed = miss.matched + ")" * (miss.matched.count("(") - miss.matched.count(")"))
        found = re.search(closed, miss.line)
        assert found
        assert found.end() == miss.column - 1


def test_the_rest_of_a_pattern_is_quoted_as_it_is_in_the_folder() -> None:
    miss = near_miss(r"step (?P<step>[0-9]+) \| lr \d+\.\d", "step 10 | loss 6.9\n")
    assert (
        str(miss)
        == r"line 1 matches up to 'step 10 | l', then 'oss 6.9' where the pattern has 'r \d+\.\d'"
    )

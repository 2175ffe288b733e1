"""What a grammar makes of a log: matches, near misses, values that are no numbers, and lines that
are left out.
"""

from __future__ import annotations

import doctest
import importlib

import pytest

from orchestrator.logs import LogGrammar
from orchestrator.logs.matches import matches
from orchestrator.plan.folders import frameworks, read_folder

STEP = r"^step (?P<step>[0-9]+) tps: (?P<samples_per_s>\S+)$"


def test_the_example_holds() -> None:
    assert doctest.testmod(importlib.import_module("orchestrator.logs.matches")).failed == 0


@pytest.mark.parametrize("name", frameworks())
def test_the_sample_of_every_shipped_folder_gives_a_number_and_each_pattern_matches(
    name: str,
) -> None:
    folder = frameworks()[name]
    log = matches((folder / "sample.log").read_bytes(), read_folder(folder).framework.log)
    assert log.has_number
    # A good log has no verdict that voids it, and one of several forms of headers and facts.
    found = {pattern.key: pattern.count for pattern in log.patterns}
    optional = ("log.refuse", "log.facts", "log.headers")
    assert [key for key, count in found.items() if not count and not key.startswith(optional)] == []
    assert not any(count for key, count in found.items() if key.startswith("log.refuse"))
    assert not log.parsed.void
    assert [pattern.key for pattern in log.patterns if pattern.not_numbers] == []


def test_a_value_that_is_no_number_is_named_with_its_line() -> None:
    log = matches(b"step 1 tps: 7,512\nstep 2 tps: 7512\n", LogGrammar((), (STEP,)))
    assert log.patterns[0].not_numbers == ((1, "samples_per_s", "7,512"),)
    assert log.patterns[0].count == 2 and log.has_number


def test_a_line_that_another_pattern_matches_is_no_near_miss() -> None:
    grammar = LogGrammar((), (STEP,), rank="^step (?P<rank>[0-9]+) of$")
    log = matches(b"step 1 tps: 7\nstep 1 of\n", grammar)
    assert [pattern.near_miss for pattern in log.patterns] == [None, None]


def test_a_near_miss_keeps_the_number_of_its_line() -> None:
    log = matches(b"step 1 tps: 7\n\n[1,0]<stdout>:step 2 tps; 7\n", LogGrammar((), (STEP,)))
    assert log.patterns[0].count == 1 and log.patterns[0].near_miss
    assert (log.patterns[0].near_miss.number, log.patterns[0].near_miss.line) == (
        3,
        "step 2 tps; 7",
    )


def test_a_log_of_other_lines_gives_no_number_and_says_where_the_pattern_stops() -> None:
    log = matches(b"hello\nstep 1 took 5 s\n", LogGrammar((), (STEP,)))
    (pattern,) = log.patterns
    assert not log.has_number and pattern.count == 0 and pattern.near_miss
    assert (pattern.near_miss.number, pattern.near_miss.line[pattern.near_miss.column - 1 :]) == (
        2,
        "ook 5 s",
    )
    assert (log.lines, log.unmatched_count) == (2, 2)


@pytest.mark.parametrize("data", [b"", b"\n", b"step 1 tps: 5", b"\xff\xfe\n", b"a\r\nb\r"])
def test_a_log_without_a_whole_step_line_is_no_error(data: bytes) -> None:
    assert not matches(data, LogGrammar((), (STEP,))).has_number


def test_the_tags_of_a_launcher_are_no_part_of_a_line() -> None:
    log = matches(
        b"[1,0]<stdout>:step 1 tps: 5\n[1,1]<stdout>:step 1 tps: 5\n", LogGrammar((), (STEP,))
    )
    assert log.patterns[0].count == 2 and log.unmatched == ()


def test_a_result_line_is_a_number_too() -> None:
    grammar = LogGrammar((), readings=(r"^bw (?P<gbit>[0-9]+)$",))
    assert matches(b"bw 7\n", grammar).has_number and not matches(b"bw\n", grammar).has_number

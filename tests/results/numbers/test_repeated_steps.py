"""A step that a log has twice has no time, unless the line was printed again as it is or before the
window.
"""

from __future__ import annotations

import doctest

import pytest

from orchestrator.errors import DataError
from orchestrator.logs import LogGrammar
from orchestrator.logs.parse import parse
from orchestrator.results.numbers import repeated_steps
from orchestrator.results.numbers.tempo import tempo
from orchestrator.results.numbers.throughput import Terms, throughput

PATTERNS = {
    "st": r"^step (?P<step>[0-9]+) st=(?P<step_time_s>[0-9.]+)",
    "rate": r"^step (?P<step>[0-9]+) rate=(?P<samples_per_s>[0-9.]+)",
    "t": r"^step (?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+)",
}
TERMS = Terms(warmup_steps=2, steps=8, global_batch=10)


def log(name: str, again: dict[int, float]) -> bytes:
    """Return a log of eight steps of 0.5 s; the steps of ``again`` have another line before, with
    this value.
    """
    of_step = {
        "st": lambda step: 0.5,
        "rate": lambda step: 20.0,
        "t": lambda step: 100 + 0.5 * step,
    }[name]
    lines = []
    for step in range(1, 9):
        lines += [
            f"step {step} {name}={value}\n"
            for value in ([again[step]] if step in again else []) + [of_step(step)]
        ]
    return "".join(lines).encode()


@pytest.mark.parametrize(("name", "value"), [("st", 1.5), ("rate", 5.0), ("t", 101.75)])
@pytest.mark.parametrize("step", [2, 4, 8])
def test_a_step_with_two_lines_in_the_window_or_at_its_edge_takes_the_number(
    name: str, value: float, step: int
) -> None:
    samples = parse(log(name, {step: value}), LogGrammar(("*.out",), (PATTERNS[name],))).samples
    with pytest.raises(
        DataError,
        match=rf"expected one line for step {step}, got one with \w+ {value:g} and one with",
    ) as caught:
        throughput(samples, TERMS)
    assert caught.value.kind == "result_invalid"


def test_all_steps_that_repeat_are_counted() -> None:
    samples = parse(
        log("st", {step: 0.25 for step in range(1, 9)}), LogGrammar(("*.out",), (PATTERNS["st"],))
    ).samples
    with pytest.raises(DataError, match="6 more lines are for a step that has one"):
        throughput(samples, TERMS)


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("st", {4: 0.5}),
        ("rate", {4: 20.0, 8: 20.0}),
        ("t", {4: 102.0}),
        ("st", {1: 9.0}),
        ("t", {1: 100.1}),
    ],
)
def test_a_line_that_is_printed_again_as_it_is_or_before_the_window_takes_nothing(
    name: str, again: dict[int, float]
) -> None:
    samples = parse(log(name, again), LogGrammar(("*.out",), (PATTERNS[name],))).samples
    assert throughput(samples, TERMS).samples_per_s == pytest.approx(20.0)
    speeds = tempo(samples, TERMS)
    assert speeds and all(speed == pytest.approx(20.0) for _, speed in speeds.points[-6:])


def test_the_example_holds() -> None:
    results = doctest.testmod(repeated_steps)
    assert results.attempted and not results.failed

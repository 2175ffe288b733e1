"""A log whose times contradict the arrival of its lines is refused or qualified, and says what its
grammar lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.logs import LogGrammar, StepSample
from orchestrator.logs.parse import parse
from orchestrator.results.numbers.clock import Clock, Sizes, verify_clock
from orchestrator.results.numbers.throughput import Terms, throughput, window_of

STEPS, STEP_S = 40, 0.25
TERMS = Terms(warmup_steps=4, steps=STEPS, global_batch=64)
FOUR_BY_EIGHT = Sizes(nodes=4, ranks=32)


def arrivals(step_s: float = STEP_S, every_s: float = 1.0) -> list[tuple[float, int]]:
    """Return what a node sees that looks at its log once a second."""
    looks = int(STEPS * step_s / every_s)
    return [
        (500.0 + number * every_s, int(number * every_s / step_s)) for number in range(1, looks + 1)
    ]


def doubts(samples: Sequence[StepSample], terms: Terms, clock: Clock, sizes: Sizes) -> list[str]:
    return verify_clock(
        samples, throughput(samples, terms), window_of(samples, terms), clock, sizes
    )


def log(name: str, value: float) -> list[StepSample]:
    return [StepSample(step, **{name: value}) for step in range(1, STEPS + 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "grammar"),
    [
        (
            log("step_time_s", STEP_S * 1000),
            "if step_time_s is in ms, write units: {step_time_s: ms} under log:",
        ),
        (
            log("step_time_s", STEP_S * 1e6),
            "if step_time_s is in us, write units: {step_time_s: us} under log:",
        ),
        (
            log("steps_per_s", 60 / STEP_S),
            "if steps_per_s is per min, write units: {steps_per_s: min} under log:",
        ),
        (
            log("steps_per_s", 4 / STEP_S),
            "if steps_per_s is the sum over all nodes, write summed_over: {steps_per_s: nodes}",
        ),
        (
            log("steps_per_s", 32 / STEP_S),
            "if steps_per_s is the sum over all ranks, write summed_over: {steps_per_s: ranks}",
        ),
        (
            log("samples_per_s", 64 / STEP_S / 4),
            "if samples_per_s is of one node, write scope: node under log:",
        ),
        (
            log("samples_per_s", 64 / STEP_S / 32),
            "if samples_per_s is of one process, write scope: process under log:",
        ),
        (log("step_time_s", STEP_S / 2), "see units, scope and summed_over of the log grammar"),
    ],
)
def test_a_wrong_unit_is_refused_with_what_to_write(
    samples: Sequence[StepSample], grammar: str
) -> None:
    with pytest.raises(DataError, match="expected times that agree with the clock") as refused:
        doubts(samples, TERMS, Clock(arrivals()), FOUR_BY_EIGHT)
    # What a correction of the grammar mends is read again, not measured again.
    kind = "log_unmatched" if grammar.startswith("if ") else "result_invalid"
    assert refused.value.hint.startswith(grammar) and refused.value.kind == kind


def test_a_window_longer_than_the_run_is_refused_even_if_no_line_was_seen_to_come() -> None:
    with pytest.raises(
        DataError, match="got 9000.0 s for the window of a run of 14.0 s"
    ) as refused:
        doubts(log("step_time_s", STEP_S * 1000), TERMS, Clock(life_s=14.0), Sizes(1, 1))
    assert "units: {step_time_s: ms}" in refused.value.hint


@pytest.mark.parametrize(
    ("life_s", "resolution_s", "is_refused"),
    # 36 steps of 64 samples in 1 s are 2304 samples/s, 1152 of each rank: 2304 / 1152 = 2 s.
    # Of a life of 1.5 s the window is at most 1.1 · 1.5 = 1.65 s, of 1.9 s at most 2.09 s.
    [(1.5, 0.0, True), (1.9, 0.0, False), (1.5, 0.3, True), (1.5, 1.0, False)],
)
def test_the_rate_of_one_rank_as_that_of_all_is_refused_in_a_window_of_a_second(
    life_s: float, resolution_s: float, is_refused: bool
) -> None:
    samples, two = log("samples_per_s", 1152.0), Sizes(1, 2)
    measured, window = throughput(samples, TERMS), window_of(samples, TERMS)
    assert measured.seconds == pytest.approx(2.0)
    clock = Clock(life_s=life_s)
    if not is_refused:
        assert verify_clock(samples, measured, window, clock, two, resolution_s) == []
        return
    with pytest.raises(DataError, match="got 2.0 s for the window of a run of 1.5 s") as refused:
        verify_clock(samples, measured, window, clock, two, resolution_s)
    assert (
        refused.value.hint == "if samples_per_s is of one process, write scope: process under log:"
    )


@pytest.mark.parametrize("every_s", [1.0, 3.0])  # as they are printed, or in blocks
@pytest.mark.parametrize("factor", [1.0, 0.95, 1.05])
def test_times_that_agree_are_not_doubted(factor: float, every_s: float) -> None:
    samples = log("step_time_s", STEP_S * factor)
    assert (
        doubts(samples, TERMS, Clock(arrivals(every_s=every_s), life_s=30.0), FOUR_BY_EIGHT) == []
    )


def test_a_smaller_difference_is_noted() -> None:
    terms = Terms(warmup_steps=40, steps=400, global_batch=64)
    samples = [StepSample(step, step_time_s=0.2) for step in range(1, 401)]
    looks = [(float(second), 4 * second) for second in range(1, 100)]
    notes = doubts(samples, terms, Clock(looks), Sizes(1, 1))
    assert notes == [
        "the log disagrees with the clock: 71.2 s for steps 41…396, whose lines arrived within 89.0 s"
    ]


@pytest.mark.parametrize("looks", [[], [(1.0, 40)], [(1.0, 2), (9.0, 3)], [(1.0, 10), (2.0, 14)]])
def test_too_few_looks_decide_nothing(looks: list[tuple[float, int]]) -> None:
    assert doubts(log("step_time_s", 0.5), TERMS, Clock(looks), Sizes(1, 1)) == []


@pytest.mark.parametrize(
    ("line", "grammar"),
    [
        ("step {step} took 250.0 ms,", {"units": {"step_time_s": "ms"}}),
        ("step {step}: 240 steps/min,", {"units": {"steps_per_s": "min"}}),
        ("step {step}: 16 steps/s,", {"summed_over": {"steps_per_s": "nodes"}}),
        (
            "step {step}: 8 samples/s, 64 samples,",
            {"scope": "process", "summed_over": {"samples": "ranks"}},
        ),
        (
            "step {step}: 256 samples/s,",
            {"scope": "process", "summed_over": {"samples_per_s": "nodes"}},
        ),
        ("step {step}: 131072 tok/s", {}),
        ("step {step}: 4096 tok/s", {"scope": "process"}),
        (
            "step {step}: 131072 tok/s",
            {"scope": "process", "summed_over": {"tokens_per_s": "ranks"}},
        ),
    ],
)
def test_a_grammar_says_units_and_what_is_added_up(line: str, grammar: dict[str, Any]) -> None:
    patterns = (
        "step (?P<step>[0-9]+) took (?P<step_time_s>[0-9.]+) ms,",
        "step (?P<step>[0-9]+): (?P<steps_per_s>[0-9.]+) steps/",
        "step (?P<step>[0-9]+): (?P<samples_per_s>[0-9.]+) samples/s, (?P<samples>[0-9]+) samples,",
        "step (?P<step>[0-9]+): (?P<samples_per_s>[0-9.]+) samples/s,$",
        "step (?P<step>[0-9]+): (?P<tokens_per_s>[0-9.]+) tok/s",
    )
    rules = LogGrammar(files=("*",), patterns=patterns, **grammar)
    text = "".join(f"{line.format(step=step)}\n" for step in range(1, STEPS + 1))
    terms = Terms.of(Spec(), rules)  # type: ignore[arg-type]
    samples = parse(text.encode(), rules).samples
    assert throughput(samples, terms).samples_per_s == pytest.approx(64 / STEP_S)
    assert doubts(samples, terms, Clock(arrivals()), FOUR_BY_EIGHT) == []


class Spec:
    """The size of a run on four nodes of eight devices."""

    warmup_steps, steps, global_batch, nodes, world_size, items = 4, STEPS, 64, 4, 32, 512

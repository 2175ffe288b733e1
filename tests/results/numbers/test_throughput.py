"""The definitions of docs/metrics.md: windows, evidence, rounding, scaling."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import DataError
from orchestrator.logs.steps import StepSample
from orchestrator.results.numbers import throughput as stats
from orchestrator.results.numbers.throughput import (
    Terms,
    Throughput,
    disagreement,
    mean,
    median,
    round_like_numpy,
    scaling_efficiency,
    speed_of_line,
    speedup,
    spread,
    throughput,
    window_of,
)
from tests.support.features import needs

TERMS = Terms(warmup_steps=2, steps=6, global_batch=32)
CLOCK = [StepSample(step, timestamp=50.0 + 0.25 * step) for step in range(7)]


def by(name: str, values: dict[int, float]) -> list[StepSample]:
    fields: list[dict[str, Any]] = [{"step": step, name: value} for step, value in values.items()]
    return [StepSample(**one) for one in fields]


@pytest.mark.parametrize(
    ("name", "samples", "terms", "speed"),
    [
        ("clock", CLOCK, {}, 128.0),
        (
            "clock beats the step times beside it",
            [replace(s, step_time_s=9.0) for s in CLOCK],
            {},
            128.0,
        ),
        ("clock every second step", CLOCK[::2], {}, 128.0),
        ("clock at the edges only", [CLOCK[2], CLOCK[6]], {}, 128.0),
        ("since the start", by("elapsed_s", {s: 7.0 + 0.25 * s for s in range(1, 7)}), {}, 128.0),
        (
            "since the start, no warm-up",
            by("elapsed_s", {s: 0.25 * s for s in range(1, 7)}),
            {"warmup_steps": 0},
            128.0,
        ),
        ("step times", by("step_time_s", {s: 0.25 for s in range(1, 7)}), {}, 128.0),
        (
            "step times from the window on",
            by("step_time_s", {s: 0.25 for s in range(3, 7)}),
            {},
            128.0,
        ),
        ("step time of every second step", by("step_time_s", {2: 9.0, 4: 0.2, 6: 0.3}), {}, 128.0),
        (
            "clock without the line before the window",
            [replace(s, step_time_s=0.5) for s in CLOCK[3:]],
            {},
            64.0,
        ),
        (
            "global rates by time",
            by("samples_per_s", {3: 100.0, 4: 300.0, 5: 100.0, 6: 300.0}),
            {},
            150.0,
        ),
        (
            "rates of one process",
            by("samples_per_s", {s: 32.0 for s in range(3, 7)}),
            {"ranks": 4},
            128.0,
        ),
        (
            "steps per second of one process",
            by("steps_per_s", {s: 4.0 for s in range(3, 7)}),
            {"ranks": 4},
            128.0,
        ),
        ("cumulative rates", by("samples_per_s", {2: 32.0, 6: 64.0}), {"cumulative": True}, 128.0),
        (
            "cumulative from the start",
            by("samples_per_s", {3: 48.0, 6: 64.0}),
            {"cumulative": True, "warmup_steps": 0},
            64.0,
        ),
    ],
)
def test_evidence(
    name: str, samples: list[StepSample], terms: dict[str, Any], speed: float
) -> None:
    assert throughput(samples, replace(TERMS, **terms)).samples_per_s == pytest.approx(speed), name


def test_the_result_says_samples_seconds_and_steps() -> None:
    assert throughput(CLOCK, TERMS) == Throughput(128.0, 128, 1.0, 3, 6)


def test_a_line_shows_the_speed_of_the_run_by_its_rate_or_its_time() -> None:
    terms = Terms(2, 12, 64, ranks=4, steps_in_one=2)
    assert speed_of_line(StepSample(3, samples_per_s=16.0, step_time_s=1.0), terms) == 64.0
    assert speed_of_line(StepSample(3, steps_per_s=4.0), terms) == 128.0
    assert speed_of_line(StepSample(3, step_time_s=0.5), terms) == 128.0
    assert speed_of_line(StepSample(3, timestamp=9.0), terms) is None


def test_logged_sample_counts_are_evidence_and_per_process_ones_count_for_all_ranks() -> None:
    counted = [replace(sample, samples=16) for sample in CLOCK]
    assert throughput(counted, TERMS).samples == 64
    assert throughput(counted, replace(TERMS, ranks=4)).samples == 256


def test_lines_outside_the_window_change_nothing() -> None:
    slow_start = (
        [replace(s, timestamp=10.0 + s.step) for s in CLOCK[:2]]
        + CLOCK[2:]
        + [StepSample(7, timestamp=1e6)]
    )
    assert throughput(slow_start, TERMS) == throughput(CLOCK, TERMS)


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([], "expected lines for steps 3…6, found 0; the log has none at all"),
        (CLOCK[:3], "expected lines for steps 3…6, found 0; the last is 2"),
        (
            CLOCK[:6],
            "expected 4 lines for steps 3…6, found 3, the last for step 5; the first missing is step 6",
        ),
        (CLOCK[:4] + CLOCK[5:], "found 3, the last for step 6; the first missing is step 4"),
        ([CLOCK[0], CLOCK[6]], "expected a line for step 2 or several for steps 3…6"),
        (
            [StepSample(6, samples_per_s=64.0)],
            "expected a line for step 2 or several for steps 3…6",
        ),
        (
            [StepSample(1, steps_per_s=2.0), StepSample(6, steps_per_s=2.0)],
            "got one line: its time has no start",
        ),
        ([CLOCK[2], CLOCK[5]], "found 1, the last for step 5"),
        ([CLOCK[2], CLOCK[3], CLOCK[6]], "the first missing is step 4"),
        ([StepSample(s) for s in range(7)], "expected a time or a rate"),
        (CLOCK[:4] + CLOCK[3:], "expected one line for step 3, got one with timestamp"),
        (CLOCK[::-1], "expected each step once and in order, got steps that go back"),
    ],
)
def test_what_is_missing_is_an_error_that_counts(samples: list[StepSample], text: str) -> None:
    with pytest.raises(DataError, match=text.replace("(", r"\(")) as caught:
        throughput(samples, TERMS)
    with pytest.raises(DataError, match=text.replace("(", r"\(")):
        window_of(samples, TERMS)
    assert caught.value.kind in ("result_invalid", "log_unmatched")


@pytest.mark.parametrize(
    "name", ["timestamp", "elapsed_s", "step_time_s", "samples_per_s", "steps_per_s"]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308, 5e-324])
@pytest.mark.parametrize("cumulative", [False, True])
def test_a_time_that_is_not_finite_or_does_not_grow_is_an_error(
    name: str, bad: float, cumulative: bool
) -> None:
    values = {s: 10.0 + s if name in ("timestamp", "elapsed_s") else 2.0 for s in range(2, 7)}
    samples = by(name, values | {5: bad})
    try:
        measured = throughput(samples, replace(TERMS, cumulative=cumulative))
    except DataError as error:
        assert error.kind == "result_invalid"
    else:  # a step of 5e-324 s is absurd, but it is above zero and its window is not
        assert (name, bad) in {("step_time_s", 5e-324)} or cumulative
        assert 0 < measured.samples_per_s < 1e15


def test_a_window_without_samples_is_no_speed() -> None:
    with pytest.raises(DataError, match="a speed above 0"):
        throughput([replace(sample, samples=0) for sample in CLOCK], TERMS)


steps_of_a_run = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)


@given(
    steps_of_a_run, st.integers(1, 4096), st.sampled_from(["timestamp", "elapsed_s", "step_time_s"])
)
def test_doubling_times_halves_throughput(times: list[float], batch: int, name: str) -> None:
    def run(factor: float) -> Throughput:
        ends = [factor * math.fsum(times[:i]) for i in range(len(times) + 1)]
        values = [factor * time for time in [0.0, *times]] if name == "step_time_s" else ends
        samples = by(name, dict(enumerate(values)))
        return throughput(samples, Terms(warmup_steps=0, steps=len(times), global_batch=batch))

    assert run(2.0).samples_per_s == pytest.approx(run(1.0).samples_per_s / 2)


@given(steps_of_a_run, st.floats(-1e6, 1e6))
def test_when_the_clock_started_does_not_matter(times: list[float], start: float) -> None:
    ends = [start + math.fsum(times[:i]) for i in range(len(times) + 1)]
    terms = Terms(warmup_steps=0, steps=len(times), global_batch=8)
    assert throughput(by("timestamp", dict(enumerate(ends))), terms).seconds == pytest.approx(
        math.fsum(times), rel=1e-5, abs=1e-6
    )


@given(steps_of_a_run)
def test_throughput_lies_between_the_slowest_and_the_fastest_step(times: list[float]) -> None:
    samples = by("step_time_s", dict(enumerate(times, start=1)))
    speed = throughput(
        samples, Terms(warmup_steps=0, steps=len(times), global_batch=8)
    ).samples_per_s
    assert 8 / max(times) * (1 - 1e-9) <= speed <= 8 / min(times) * (1 + 1e-9)


def test_a_step_takes_as_long_whatever_the_distance_of_lines() -> None:
    assert [line.seconds / line.steps for line in window_of(CLOCK, TERMS)] == [0.25] * 4
    assert [line.seconds / line.steps for line in window_of(CLOCK[::2], TERMS)] == [0.25] * 2


# Runs in their printed order and the average printed for them; each one tells two ways of summing
# or rounding apart.
PUBLISHED = [
    ([353.77, 350.54, 354.28, 352.5, 351.55, 350.77], 352.23),
    (
        [8940.3, 8468.23, 8781.78, 8648.47, 8851.62, 8654.31, 9046.34, 8973.6, 8515.95, 8853.15],
        8773.38,
    ),
    ([9243.73, 9333.09, 9329.65, 9337.39, 9295.01, 9332.23], 9311.85),
]


@pytest.mark.parametrize(("runs", "average"), PUBLISHED)
def test_published_averages_are_reproduced_to_the_last_digit(
    runs: list[float], average: float
) -> None:
    assert round_like_numpy(mean(runs)) == average


def test_published_rounds_as_numpy_does() -> None:
    numpy = pytest.importorskip("numpy")
    for value in (2725.415, 352.235, 0.125, 0.375, 2.675, 1e9 + 0.005, -1.005, 24.875):
        assert round_like_numpy(value) == float(numpy.round(value, 2)), value


def test_median_of_an_even_number_is_between_the_middle_two() -> None:
    assert round_like_numpy(median(PUBLISHED[1][0])) == 8816.7
    assert median([3.0, 1.0, 2.0]) == 2.0


def test_no_values_have_no_mean_and_no_median() -> None:
    for statistic in (mean, median):
        with pytest.raises(ValueError, match="no values"):
            statistic([])


@given(st.floats(1e-3, 1e9), st.integers(1, 4096))
def test_the_baseline_has_speedup_one_and_perfect_scaling_efficiency_one(
    speed: float, world_size: int
) -> None:
    assert speedup(speed, speed) == 1.0
    assert scaling_efficiency(speedup(speed * world_size, speed), world_size) == pytest.approx(1.0)


def test_spread_is_relative_to_the_median() -> None:
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.3)
    assert spread([5.0]) == 0.0


def test_the_examples_of_the_definitions_hold() -> None:
    results = doctest.testmod(stats)
    assert results.attempted and not results.failed


@pytest.mark.parametrize(
    "page",
    [
        "metrics",
        "repeats",
        "notes",
        "compare",
        pytest.param("explain", marks=needs("explain")),
        "slow-ranks",
    ],
)
def test_the_examples_of_a_page_hold(page: str) -> None:
    results = doctest.testfile(
        str(Path(__file__).parents[3] / "docs" / f"{page}.md"), module_relative=False
    )
    assert results.attempted and not results.failed


@given(st.floats(0.01, 10), st.floats(0.5, 2), st.integers(1, 512))
def test_rates_that_follow_from_batch_and_time_never_disagree(
    step_s: float, wrong: float, batch: int
) -> None:
    log = [
        StepSample(step, timestamp=1e6 + step * step_s, samples_per_s=batch / step_s * wrong)
        for step in range(0, 121, 20)
    ]
    found = disagreement(log, Terms(warmup_steps=20, steps=120, global_batch=batch))
    assert (
        (found is None) == (1 / 1.05 < wrong < 1.05)
        or abs(wrong - 1.05) < 1e-4
        or abs(1 / wrong - 1.05) < 1e-4
    )
    assert found is None or found == ("rates", pytest.approx(batch / step_s * wrong))


def test_a_step_time_that_stands_for_twenty_steps_proves_nothing() -> None:
    log = [StepSample(step, timestamp=step * 0.5, step_time_s=0.4) for step in range(0, 121, 20)]
    assert disagreement(log, Terms(warmup_steps=20, steps=120, global_batch=64)) is None

"""Where the steady state of a run begins, on series whose start is known;
benchmarks/steady_start.py has the shares of many more."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from orchestrator.results.numbers.steady_start import SteadyStart, steady_start
from orchestrator.results.numbers.throughput import Stretch


def lines(times: Sequence[float], each: int = 1) -> list[Stretch]:
    return [Stretch(each * step, each, each * time) for step, time in enumerate(times, start=1)]


def series(
    warm_up: Callable[[int], float], seed: int, steps: int = 120, noise: float = 0.02
) -> list[float]:
    chance = random.Random(seed)
    return [0.25 * math.exp(chance.gauss(0, noise)) * warm_up(step) for step in range(1, steps + 1)]


def starts(warm_up: Callable[[int], float], count: int = 20) -> list[int | None]:
    found = [steady_start(lines(series(warm_up, seed))) for seed in range(count)]
    return [start.first_step if start else -1 for start in found]


def test_noise_alone_is_steady_from_the_first_step() -> None:
    assert starts(lambda step: 1.0) == [1] * 20


def test_a_level_shift_is_found_to_the_step_or_two() -> None:
    assert all(
        start and 39 <= start <= 43 for start in starts(lambda step: 1.1 if step <= 40 else 1.0)
    )
    assert all(
        start and 10 <= start <= 12 for start in starts(lambda step: 1.2 if step <= 10 else 1.0)
    )


def test_a_slow_first_step_is_warm_up() -> None:
    assert starts(lambda step: 50.0 if step == 1 else 1.0) == [2] * 20


def test_a_run_that_warms_up_slowly_is_steady_when_it_is_near_its_level() -> None:
    found = starts(lambda step: 1 + 0.5 * math.exp(-step / 15))
    assert all(start and 25 <= start <= 60 for start in found), found


def test_slower_steps_in_the_middle_are_no_warm_up() -> None:
    assert starts(lambda step: 1.3 if 60 <= step < 70 else 1.0) == [1] * 20
    assert starts(lambda step: 20.0 if step in (50, 90) else 1.0) == [1] * 20


@pytest.mark.parametrize(
    "drift",
    [lambda step: 1 + step / 100, lambda step: 1.0 if step <= 100 else 1.3],
    ids=["slower all the time", "at the end"],
)
def test_a_run_that_ends_at_another_level_than_most_of_it_has_no_steady_state(
    drift: Callable[[int], float],
) -> None:
    assert starts(drift, 10) == [None] * 10


def test_levels_that_differ_by_less_than_two_percent_are_one() -> None:
    assert starts(lambda step: 1.01 if step <= 40 else 1.0, 5) == [1] * 5


def test_lines_that_stand_for_several_steps_count_by_their_first_step() -> None:
    found = steady_start(lines(series(lambda line: 1.3 if line <= 20 else 1.0, 1, 60), each=10))
    assert found and found.first_step == 201 and found.step_s == pytest.approx(0.25, rel=0.02)


def test_a_long_run_is_searched_at_some_distance() -> None:
    found = steady_start(lines(series(lambda step: 1.3 if step <= 4000 else 1.0, 1, 20_000)))
    assert found and found.first_step and abs(found.first_step - 4001) <= 2 * 20_000 / 120


def test_equal_times_are_steady_and_a_few_are_nothing_to_judge() -> None:
    assert steady_start(lines([0.5] * 50)) == SteadyStart(1, 0.5)
    assert steady_start(lines([0.5] * 19)) is None
    shifted = steady_start(lines([0.6] * 30 + [0.5] * 60))
    assert shifted == SteadyStart(31, 0.5)


def test_a_window_lies_in_the_steady_state_if_that_began_before() -> None:
    assert SteadyStart(21, 0.5).holds_from(21) and not SteadyStart(22, 0.5).holds_from(21)
    assert not SteadyStart(None, 0.5).holds_from(1000)

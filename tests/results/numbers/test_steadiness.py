"""Windows that are steady, and windows that are not: what is found, how often, and in which words."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from orchestrator.results.numbers.steadiness import slow_steps, stretch_apart, trend, unsteady
from orchestrator.results.numbers.throughput import Stretch


def white(chance: random.Random, steps: int = 100) -> list[float]:
    return [0.25 * math.exp(chance.gauss(0, 0.03)) for _ in range(steps)]


def correlated(chance: random.Random, steps: int = 100, carried: float = 0.4) -> list[float]:
    noise, times = 0.0, []
    for _ in range(steps):
        noise = carried * noise + chance.gauss(0, 0.02)
        times.append(0.25 * math.exp(noise))
    return times


def heavy_tailed(chance: random.Random, steps: int = 100) -> list[float]:
    """Student's t with 3 degrees of freedom."""
    return [
        0.25 * math.exp(0.02 * chance.gauss(0, 1) / math.sqrt(chance.gammavariate(1.5, 2) / 3))
        for _ in range(steps)
    ]


def periodic(chance: random.Random, steps: int = 100) -> list[float]:
    return [
        time * (1.15 if step % 10 == 0 else 1) for step, time in enumerate(white(chance, steps))
    ]


NOISES = [white, correlated, heavy_tailed, periodic]


def lines(times: Sequence[float], first: int = 21) -> list[Stretch]:
    return [Stretch(step, 1, time) for step, time in enumerate(times, start=first)]


def slower(times: Sequence[float], places: range, by: float) -> list[float]:
    return [time * (by if place in places else 1) for place, time in enumerate(times)]


@pytest.mark.parametrize("noise", NOISES)
def test_a_steady_window_is_left_alone(noise: Callable[[random.Random], list[float]]) -> None:
    chance, windows = random.Random(3), 300
    assert sum(bool(unsteady(lines(noise(chance)))) for _ in range(windows)) <= 0.01 * windows


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("places", "by"),
    [
        (range(50, 100), 1.10), (range(70, 100), 1.20), (range(30), 1.20), (range(40, 70), 1.20),
        (range(15), 10), (range(60, 75), 10), (range(3, 93, 6), 10),
        (range(1), 100), (range(57, 58), 100), (range(99, 100), 100),
    ],
)  # fmt: skip
def test_a_stall_a_shift_and_a_late_warm_up_are_found_wherever_they_lie(
    noise: Callable[[random.Random], list[float]], places: range, by: float
) -> None:
    chance, windows = random.Random(3), 20
    found = [unsteady(lines(slower(noise(chance), places, by))) for _ in range(windows)]
    assert sum(map(bool, found)) >= (0.95 if by > 2 else 0.85) * windows


def test_the_steps_and_their_cost_are_named() -> None:
    times = white(random.Random(1))
    (late,) = unsteady(lines(slower(times, range(30), 1.2)))
    assert late.startswith(
        "steps 21-50 took 20.9% longer per step than the others; that is 1.55 s, 5.9"
    ) and late.endswith("% of the window; more --warmup-steps may be needed")
    (shift,) = unsteady(lines(slower(times, range(50, 100), 1.1)))
    assert shift.startswith("steps 71-120 took ") and shift.endswith(
        "that is 1.1 s, 4.2% of the window"
    )
    (stall,) = unsteady(lines(slower(times, range(57, 58), 100)))
    assert stall.startswith("1 of 100 steps took ") and ": step 78; that is 24." in stall
    (several,) = unsteady(lines(slower(times, range(2, 92, 6), 10)))
    assert ": steps 23, 29, 35, 41, 47 and 10 more; that is " in several
    # A stall hides no shift, and of lines that stand for ten steps all ten are named.
    assert len(unsteady(lines(slower(slower(times, range(50, 100), 1.2), range(7, 8), 100)))) == 2
    (ten,) = unsteady(
        [Stretch(10 * line + 10, 10, 50.0 if line == 4 else 5.0) for line in range(10)]
    )
    assert (
        ten
        == "10 of 100 steps took 10 times as long as the median: steps 41-50; that is 45 s, 47.4% of the window"
    )


@pytest.mark.parametrize(
    ("places", "by", "named"),
    [
        (range(96, 100), 1.24, "steps 117-120 took "),
        (range(97, 100), 1.24, "steps 118-120 took "),
        (range(4), 1.24, "steps 21-24 took "),
        (range(40, 44), 1.24, "steps 61-64 took "),
        (range(90, 100), 1.24, "steps 111-120 took "),
        (range(4, 100), 1.24, "steps 25-120 took "),
        (range(96), 1.24, "steps 21-116 took "),
    ],
)
def test_exactly_the_slow_steps_are_named_with_their_own_share(
    places: range, by: float, named: str
) -> None:
    """A stretch of 3 or 4 steps is shorter than the shortest that is tested, and no other steps are
    added to it.
    """
    chance, found = random.Random(5), []
    for _ in range(200):
        times = [0.5 * math.exp(chance.gauss(0, 0.005)) for _ in range(100)]
        found += unsteady(lines(slower(times, places, by)))
    assert len(found) >= 5 and all(text.startswith(named) for text in found)
    shares = [float(text.split(" took ")[1].partition("%")[0]) for text in found]
    assert all(share == pytest.approx(100 * (by - 1), abs=1.5) for share in shares)


def test_a_single_slow_step_does_not_draw_a_stretch_to_it() -> None:
    times = slower([0.5 + 0.001 * (place % 3) for place in range(100)], range(30, 60), 1.2)
    times[65] *= 1.9
    (text,) = unsteady(lines(times))
    assert text.startswith("steps 51-80 took 20.0% longer")


def test_what_costs_less_than_two_percent_is_not_reported() -> None:
    times = [0.5] * 100
    assert (
        unsteady(lines(times)) == () and unsteady(lines(slower(times, range(50, 100), 1.015))) == ()
    )
    assert unsteady(lines(slower(times, range(50, 100), 1.03)))
    assert unsteady(lines(slower(times, range(3, 4), 2.9))) == () and unsteady(
        lines(slower(times, range(3, 4), 3.2))
    )
    assert slow_steps([1.0, 1.0, 9.0]) == [] and stretch_apart([1.0] * 9 + [2.0] * 10) is None
    assert unsteady([]) == () == unsteady(lines([1.0]))


def test_step_times_that_are_printed_coarsely_are_steady() -> None:
    chance = random.Random(3)
    coarse = [lines([max(0.01, round(time, 2)) for time in white(chance)]) for _ in range(200)]
    assert sum(bool(unsteady(window)) for window in coarse) <= 4


def test_a_long_window_is_searched_in_parts() -> None:
    chance = random.Random(3)
    times = white(chance, 12345)
    assert unsteady(lines(times)) == ()
    (text,) = unsteady(lines(slower(times, range(4000, 6000), 1.1)))
    first, last = map(int, text.split()[1].split("-"))
    assert abs(first - 4021) <= 130 and abs(last - 6020) <= 130


def test_a_steady_window_is_as_good_as_never_taken_for_a_drifting_one_and_a_drifting_one_is_found() -> (
    None
):
    chance = random.Random(3)
    said, found, windows = 0, 0, 2000
    for _ in range(windows):
        noise, times = 0.0, []
        for _ in range(100):
            noise = 0.5 * noise + chance.gauss(0, 0.02)
            times.append(0.25 * math.exp(noise))
        said += trend(times) is not None
        drifting = [time * (1 + 0.15 * step / 100) for step, time in enumerate(times)]
        found += (trend(drifting) or 0.0) > 0.02
    assert said <= 0.01 * windows and found >= 0.95 * windows


def test_few_steps_and_a_jump_have_no_trend_or_one() -> None:
    assert trend([1.0] * 19) is None and trend([float(step) for step in range(1, 20)]) is None
    assert trend([1.0] * 200) is None and trend([1.0] * 100 + [1.001] * 100) is None
    assert trend([1.0] * 195 + [9.0] * 5) is None  # one slow moment is no drift

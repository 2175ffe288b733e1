"""Speeds and speedups of a bench whose machine drifts: from the planned order of the runs to the
intervals of the table.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.plan.folders import open_framework
from orchestrator.plan.schedule import Schedule
from orchestrator.results.numbers.drift import (
    STEADY,
    Estimate,
    Placed,
    drift_of,
    find_carry_over,
    typical_ratio,
    typical_value,
)
from orchestrator.results.numbers.intervals import (
    Interval,
    change_interval,
    interval,
    ratio_interval,
)
from orchestrator.results.numbers.throughput import Throughput
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Summary, summarize
from tests.support.cells import SPEC, cell

FOLDER = open_framework("pytorch")
SPEED, FASTER = 100.0, {"1n1g": 1.0, "1n2g": 1.9, "1n4g": 3.6}


@lru_cache
def planned(repeats: int, order: str) -> tuple[PlannedRun, ...]:
    cells = tuple(replace(SPEC, gpus=gpus) for gpus in (1, 2, 4))
    schedule = Schedule(order=order, repeats=repeats) if order else Schedule(repeats=repeats)
    return tuple(Bench("bench-1", cells, {"pytorch": FOLDER}, schedule).list_runs())


def speeds_of(
    repeats: int, drift: float, chance: random.Random, noise: float = 0.01, order: str = ""
) -> list[float]:
    """Return the speeds of the runs of a bench of three configurations that becomes slower by
    ``drift`` from its first run to its last.
    """
    runs = planned(repeats, order)
    return [
        SPEED
        * FASTER[run.spec.shape]
        * math.exp(chance.gauss(0, noise) - drift * (place / (len(runs) - 1) - 0.5))
        for place, run in enumerate(runs)
    ]


def table_of(
    repeats: int, drift: float, chance: random.Random, noise: float = 0.01, order: str = ""
) -> Summary:
    """Return the table of these runs."""
    results = []
    speeds = speeds_of(repeats, drift, chance, noise, order)
    for place, (run, speed) in enumerate(zip(planned(repeats, order), speeds, strict=True)):
        measured = Throughput(speed, 1, 1 / speed, 21, 120)
        results.append(
            RunResult(run.run_id, run.repeat, run.spec, False, "finished", measured, place=place)
        )
    return summarize(results)


def estimates_of(
    repeats: int, drift: float, chance: random.Random
) -> tuple[Estimate, Estimate | None]:
    """Return the speed of 1n1g and the speedup of 1n4g as a table of these runs has them."""
    by_shape: dict[str, dict[int, Placed]] = {}
    speeds = speeds_of(repeats, drift, chance)
    for place, (run, speed) in enumerate(zip(planned(repeats, ""), speeds, strict=True)):
        by_shape.setdefault(run.spec.shape, {})[run.repeat] = Placed(place, speed)
    found = drift_of([list(runs.values()) for runs in by_shape.values()])
    base, fast = by_shape["1n1g"], by_shape["1n4g"]
    return typical_value(list(base.values()), found), typical_ratio(fast, base, found)


@pytest.mark.parametrize("repeats", [3, 5])
@pytest.mark.parametrize("drift", [0.0, 0.03, 0.10])
def test_of_the_intervals_about_95_percent_hold_the_truth_whatever_the_drift(
    repeats: int, drift: float
) -> None:
    base, _, fast = table_of(repeats, drift, random.Random(5)).rows
    first, ratio = estimates_of(repeats, drift, random.Random(5))
    assert ratio and (base.value, base.interval) == (first.value, first.interval)
    assert (fast.speedup, fast.speedup_interval) == (ratio.value, ratio.interval)

    chance, campaigns, held, held_ratio = random.Random(5), 400, 0, 0
    for _ in range(campaigns):
        speed, ratio = estimates_of(repeats, drift, chance)
        assert speed.interval and ratio and ratio.interval
        held += speed.interval.low <= SPEED <= speed.interval.high
        held_ratio += ratio.interval.low <= FASTER["1n4g"] <= ratio.interval.high
    # Two and a half standard deviations of the count around 93 to 97 %.
    assert 0.90 <= held / campaigns <= 0.99 and 0.90 <= held_ratio / campaigns <= 0.99


@pytest.mark.parametrize("repeats", [2, 3, 4, 5, 8])
def test_without_noise_a_drift_falls_out_of_speed_and_speedup(repeats: int) -> None:
    base, middle, fast = table_of(repeats, 0.10, random.Random(1), noise=0.0).rows
    assert (middle.speedup, fast.speedup) == (pytest.approx(1.9), pytest.approx(3.6))
    assert base.value == pytest.approx(SPEED)
    if repeats > 2:  # also of a bench of an earlier version, whose order drifts with the machine
        fixed = table_of(repeats, 0.10, random.Random(1), noise=0.0, order="interleaved").rows
        assert fixed[2].speedup == pytest.approx(3.6)


def test_a_drift_is_reported_and_noise_is_not() -> None:
    chance = random.Random(2)
    said = [table_of(5, 0.05, chance) for _ in range(100)]
    notes = [text for table in said for text in table.notes]
    assert len(notes) >= 90 and all(
        "% slower during the bench; speed, speedup and their intervals" in text for text in notes
    )
    assert all(-0.1 < table.drifts["samples_per_s"] <= 0 for table in said)
    assert sum(bool(table_of(5, 0.0, chance).notes) for _ in range(100)) <= 4


def test_the_headline_lies_in_its_interval() -> None:
    chance = random.Random(3)
    for _ in range(200):
        for row in table_of(chance.choice([2, 3, 5, 6]), chance.choice([0.0, 0.1]), chance).rows:
            for value, ends in ((row.value, row.interval), (row.speedup, row.speedup_interval)):
                assert value and (not ends or ends.low <= value <= ends.high)


@given(
    st.lists(st.floats(50, 200), min_size=2, max_size=6),
    st.lists(st.floats(50, 200), min_size=2, max_size=6),
)
def test_without_drift_the_numbers_are_geometric_means_with_students_interval(
    a: list[float], b: list[float]
) -> None:
    ours, theirs = ({n: Placed(None, speed) for n, speed in enumerate(speeds)} for speeds in (a, b))
    speed, ratio = typical_value(list(ours.values())), typical_ratio(ours, theirs)
    assert speed.value == pytest.approx(math.exp(sum(map(math.log, a)) / len(a)))
    pairs = [
        (speed.interval, interval(a)),
        (ratio.interval if ratio else None, ratio_interval(dict(enumerate(a)), dict(enumerate(b)))),
    ]
    for ours_of, usual in pairs:
        assert (
            ours_of
            and usual
            and (ours_of.low, ours_of.high) == pytest.approx((usual.low, usual.high))
        )


def test_equal_repeats_give_exactly_their_value() -> None:
    nines, ones = ({n: Placed(n, value) for n in range(3)} for value in (9.0, 1.0))
    value, ratio = typical_value(list(nines.values())), typical_ratio(nines, ones)
    assert (
        ratio
        and [(each.value, each.interval) for each in (value, ratio)]
        == [(9.0, Interval(9.0, 9.0, 0.95))] * 2
    )
    assert change_interval([1.0, 1.0], [9.0, 9.0]) == Interval(9.0, 9.0, 0.95)


def test_few_runs_and_runs_of_other_benches_have_no_drift() -> None:
    def falling(places: Sequence[float]) -> list[Placed]:
        return [Placed(place, 100 - place) for place in places]

    assert (
        drift_of([falling([0, 3]), falling([1, 2])])
        == STEADY
        == drift_of([])
        == drift_of([falling([0, 1, 2, 3])])
    )
    assert drift_of([falling([0, 3, 4]), falling([1, 2, 5])]).slope == pytest.approx(-0.01, rel=0.1)
    assert drift_of([[Placed(None, 100 - n) for n in range(9)], falling([0, 1])]) == STEADY
    assert drift_of([[Placed(n, 100.0) for n in range(9)]]) == STEADY
    # A baseline of another bench is compared as it is.
    bench = {n: Placed(place, 200 * 0.99**place) for n, place in enumerate((0, 3, 4, 7, 8))}
    ratio = typical_ratio(
        bench, {n: Placed(None, 100.0) for n in range(5)}, drift_of([list(bench.values())])
    )
    assert ratio and ratio.value == pytest.approx(200 * 0.99**4 / 100)


def test_a_repeat_has_its_own_numbers_in_the_row() -> None:
    (row,) = summarize(cell("1n1g", [100.0, 104.0, 102.0])).rows
    assert [(run.run_id, run.repeat, run.value) for run in row.repeats] == [
        ("1n1g-1", 1, 100.0), ("1n1g-2", 2, 104.0), ("1n1g-3", 3, 102.0)
    ]  # fmt: skip
    assert row.deviation == pytest.approx(2.0)


def runs_with_noise(
    rng: random.Random, cells: int, repeats: int, carried: float
) -> list[list[Placed]]:
    """Make up configurations that run in turn, with noise of which a share comes from the run
    before.
    """
    runs: list[list[Placed]] = [[] for _ in range(cells)]
    noise = rng.gauss(0, 0.01)
    for place in range(cells * repeats):
        runs[place % cells].append(Placed(place, 100 * math.exp(noise)))
        noise = carried * noise + math.sqrt(1 - carried**2) * rng.gauss(0, 0.01)
    return runs


@pytest.mark.parametrize(("cells", "repeats"), [(1, 10), (2, 5), (4, 5)])
def test_independent_noise_is_not_carried_over(cells: int, repeats: int) -> None:
    rng = random.Random(2)
    runs = [runs_with_noise(rng, cells, repeats, 0.0) for _ in range(200)]
    assert sum(find_carry_over(each, drift_of(each)) is not None for each in runs) <= 6


def test_noise_that_carries_over_is_seen_in_benches_of_many_runs() -> None:
    rng = random.Random(3)
    runs = [runs_with_noise(rng, 4, 8, 0.8) for _ in range(60)]
    found = [find_carry_over(each, drift_of(each)) for each in runs]
    assert sum(each is not None for each in found) >= 40
    assert find_carry_over(runs[0][:1]) is None  # eight runs are too few to tell


def test_a_drift_that_is_no_line_is_carried_over() -> None:
    wave = [[Placed(n, 100 * math.exp(0.03 * math.sin(2 * math.pi * n / 20) + 0.002 * (-1) ** (n // 2)))
             for n in range(cell, 20, 2)] for cell in range(2)]  # fmt: skip
    assert (find_carry_over(wave, drift_of(wave)) or 0.0) > 0.5

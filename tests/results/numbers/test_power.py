"""The power of a comparison: what is said to be found in nine of ten is found in nine of ten."""

from __future__ import annotations

import doctest
import math
import random

import pytest

from orchestrator.results.numbers import power
from orchestrator.results.numbers.intervals import centre_of, chance, change_between
from orchestrator.results.numbers.power import (
    Scatter,
    least_change,
    repeats_to_exclude,
    repeats_to_find,
    scatter_of,
)

ONE_PERCENT = Scatter(0.01, freedom=1e6)


def bench(rng: random.Random, repeats: int, log: float = 0.0) -> list[float]:
    return [rng.gauss(log, 0.01) for _ in range(repeats)]


def is_found(before: list[float], after: list[float], margin: float) -> bool:
    """The rule of a comparison for a slowdown, of logarithms."""
    sides = [centre_of(before), centre_of(after)]
    assert sides[0] and sides[1]
    change = change_between(sides[0], sides[1])
    speeds = [[math.exp(log) for log in logs] for logs in (before, after)]
    return (
        change.chance < 0.05
        and change.interval.high < 1 - margin
        and chance(speeds[0], speeds[1]) < 0.05
    )


def test_the_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(power)
    assert results.attempted and not results.failed


@pytest.mark.parametrize(("repeats", "margin"), [(4, 0.0), (5, 0.0), (8, 0.0), (5, 0.03)])
def test_the_least_change_is_found_in_nine_of_ten(repeats: int, margin: float) -> None:
    rng = random.Random(5)
    change = math.log1p(-least_change(ONE_PERCENT, repeats, margin))
    found = sum(
        is_found(bench(rng, repeats), bench(rng, repeats, change), margin) for _ in range(400)
    )
    assert 0.86 <= found / 400 <= 0.94


def test_it_is_found_in_nine_of_ten_where_the_scatter_is_known_from_a_bench_alone() -> None:
    rng, found = random.Random(6), 0
    per_scatter = -math.log1p(-least_change(Scatter(0.01, 4), 5)) / 0.01
    for _ in range(600):
        earlier = centre_of(bench(rng, 5))
        assert earlier
        found += is_found(bench(rng, 5), bench(rng, 5, -per_scatter * earlier.scatter), 0.0)
    assert 0.86 <= found / 600 <= 0.94


def test_unchanged_benches_pass_in_nine_of_ten_with_the_repeats_that_are_said() -> None:
    rng, limit = random.Random(7), -math.log1p(-0.03)
    repeats = repeats_to_exclude(ONE_PERCENT, limit)
    assert repeats

    def passes(count: int) -> float:
        passed = 0
        for _ in range(400):
            sides = [centre_of(bench(rng, count)) for _ in range(2)]
            assert sides[0] and sides[1]
            passed += change_between(sides[0], sides[1]).interval.low >= 1 - 0.03
        return passed / 400

    assert passes(repeats) >= 0.87 and passes(repeats - 1) < 0.92


def test_more_repeats_find_less_and_what_they_find_takes_as_many() -> None:
    least = [least_change(ONE_PERCENT, repeats) for repeats in (4, 6, 12, 24)]
    assert least == sorted(least, reverse=True)
    assert [repeats_to_find(ONE_PERCENT, change * 1.01) for change in least] == [4, 6, 12, 24]
    assert repeats_to_find(ONE_PERCENT, 0.0001) is None and least_change(ONE_PERCENT, 3) == 1.0
    # What is lost to allowances: an uncertain scatter, a margin, other comparisons, the slope of a
    # drift.
    for dearer in (Scatter(0.01, 4), Scatter(0.02, 1e6), Scatter(0.01, 1e6, fitted=1.0)):
        assert least_change(dearer, 6) > least[1]
    assert (
        least_change(ONE_PERCENT, 6, comparisons=8) > least[1]
        and least_change(ONE_PERCENT, 6, 0.03) > 0.03 + least[1] / 2
    )


def test_the_scatter_of_two_benches_is_pooled_and_one_of_a_single_run_is_unknown() -> None:
    first, second = centre_of([0.0, 0.02]), centre_of([0.0, 0.01, 0.02])
    assert first and second
    pooled = scatter_of([(first, 2), (second, 3)])
    assert (
        pooled
        and pooled.freedom == 3
        and pooled.deviation == pytest.approx(math.sqrt((2e-4 + 2 * 1e-4) / 3))
    )
    assert scatter_of([]) is None

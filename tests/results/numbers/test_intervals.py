"""Confidence intervals against scipy's own, and what they promise: the share of them that hold the
truth.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.results.numbers.intervals import Interval, interval, outliers, ratio_interval

SPEEDS = st.lists(st.floats(1e-3, 1e6).map(lambda value: round(value, 3)), min_size=2, max_size=12)


@pytest.mark.filterwarnings("ignore:Precision loss")  # scipy's, of repeats that are all alike
@given(SPEEDS, st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_of_a_speed_is_that_of_the_mean_of_its_logarithms(
    speeds: list[float], level: float
) -> None:
    found = interval(speeds, level)
    expected = scipy.stats.ttest_1samp(
        [math.log(speed) for speed in speeds], 0.0
    ).confidence_interval(level)
    assert found and found.level == level
    if not math.isnan(expected.low):  # as it is where all are alike
        assert found.low == pytest.approx(math.exp(expected.low), rel=1e-6)
        assert found.high == pytest.approx(math.exp(min(expected.high, 700)), rel=1e-6)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(SPEEDS, SPEEDS)
def test_the_interval_of_a_speedup_is_that_of_pairs(
    speeds: list[float], others: list[float]
) -> None:
    count = min(len(speeds), len(others))
    found = ratio_interval(dict(enumerate(speeds)), dict(enumerate(others)))
    a, b = ([math.log(value) for value in values[:count]] for values in (speeds, others))
    expected = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert found
    if not math.isnan(expected.low):
        assert found.low == pytest.approx(math.exp(expected.low), rel=1e-6)


def test_too_few_repeats_have_no_interval_and_equal_ones_a_point() -> None:
    assert interval([]) is None and interval([7.0]) is None
    assert ratio_interval({1: 2.0, 2: 2.0}, {2: 1.0, 3: 1.0}) is None
    found = interval([8.0, 8.0, 8.0])
    assert found and found.low == pytest.approx(8.0) and found.high == pytest.approx(8.0)
    assert Interval(1.0, 2.0, 0.95).scale(0.25) == Interval(0.25, 0.5, 0.95)


@pytest.mark.parametrize("repeats", [3, 5, 10])
def test_of_many_intervals_about_95_percent_hold_the_truth_also_where_the_machine_drifts(
    repeats: int,
) -> None:
    chance, held, held_ratio, campaigns = random.Random(repeats), 0, 0, 2000
    for _ in range(campaigns):
        speeds = {n: 500.0 * math.exp(chance.gauss(0, 0.01)) for n in range(repeats)}
        drift = [math.exp(-0.03 * n) for n in range(repeats)]
        base = {n: 80.0 * drift[n] * math.exp(chance.gauss(0, 0.01)) for n in range(repeats)}
        fast = {n: 240.0 * drift[n] * math.exp(chance.gauss(0, 0.02)) for n in range(repeats)}
        one, two = interval(list(speeds.values())), ratio_interval(fast, base)
        assert one and two
        held += one.low <= 500.0 <= one.high
        held_ratio += two.low <= 3.0 <= two.high
    assert 0.93 <= held / campaigns <= 0.97 and 0.93 <= held_ratio / campaigns <= 0.97


@given(st.lists(st.floats(50, 200).map(lambda value: round(value, 1)), min_size=4, max_size=9))
def test_an_outlier_is_a_prediction_interval_of_the_others_away(speeds: list[float]) -> None:
    for place, speed in enumerate(speeds):
        others = [math.log(value) for value in (*speeds[:place], *speeds[place + 1 :])]
        spread = float(np.std(others, ddof=1)) * math.sqrt(1 + 1 / len(others))
        low, high = scipy.stats.t.interval(
            1 - 0.01 / len(speeds), len(others) - 1, np.mean(others), spread or 1e-12
        )
        outside = (
            not low - 1e-9 <= math.log(speed) <= high + 1e-9
            and abs(math.log(speed) - np.mean(others)) > 0.005
        )
        assert (place in outliers(speeds)) == outside


def test_outliers_are_found_and_seldom_seen_where_there_is_none() -> None:
    chance, said, found, campaigns = random.Random(5), 0, 0, 2000
    for _ in range(campaigns):
        speeds = [100.0 * math.exp(chance.gauss(0, 0.01)) for _ in range(5)]
        said += bool(outliers(speeds))
        found += outliers([*speeds[:4], speeds[4] * 0.7]) == [4]
    assert said <= 0.02 * campaigns and found >= 0.95 * campaigns
    assert (
        outliers([1.0, 1.0, 9.0]) == []
        and outliers([100.0] * 4 + [100.3]) == []
        and outliers([100.0] * 4 + [104.0]) == [4]
    )

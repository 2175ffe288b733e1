"""Student's t and Fisher's F against SciPy's, at few and many degrees of freedom, whole or not, and
far into its tails.
"""

from __future__ import annotations

import math

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.results.numbers.t_distribution import fisher, probability, student

FREEDOM = st.one_of(st.integers(1, 3000).map(float), st.floats(1, 2000))
CHANCE = st.one_of(st.floats(1e-12, 0.5), st.floats(1e-12, 0.5).map(lambda tail: 1 - tail))


@given(FREEDOM, CHANCE)
def test_a_quantile_is_scipys(freedom: float, chance: float) -> None:
    # Around 0 a quantile is as uncertain as the last digit of its probability; SciPy's own has
    # fewer digits there.
    assert student(freedom, chance) == pytest.approx(
        float(scipy.special.stdtrit(freedom, chance)), rel=1e-9, abs=3e-8
    )


@given(FREEDOM, st.floats(-40, 40))
def test_a_probability_is_scipys(freedom: float, t: float) -> None:
    if abs(t) < 1e-6:  # SciPy's own is wrong in the ninth digit there
        height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
        expected = 0.5 + t * height / math.sqrt(freedom * math.pi)
    else:
        expected = float(scipy.special.stdtr(freedom, t))
    assert probability(freedom, t) == pytest.approx(expected, rel=1e-9)


def test_a_probability_near_the_middle_has_all_digits() -> None:
    assert probability(1.0, 8.63e-09) == pytest.approx(0.5 + 8.63e-09 / math.pi, rel=1e-15)


def test_quantiles_end_at_infinity_and_are_symmetric() -> None:
    assert (student(3, 1.0), student(3, 0.0), student(3, 0.5)) == (math.inf, -math.inf, 0.0)
    assert student(7.5, 0.125) == -student(7.5, 0.875)
    assert student(math.inf, 0.975) == pytest.approx(1.959963985)


@given(st.floats(1e-6, 1e6), st.floats(1, 400), st.floats(1, 400))
def test_how_often_a_ratio_of_variances_is_exceeded_is_scipys(
    ratio: float, above: float, below: float
) -> None:
    assert fisher(ratio, above, below) == pytest.approx(
        float(scipy.special.fdtrc(above, below, ratio)), rel=1e-9, abs=1e-12
    )

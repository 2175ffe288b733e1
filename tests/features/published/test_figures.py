"""What a printed figure says of the true number, and whether two figures can be of one number."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.features.published.figures import Bounds, Printing, exact

NUMBERS = st.fractions(min_value=0, max_value=10**9, max_denominator=10**6)
PLACES = st.integers(0, 6)


@given(NUMBERS, PLACES)
def test_a_number_is_within_the_bounds_of_its_printed_figure(number: Fraction, places: int) -> None:
    point, unit = Bounds(number, number), 10**places
    assert Printing(places).bounds(float(Fraction(round(number * unit), unit))).meets(point)
    assert (
        Printing(places, "cut")
        .bounds(float(Fraction(math.floor(number * unit), unit)))
        .meets(point)
    )


@given(st.integers(0, 10**6), PLACES)
def test_one_more_in_the_last_place_is_another_number(figure: int, places: int) -> None:
    unit = 10**places
    number = Fraction(figure, unit)
    assert (
        not Printing(places, "cut")
        .bounds(figure / unit)
        .meets(Bounds(number + Fraction(1, unit), number + 1))
    )
    assert (
        not Printing(places)
        .bounds(figure / unit)
        .meets(Bounds(number + Fraction(51, 100 * unit), number + 1))
    )


@given(st.decimals(min_value=0, max_value=10**6, places=4))
def test_a_float_stands_for_the_decimal_number_that_was_written(number: object) -> None:
    assert exact(float(str(number))) == Fraction(str(number))


def test_the_end_of_a_cut_figure_is_not_one_of_its_numbers() -> None:
    cut = Printing(0, "cut").bounds(153)
    assert cut.meets(Bounds(Fraction(153), Fraction(153))) and not cut.meets(
        Bounds(Fraction(154), Fraction(154))
    )
    assert not cut.meets(Bounds(Fraction(152), Fraction(153), ends_below=True))

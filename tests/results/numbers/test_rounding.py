"""Numbers as they are shown: small ones keep the digits that tell them apart, and others are
rounded as published.
"""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.results.numbers import rounding
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.numbers.throughput import round_like_numpy


@given(st.floats(1e-12, 0.99))
def test_a_small_number_is_shown_within_half_of_its_third_digit(value: float) -> None:
    assert abs(float(format_number(value)) - value) <= 0.005 * value


@given(st.floats(1.0, 1e9))
def test_other_numbers_are_shown_with_two_decimals_as_published_tables_round(value: float) -> None:
    assert (
        format_number(value) == f"{round_like_numpy(value):.2f}"
        and format_number(-value) == f"-{format_number(value)}"
    )


def test_the_examples_hold() -> None:
    results = doctest.testmod(rounding)
    assert results.attempted and not results.failed

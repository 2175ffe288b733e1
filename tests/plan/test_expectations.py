"""Bounds on metrics, as they are written."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.plan.expectations import Expectation, expectation_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busbw >= 350", Expectation("busbw", ">=", 350.0)),
        (" busbw>=3.5e2 ", Expectation("busbw", ">=", 350.0)),
        ("lat <= 2.5 size=4096 dtype=fp16", Expectation("lat", "<=", 2.5, {"size": "4096", "dtype": "fp16"})),
    ],
)
def test_a_bound_and_where_it_applies(text: str, expected: Expectation) -> None:
    assert expectation_of(text) == expected
    assert expectation_of(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", "busbw", "busbw > 3", "busbw >= x", "busbw >= nan", "busbw >= 3 size", ">= 3", "b >= 3 =4", "a" * 400]
)
def test_what_is_no_bound_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--expect: expected a bound such as busbw >= 350, got ") as caught:
        expectation_of(text, "--expect")
    assert "nodes=2" in caught.value.hint


@given(st.text(max_size=60))
def test_no_text_brings_the_reader_down(text: str) -> None:
    with suppress(ConfigError):
        assert expectation_of(str(expectation_of(text))) == expectation_of(text)


def test_a_value_at_the_bound_is_within_it() -> None:
    assert expectation_of("a >= 2").is_met_by(2.0) and not expectation_of("a >= 2").is_met_by(1.999)
    assert expectation_of("a <= 2").is_met_by(2.0) and not expectation_of("a <= 2").is_met_by(2.001)

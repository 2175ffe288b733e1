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
        (
            "lat <= 2.5 size=4096 dtype=fp16",
            Expectation("lat", "<=", 2.5, {"size": "4096", "dtype": "fp16"}),
        ),
        (
            'iops>=1 test="random read" nodes=2',
            Expectation("iops", ">=", 1, {"test": "random read", "nodes": "2"}),
        ),
        (
            "iops >= 1 test='say \"hi\"' a=it's",
            Expectation("iops", ">=", 1, {"test": 'say "hi"', "a": "it's"}),
        ),
        (
            'iops >= 1 a="" b="""" c="x=1 y=2" d=e=f',
            Expectation("iops", ">=", 1, {"a": "", "b": '"', "c": "x=1 y=2", "d": "e=f"}),
        ),
    ],
)
def test_a_bound_and_where_it_applies(text: str, expected: Expectation) -> None:
    assert expectation_of(text) == expected
    assert expectation_of(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "busbw",
            "busbw > 3",
            "busbw >= x",
            "busbw >= nan",
            "busbw >= 3 size",
            ">= 3",
            "b >= 3 =4",
            "a" * 400,
        ),
        *(
            "b >= 3 test=random read",
            'b >= 3 test="random read',
            "b >= 3 test=\"random read'",
            'b >= 3 test="a"b',
            "b >= 3 a=",
        ),
    ],
)
def test_what_is_no_bound_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--expect: expected a bound such as busbw >= 350, got "
    ) as caught:
        expectation_of(text, "--expect")
    assert "nodes=2" in caught.value.hint and 'test="random read"' in caught.value.hint


@given(st.text(max_size=60))
def test_no_text_brings_the_reader_down(text: str) -> None:
    with suppress(ConfigError):
        assert expectation_of(str(expectation_of(text))) == expectation_of(text)


@given(st.dictionaries(st.sampled_from("abc"), st.text(max_size=20)))
def test_every_value_is_read_back_as_it_was(values: dict[str, str]) -> None:
    assert expectation_of(str(Expectation("rate", "<=", 1, values))).at == values


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_read_back_as_it_was(number: float) -> None:
    assert expectation_of(str(Expectation("rate", "<=", number))).number == number


def test_a_value_at_the_bound_is_within_it() -> None:
    assert expectation_of("a >= 2").is_met_by(2.0) and not expectation_of("a >= 2").is_met_by(1.999)
    assert expectation_of("a <= 2").is_met_by(2.0) and not expectation_of("a <= 2").is_met_by(2.001)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rate >= 904.9907918031", "rate >= 904.9907918031"),
        ("rate <= 12345678", "rate <= 12345678"),
        ("rate >= 350.0", "rate >= 350"),
        ("rate >= 1e+300", "rate >= 1e+300"),
    ],
)
def test_a_bound_is_recorded_with_every_digit(text: str, shown: str) -> None:
    assert str(expectation_of(text)) == shown
    assert expectation_of(shown).number == float(text.split()[-1])


def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="--expect: expected each name once, got size again"
    ) as caught:
        expectation_of("rate >= 1 size=1 nodes=2 size=64K", "--expect")
    assert "a bound of its own" in caught.value.hint


def test_a_bound_that_a_bench_could_not_read_back_is_refused() -> None:
    text = f"rate>=1 {'a' * 144}={'b' * 144}"
    assert len(text) < 300
    assert len(str(expectation_of(text))) <= 300
    with pytest.raises(ConfigError, match="at most 300 characters"):
        expectation_of(f"rate>=1 {'a' * 145}={'b' * 145}")

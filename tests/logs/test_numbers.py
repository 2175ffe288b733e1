"""Numbers with separators and suffixes, how finely they are printed, and what is no number."""

from __future__ import annotations

import doctest
import importlib

import pytest

from orchestrator.logs.numbers import PLAIN, NumberForm

FORM = NumberForm(",", {"K": 1e3, "M": 1e6, "Ki": 1024})


def test_the_examples_hold() -> None:
    assert doctest.testmod(importlib.import_module("orchestrator.logs.numbers")).failed == 0


@pytest.mark.parametrize(
    ("text", "number", "resolution"),
    [
        ("5,762", 5762.0, 1.0),
        ("1,234,567.5", 1234567.5, 0.1),
        ("106K", 106e3, 1e3),
        ("13.3K", 13.3e3, 100.0),
        ("1.31M", 1.31e6, 1e4),
        ("2Ki", 2048.0, 1024.0),
        ("491 K", 491e3, 1e3),
        ("-0.25", -0.25, 0.01),
    ],
)
def test_a_number_is_read_with_the_worth_of_its_last_digit(
    text: str, number: float, resolution: float
) -> None:
    assert FORM.number(text) == pytest.approx(number) and FORM.resolution(text) == pytest.approx(
        resolution
    )


@pytest.mark.parametrize(
    "text", ["5,76", "5762,1", ",762", "1,2345", "7 GB", "K", "1.2.3K", "12k", "N/A", ""]
)
def test_what_has_another_form_is_no_number(text: str) -> None:
    assert FORM.number(text) is None
    with pytest.raises(ValueError, match="not numbers"):
        FORM.numbers(["1", text])


def test_a_whole_number_has_no_suffix_because_that_rounds() -> None:
    assert (FORM.whole("1,024"), FORM.whole("131K"), PLAIN.whole("1,024")) == (1024, None, None)

"""Metrics as data: how several values become one, and what a manifest may hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs.metrics import ACROSS, COMBINED, OVER_LINES, Metric, metric_of, primary_of

RATE = Metric("rate", "GB/s", keys=("size",), scope="rank", across="sum")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean", 7 / 3),
        ("harmonic_mean", 12 / 7),
        ("median", 2.0),
        ("min", 1.0),
        ("max", 4.0),
        ("sum", 7.0),
        ("last", 1.0),
    ],
)
def test_several_values_become_one(name: str, expected: float) -> None:
    assert COMBINED[name]([2.0, 4.0, 1.0]) == pytest.approx(expected)


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20))
def test_a_harmonic_mean_of_rates_is_the_rate_of_equal_amounts_of_work(rates: list[float]) -> None:
    seconds = sum(1 / rate for rate in rates)
    assert COMBINED["harmonic_mean"](rates) == pytest.approx(len(rates) / seconds)
    assert COMBINED["harmonic_mean"]([*rates, 0.0]) == 0.0


def test_a_harmonic_mean_refuses_negative_values() -> None:
    with pytest.raises(ValueError, match="negative"):
        COMBINED["harmonic_mean"]([1.0, -1.0])


def test_every_way_of_combining_is_known() -> None:
    assert set(OVER_LINES) - {"only"} == set(COMBINED)
    assert set(ACROSS) - {"each"} <= set(COMBINED)


def test_a_metric_reads_back_as_it_is_recorded() -> None:
    for metric in (
        RATE,
        Metric("errors", "", "lower", "wrong results", "bad", 2.0, primary=True, speedup=True),
    ):
        assert metric_of({**asdict(metric), "keys": list(metric.keys)}) == metric


@pytest.mark.parametrize(
    "damage",
    [
        {"unit": 1},
        {"better": "more"},
        {"scope": "process"},
        {"over": "first"},
        {"across": "all"},
        {"factor": "2"},
        {"ema": "0.1"},
        {"ema": 0.1},
        {"ema": 1.0, "says": "mfu", "over": "last", "keys": []},
        {"keys": [1]},
    ],
)
def test_a_damaged_metric_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        metric_of({**asdict(RATE), **damage})


def test_values_that_stay_apart_have_a_column_for_what_they_are_of() -> None:
    assert RATE.key_columns == ("size",)
    assert Metric("rate", "GB/s", keys=("size",), scope="node", across="each").key_columns == (
        "size",
        "node",
    )


def test_the_first_metric_stands_for_a_run_unless_another_one_says_so() -> None:
    other = Metric("other", "s", "lower")
    assert primary_of([RATE, other]) is RATE and primary_of([]) is None
    named = Metric("named", "s", primary=True)
    assert primary_of([RATE, named, other]) is named

"""What is said beside the numbers of a cell, whatever its metric is, and what its typical value is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.logs.metrics import Metric
from orchestrator.results.cells import Cell, cells_of
from orchestrator.results.qualifications import (
    coarse,
    measured_count,
    qualifications_of,
    typical_of,
)
from tests.support.summaries import measured

LATENCY = Metric("latency", "us", "lower")
BUSBW = Metric("busbw", "GB/s", keys=("size_bytes",))


def cell(metric: Metric, *values: Any, **changes: Any) -> Cell:
    (found,) = cells_of(
        measured("1n2g", (metric,), *({metric.name: value} for value in values), **changes)
    )
    return found


def said(found: Cell, typical: int = 0) -> tuple[str, ...]:
    return qualifications_of(found, None, (), typical or measured_count(found))


def test_repeats_of_a_metric_without_keys_that_are_far_apart_are_said_with_their_spread() -> None:
    assert said(cell(LATENCY, 8.0, 10.0, 9.0)) == ("repeats spread over 22.2% of the median",)
    assert said(cell(LATENCY, 8.0, 8.1, 8.2)) == ()


def test_of_a_metric_with_keys_the_note_is_one_for_all_keys() -> None:
    spreads = {1: (8.0, 9.0, 8.5), 2: (1.0, 9.0, 3.0)}
    texts = {
        said(cell(BUSBW, *({size: value} for value in values))) for size, values in spreads.items()
    }
    assert texts == {("repeats spread over more than 5% of the median",)}


@pytest.mark.parametrize("values", [(0.0, 3.0, 9.0), (-1.0, 1.0, 5.0), (0.0, 0.0, 0.0)])
def test_a_share_of_the_median_is_not_said_of_values_that_are_not_above_zero(
    values: tuple[float, ...],
) -> None:
    assert said(cell(LATENCY, *values)) == ()


def test_few_repeats_and_other_counts_than_elsewhere_are_said() -> None:
    assert said(cell(LATENCY, 8.0), typical=3) == (
        "1 good repeat: interval unreliable below n=3", "1 repeat where other cells have 3",
    )  # fmt: skip


def test_a_run_without_the_metric_does_not_count() -> None:
    other = Metric("power", "W")
    repeats: list[Mapping[str, float]] = [
        {"latency": 8.0, "power": 1.0},
        {"power": 1.0},
        {"latency": 8.2, "power": 1.0},
    ]
    latency, power = cells_of(measured("1n2g", (LATENCY, other), *repeats))
    assert (measured_count(latency), measured_count(power)) == (2, 3)
    assert "2 repeats where other cells have 3" in said(latency, typical=3)


def test_what_is_known_already_is_said_once() -> None:
    found = cell(LATENCY, 8.0, 8.0, 8.0)
    assert qualifications_of(found, None, ("one rank was slow", "one rank was slow"), 3) == (
        "one rank was slow",
    )


def test_the_typical_value_is_the_geometric_mean_and_the_mean_of_values_that_are_not_above_zero() -> (
    None
):
    positive, mixed = typical_of(cell(LATENCY, 4.0, 9.0)), typical_of(cell(LATENCY, -2.0, 0.0, 5.0))
    assert positive and positive.value == pytest.approx(6.0)
    assert mixed and mixed.value == pytest.approx(1.0) and mixed.interval
    # The standard error of -2, 0 and 5 is sqrt(13 / 3), Student's t of two degrees of freedom
    # 4.3027.
    assert (
        mixed.interval.high - 1.0
        == pytest.approx(4.302653 * (13 / 3) ** 0.5)
        == 1.0 - mixed.interval.low
    )
    (nothing,) = cells_of(measured("1n2g", (LATENCY,), {}, state="failed"))
    assert typical_of(nothing) is None and measured_count(nothing) == 0


@pytest.mark.parametrize(
    ("values", "resolution", "said_of_it"),
    [
        (
            (106e3, 106e3, 106e3),
            1e3,
            "all 3 repeats are equal: the log resolves 1000 us, which hides how far apart they are",
        ),
        (
            (106e3, 107e3, 106e3, 107e3, 106e3),
            1e3,
            "the log resolves 1000 us, more than half of the interval's width",
        ),
        ((106e3, 117e3, 126e3, 106e3), 1e3, ""),
        ((106e3, 106e3, 106e3), 0.0, ""),
        ((106e3,), 1e3, ""),
        ((4e3,), 1e3, "the log resolves 1000 us, a tenth of the number or more"),
    ],
)
def test_an_interval_that_is_narrower_than_the_printed_digits_allow_is_told(
    values: tuple[float, ...], resolution: float, said_of_it: str
) -> None:
    found = cell(LATENCY, *values)
    found = replace(found, resolutions=dict.fromkeys(found.numbers, resolution))
    notes = coarse(found, typical_of(found))
    assert len(notes) == bool(said_of_it) and all(note.startswith(said_of_it) for note in notes)

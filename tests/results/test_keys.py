"""The order of keys that programs print: whole numbers, decimals, sizes with suffixes, and words."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.logs.metrics import Metric
from orchestrator.results.cells import cells_of
from orchestrator.results.keys import key_number
from tests.support.summaries import measured


@pytest.mark.parametrize(
    "keys",
    [
        (2, 10, 100),
        ("0.5", 2, "10.25"),
        (512, "64K", "1M", "2G"),
        ("4 KiB", "1 MiB", "1.5 MiB"),
        ("write", "read", "copy"),
        (10, 2, "all"),
    ],
)
def test_cells_are_in_the_order_of_numbers_or_of_first_appearance(keys: tuple[Any, ...]) -> None:
    metric = Metric("rate", "GB/s", keys=("size",))
    is_numeric = all(key_number(key) is not None for key in keys)
    printed = [*keys[1:], keys[0]] if is_numeric else keys
    cells = cells_of(measured("1n2g", (metric,), {"rate": {key: 5.0 for key in printed}}))
    assert [cell.metric_key for cell in cells] == [(key,) for key in keys]


@pytest.mark.parametrize("text", ["ring", "1e999", "12 apples", "1.2.3", "", "K"])
def test_a_word_is_no_number(text: str) -> None:
    assert key_number(text) is None

"""A summary as DLPerf's result JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from orchestrator.results.entries import Row
from orchestrator.results.numbers.throughput import round_like_numpy
from orchestrator.results.series import shared_choices
from orchestrator.results.summary import Summary


def result_document(summary: Summary) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the speeds in DLPerf's structure: by model, by case, then its four keys; null where a
    number does not exist.

    With several series the model's name would not be unique, so the full names of the series are
    used; where a shape occurs more than once, so are the settings that differ: ``1n8g steps=61``.
    """
    unnamed = shared_choices(summary.rows)
    series = summary.of_training().by_series()
    document: dict[str, dict[str, dict[str, Any]]] = {}
    for name, rows in series.items():
        shapes = Counter(row.shape for row in rows)
        cases = {
            " ".join(
                [row.shape, *(_settings(row, unnamed) if shapes[row.shape] > 1 else ())]
            ): _result(row)
            for row in rows
        }
        document[rows[0].model if len(series) == 1 else name] = cases
    return document


def _settings(row: Row, unnamed: Collection[str]) -> list[str]:
    return [f"{name}={value}" for name, value in row.options.items() if name not in unnamed]


def _result(row: Row) -> dict[str, Any]:
    return {
        "average_speed": _round(row.average),
        "batch_size_per_device": row.batch_size,
        "median_speed": _round(row.median),
        "speedup": _round(row.speedup),
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round_like_numpy(value)

"""Steps of a log that numbers parts of them: micro-batches, or several lines of one step.

>>> as_steps([1, 2, 3, 4], {"step_time_s": [0.1, 0.3, 0.2, 0.2], "loss": [3.0, 2.9, 2.8, 2.7]}, 2)
([1, 2], {'step_time_s': [0.4, 0.4], 'loss': [2.9, 2.7]})
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from orchestrator.logs.steps import LOSSES


def as_steps(
    steps: list[int], values: dict[str, list[Any]], micro_batches: int
) -> tuple[list[int], dict[str, list[Any]]]:
    """Return the columns of whole steps of ``micro_batches`` numbers each; a step without its last
    number is left out.
    """
    if micro_batches < 2:
        return steps, values
    places = [
        list(group)
        for _, group in groupby(range(len(steps)), lambda row: -(-steps[row] // micro_batches))
    ]
    whole = [rows for rows in places if steps[rows[-1]] % micro_batches == 0]
    combined = {}
    for name, column in values.items():
        combined[name] = [
            _combine(name, [column[row] for row in rows], micro_batches) for rows in whole
        ]
    return [steps[rows[-1]] // micro_batches for rows in whole], combined


def _combine(name: str, parts: Sequence[Any], micro_batches: int) -> Any:
    """Return a step's value from the values of its parts; some of them may not be printed."""
    if None in parts:
        return None
    if name in ("timestamp", "elapsed_s"):
        return parts[-1]
    if name in LOSSES:
        return next((part for part in parts if not math.isfinite(part)), parts[-1])
    if name.endswith("_per_s"):
        rate = len(parts) / math.fsum(1 / part for part in parts) if min(parts) > 0 else 0.0
        if name == "steps_per_s":
            return rate / micro_batches
        return rate
    total = math.fsum(parts) * micro_batches / len(parts)
    return round(total) if name == "samples" else total

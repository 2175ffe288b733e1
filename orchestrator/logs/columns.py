"""The steps of one rank and their values by name, as columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from orchestrator.logs.steps import LOSSES, SPEEDS

_CLOCKS = ("timestamp", "elapsed_s")
_AS_FAST = 1.25


class RankColumns:
    """The steps that one rank has logged so far, and their values by name. Columns, because
    millions of objects are slow.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: dict[str, list[Any]] = {}

    def add(self, steps: Sequence[int], values: Mapping[str, Sequence[Any]]) -> None:
        """Append steps with their values; names that are missing get None."""
        for name, column in values.items():
            self._column(name).extend(column)
        self.steps += steps

    def complete(self, values: Mapping[str, Any]) -> bool:
        """Add values to the last step; return False, and add nothing, if it already has one of
        them.
        """
        columns = [self._column(name) for name in values]
        if any([column[-1] is not None for column in columns]):
            return False
        for column, value in zip(columns, values.values(), strict=True):
            column[-1] = value
        return True

    def renew(self, values: Mapping[str, Any]) -> bool:
        """Replace the losses of the last step; return False, and replace nothing, if it is about
        other values, or the first. A loss that is no number stays."""
        if not self.steps or not values.keys() <= set(LOSSES):
            return False
        for name, value in values.items():
            column = self._column(name)
            if column[-1] is None or math.isfinite(column[-1]):
                column[-1] = value
        return True

    def part(self, start: int, stop: int) -> tuple[list[int], dict[str, list[Any]]]:
        """Return the steps and columns of the rows from ``start`` to ``stop``."""
        whole = (start, stop) == (0, len(self.steps))
        columns = {name: self._column(name) for name in self.values}
        if whole:
            return (self.steps, columns)
        return (self.steps[start:stop], {n: c[start:stop] for n, c in columns.items()})

    def _column(self, name: str) -> list[Any]:
        """Return the values of a name, padded with None to the number of steps."""
        column = self.values.setdefault(name, [])
        column += repeat(None, len(self.steps) - len(column))
        return column


def with_counts(steps: Sequence[int], values: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns that have ``samples`` of each step in place of ``total_samples``, those since
    the start. The first line is taken to have as many as the second.

    >>> with_counts([10, 20, 30], {"loss": [9.0, 8.0, 7.0], "total_samples": [640, 1280, 1920]})
    {'loss': [9.0, 8.0, 7.0], 'samples': [64, 64, 64]}
    """
    if "total_samples" not in values:
        return values
    totals = values["total_samples"]
    counts: list[int | None] = []
    for row in range(1, len(steps)):
        before, total, passed = totals[row - 1], totals[row], steps[row] - steps[row - 1]
        is_known = None not in (before, total) and passed > 0
        counts.append(round((total - before) / passed) if is_known else None)
    others = {name: column for name, column in values.items() if name != "total_samples"}
    return {**others, "samples": [*counts[:1], *counts]} if counts else others


def attempts_in(steps: list[int], slack: int) -> list[int]:
    """Return the rows where attempts begin: the first, and each step lower than an earlier one by
    more than ``slack``.
    """
    if steps == sorted(steps):
        return [0]
    starts, highest = [0], steps[0]
    for row, step in enumerate(steps):
        if step < highest - slack:
            starts.append(row)
            highest = step
        elif step > highest:
            highest = step
    return starts


def are_as_fast(columns: RankColumns, attempts: Sequence[tuple[int, int]]) -> bool:
    """Return False if the rates or times of attempts differ by more than those of ranks that train
    together.
    """
    for name in SPEEDS:
        parts = [columns.part(*attempt)[1].get(name, []) for attempt in attempts]
        known = [[value for value in part if value is not None] for part in parts]
        if name not in _CLOCKS and all(known):
            middles = [sorted(part)[len(part) // 2] for part in known]
            return bool(max(middles) <= _AS_FAST * min(middles))
    return True


def count_runs(steps: list[int], values: Mapping[str, list[Any]]) -> int:
    """Return how many series of the same steps a log has, 1 if they are equally fast as of ranks.

    >>> times = [0.5] * 3 + [0.6] * 3 + [1.5] * 3
    >>> [count_runs([1, 2, 3] * series, {"step_time_s": times[: 3 * series]}) for series in (2, 3)]
    [1, 3]
    """
    series = RankColumns()
    series.add(steps, values)
    starts = attempts_in(steps, slack=1)
    attempts = list(zip(starts, [*starts[1:], len(steps)], strict=True))
    return 1 if are_as_fast(series, attempts) else len(attempts)


def last_attempt(steps: list[int], slack: int) -> tuple[int, int]:
    """Return the bounds of the last attempt that reaches the highest step.

    >>> last_attempt([1, 2, 3, 1, 2, 3, 4, 1, 2], slack=0)
    (3, 7)
    """
    starts = attempts_in(steps, slack)
    attempts = zip(starts, [*starts[1:], len(steps)], strict=True)
    return max(attempts, key=lambda attempt: (max(steps[slice(*attempt)]), attempt))

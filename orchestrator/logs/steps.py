"""The samples of a log: `StepSample`, and `RankAggregate`, whose memory does not grow with the
number of ranks.

>>> aggregate = RankAggregate()
>>> aggregate.add([1, 2], {"step_time_s": [0.25, 0.5]})
>>> aggregate.add([1, 2], {"step_time_s": [0.75, 0.5]})
>>> [(sample.step, sample.step_time_s) for sample in aggregate.samples()]
[(1, 0.5), (2, 0.5)]
"""

from __future__ import annotations

import gc
import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice, repeat
from operator import add, lt, mul, sub, truediv
from typing import Any

ABSURD = 1e15
"""No time in seconds and no rate of a training run comes near this; larger values are damaged or
false.
"""
SPEEDS = (
    "timestamp",
    "step_time_s",
    "samples_per_s",
    "tokens_per_s",
    "steps_per_s",
    "elapsed_s",
    "samples",
)
LOSSES = ("loss", "grad_norm")
VALUES = (*SPEEDS, "mean_time_s", *LOSSES, "skipped")
GROUPS = ("step", *VALUES, "total_samples")
"""The groups of step lines; samples since the start become those of each step."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step and its values in the log. ``timestamp`` is seconds on one clock at the END of the
    step, ``elapsed_s`` since the start of training, ``mean_time_s`` the mean of all step times so
    far. Rates are as printed; the grammar's ``scope``
    and ``cumulative`` define what they cover. ``skipped`` is the number of steps since the last
    line that changed nothing, because the loss scaler found an overflow."""

    step: int
    timestamp: float | None = None
    step_time_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    steps_per_s: float | None = None
    elapsed_s: float | None = None
    samples: int | None = None
    mean_time_s: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    skipped: float | None = None


_SLOTS = tuple(
    (field.name, getattr(StepSample, field.name).__set__) for field in fields(StepSample)
)


def rows(steps: Sequence[int], values: Mapping[str, Sequence[Any]]) -> list[StepSample]:
    """Return columns as rows. Fills one slot after another, which takes half as long as the
    constructor of a frozen class.
    """
    columns = {"step": steps, **values}
    # Many new objects make the garbage collector run again and again, although none of them is
    # garbage.
    collects = gc.isenabled()
    gc.disable()
    try:
        made = list(map(object.__new__, repeat(StepSample, len(steps))))
    finally:
        if collects:
            gc.enable()
    for name, put in _SLOTS:
        deque(map(put, made, columns.get(name) or repeat(None)), maxlen=0)
    return made


def in_order(steps: Sequence[int]) -> bool:
    """Return True if each step is less than the next one."""
    return all(map(lt, steps, islice(steps, 1, None)))


class RankAggregate:
    """The aggregate over the ranks of a synchronous run: times averaged, rates averaged by time.

    Values are kept as sums over ranks that printed the same steps, so that thousands of ranks need
    the memory of one. Only the steps that the most common number of ranks printed count, so that
    steps with missing ranks are left out; `lines` is what a run is verified with.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def add(self, steps: Sequence[int], values: Mapping[str, Sequence[Any]], log: str = "") -> None:
        """Add a rank that printed to ``log``: its steps, and a column for each kind of value, None
        for steps without one.
        """
        # Only None and 0 are false: `all` is much faster than a search, which only a column with
        # one of them needs.
        partly = [name for name, column in values.items() if not all(column) and None in column]
        present = {
            name: column
            for name, column in values.items()
            if name not in partly or column.count(None) < len(column)
        }
        if any(name in present for name in partly):
            for names, places in _by_names(present).items():
                self._join(
                    _Part(
                        [steps[i] for i in places],
                        {name: [present[name][i] for i in places] for name in names},
                        log,
                    )
                )
        elif steps:
            self._join(
                _Part(list(steps), {name: list(column) for name, column in present.items()}, log)
            )

    def merge(self, other: RankAggregate, log: str = "") -> None:
        """Add all ranks of another aggregate; with ``log``, all of them printed there."""
        for part in other._parts:
            if log:
                part.logs = Counter({log: part.count})
            self._join(part)

    def lines(self) -> dict[str, Counter[int]]:
        """Return how many lines each log has for each step. Logs with the same lines share a
        counter.
        """
        of_part = [Counter(part.steps) for part in self._parts]
        parts_of: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, part in enumerate(self._parts):
            for log, ranks in part.logs.items():
                parts_of[log].append((number, ranks))
        shared: dict[tuple[tuple[int, int], ...], Counter[int]] = {}
        for parts in map(tuple, parts_of.values()):
            if parts not in shared:
                shared[parts] = Counter()
                for number, ranks in parts:
                    shared[parts].update(
                        {step: lines * ranks for step, lines in of_part[number].items()}
                    )
        return {log: shared[tuple(parts)] for log, parts in parts_of.items()}

    def samples(self) -> tuple[StepSample, ...]:
        """Return the steps in order, without duplicates."""
        if len(self._parts) == 1 and in_order(self._parts[0].steps):
            part = self._parts[0]
            return tuple(rows(part.steps, {name: part.mean(name) for name in part.first}))
        by_step: dict[int, list[tuple[_Part, int]]] = defaultdict(list)
        for part in self._parts:
            for row, step in enumerate(part.steps):
                by_step[step].append((part, row))
        ranks = {}
        for step, parts in by_step.items():
            ranks[step] = sum(part.count for part, _ in parts)
        steps_of = Counter(ranks.values())
        usual = max(steps_of, key=lambda count: (steps_of[count], count), default=0)
        return tuple(
            _sample(step, by_step[step]) for step in sorted(by_step) if ranks[step] == usual
        )

    def __bool__(self) -> bool:
        return bool(self._parts)

    def _join(self, part: _Part) -> None:
        for old in self._parts:
            if old.steps == part.steps and old.first.keys() == part.first.keys():
                old.take(part)
                return
        self._parts.append(part)


class _Part:
    """Ranks that printed the same steps with the same kinds of values.

    It holds the values of the first rank and, of the others, sums of differences to these, because
    sums of clocks would lose the digits that matter. Rates are summed as times, their inverses.
    """

    def __init__(self, steps: list[int], values: Mapping[str, list[Any]], log: str) -> None:
        self.steps = steps
        self.count = 1
        self.logs = Counter({log: 1})
        self.printed = values
        self.differences: dict[str, list[float]] = {}
        self.invalid: dict[str, set[int]] = defaultdict(
            set
        )  # rows with a rank at rest, or different numbers of samples
        self.first = {
            name: column if name == "samples" else self._times(name, column)
            for name, column in values.items()
        }

    def take(self, other: _Part) -> None:
        """Add the ranks of another part with the same steps."""
        for name, column in other.first.items():
            first = self.first[name]
            if name == "samples":
                if column != first:
                    self.invalid[name].update(
                        row for row, (a, b) in enumerate(zip(first, column, strict=True)) if a != b
                    )
            else:
                apart: Any = map(sub, column, first)
                if other.count > 1:
                    apart = map(add, map(mul, apart, repeat(other.count)), other.differences[name])
                sums = self.differences.get(name)
                self.differences[name] = (
                    list(apart) if sums is None else list(map(add, sums, apart))
                )
            self.invalid[name] |= other.invalid[name]
        self.count += other.count
        self.logs.update(other.logs)

    def mean(self, name: str) -> list[Any]:
        """Return the average of each row; of a single rank, the printed values."""
        if self.count == 1:
            return list(self.printed[name])
        if name == "samples":
            column: list[Any] = list(self.printed[name])
        else:
            times = map(
                add, self.first[name], map(truediv, self.differences[name], repeat(self.count))
            )
            column = [1 / time for time in times] if name.endswith("_per_s") else list(times)
        for row in self.invalid[name]:
            column[row] = _invalid_mean(name, column[row])
        return column

    def total(self, name: str, row: int) -> float:
        """Return the sum over the ranks of a row; rates are summed as times."""
        differences = self.differences[name][row] if name in self.differences else 0.0
        return float(self.first[name][row] * self.count + differences)

    def _times(self, name: str, column: list[Any]) -> list[Any]:
        """Return a column that can be summed; times and rates that no training run can have become
        NaN.
        """
        if name in (*LOSSES, "skipped"):
            return column
        usual = (
            min(column) > 1 / ABSURD and sum(column) < ABSURD
        )  # no positive value is above the sum
        if not usual:
            column = [
                value if 1 / ABSURD < abs(value) < ABSURD or value == 0 else math.nan
                for value in column
            ]
        if not name.endswith("_per_s"):
            return column
        if not usual:
            self.invalid[name] = {row for row, value in enumerate(column) if value <= 0}
            column = [1.0 if value <= 0 else value for value in column]
        return list(map(truediv, repeat(1.0), column))


def _invalid_mean(name: str, mean: Any) -> float | None:
    """Return the combined value of ranks if one was at rest or went backwards, or they disagree on
    the samples.
    """
    if name == "samples":
        return None
    return mean if math.isnan(mean) else 0.0


def _sample(step: int, parts: Sequence[tuple[_Part, int]]) -> StepSample:
    """Return the sample of a step from its rows in several parts."""
    values = {}
    count = sum(part.count for part, _ in parts)
    for name in set.intersection(*(set(part.first) for part, _ in parts)):
        if count == 1:
            part, row = parts[0]
            values[name] = part.printed[name][row]
            continue
        if name == "samples":
            numbers = {part.first[name][row] for part, row in parts}
            mean = numbers.pop() if len(numbers) == 1 else None
        else:
            mean = math.fsum(part.total(name, row) for part, row in parts) / count
            mean = 1 / mean if name.endswith("_per_s") else mean
        invalid = any(row in part.invalid[name] for part, row in parts)
        values[name] = _invalid_mean(name, mean) if invalid else mean
    return StepSample(step, **values)


def _by_names(values: Mapping[str, Sequence[Any]]) -> dict[tuple[str, ...], list[int]]:
    """Return the rows of each combination of kinds of values."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(zip(*values.values(), strict=True)):
        groups[
            tuple(name for name, value in zip(values, row, strict=True) if value is not None)
        ].append(place)
    return groups

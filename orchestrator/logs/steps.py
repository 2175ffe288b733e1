"""What a log says of each step: `StepSample`, and `RankAggregate`, whose memory does not grow with the number of ranks.

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

__all__ = ["ABSURD", "VALUES", "RankAggregate", "StepSample", "in_order", "rows"]

ABSURD = 1e15
"""No time in seconds and no rate of a training run comes near; what does is damage or a lie."""
VALUES = ("timestamp", "step_time_s", "samples_per_s", "steps_per_s", "elapsed_s", "samples")


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step and what the log says of it. ``timestamp`` is seconds on one clock at the END of the step, ``elapsed_s`` since
    the start of training; rates are as printed, so what they cover is the grammar's ``scope`` and ``cumulative``."""

    step: int
    timestamp: float | None = None
    step_time_s: float | None = None
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    elapsed_s: float | None = None
    samples: int | None = None


_SLOTS = tuple((field.name, getattr(StepSample, field.name).__set__) for field in fields(StepSample))


def rows(steps: Sequence[int], values: Mapping[str, Sequence[Any]]) -> list[StepSample]:
    """Return columns as rows. The constructor of a frozen class takes twice as long as its slots one after another."""
    columns = {"step": steps, **values}
    # Many new objects make the collector look again and again for garbage, which none of them is.
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
    """Tell whether each step is less than the one after it."""
    return all(map(lt, steps, islice(steps, 1, None)))


class RankAggregate:
    """Ranks of a synchronous run, heard as one: times averaged, rates averaged by time.

    What was heard is kept as sums over ranks that printed the same steps, so that thousands of ranks take the room of one.
    A step counts only where as many ranks spoke as at most steps, so that a cut rank takes its steps with it.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def add(self, steps: Sequence[int], values: Mapping[str, Sequence[Any]]) -> None:
        """Hear one more rank: its steps, and a column for each kind of value that it printed, None where a step has none."""
        # None and 0 alone are not true: where there is neither, a column need not be searched, which takes far longer.
        partly = [name for name, column in values.items() if not all(column) and None in column]
        there = {name: column for name, column in values.items() if name not in partly or column.count(None) < len(column)}
        if any(name in there for name in partly):
            for names, places in _by_names(there).items():
                self._join(_Part([steps[i] for i in places], {name: [there[name][i] for i in places] for name in names}))
        elif steps:
            self._join(_Part(list(steps), {name: list(column) for name, column in there.items()}))

    def merge(self, other: RankAggregate) -> None:
        """Hear all that another one has heard."""
        for part in other._parts:
            self._join(part)

    def samples(self) -> tuple[StepSample, ...]:
        """Return the steps in order, each once."""
        if len(self._parts) == 1 and in_order(self._parts[0].steps):
            part = self._parts[0]
            return tuple(rows(part.steps, {name: part.mean(name) for name in part.first}))
        heard: dict[int, list[tuple[_Part, int]]] = defaultdict(list)
        for part in self._parts:
            for place, step in enumerate(part.steps):
                heard[step].append((part, place))
        voices = {step: sum(part.count for part, _ in said) for step, said in heard.items()}
        steps_of = Counter(voices.values())
        most = max(steps_of, key=lambda count: (steps_of[count], count), default=0)
        return tuple(_said(step, heard[step]) for step in sorted(heard) if voices[step] == most)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def _join(self, part: _Part) -> None:
        alike = next((one for one in self._parts if one.steps == part.steps and one.first.keys() == part.first.keys()), None)
        if alike:
            alike.take(part)
        else:
            self._parts.append(part)


class _Part:
    """Ranks that printed the same steps with the same kinds of values: the first one's, and sums of how others differ from it.

    Differences, because sums of clocks would lose the digits that matter. Rates are summed as times, their inverses.
    """

    def __init__(self, steps: list[int], values: Mapping[str, list[Any]]) -> None:
        self.steps = steps
        self.count = 1
        self.printed = values
        self.more: dict[str, list[float]] = {}
        self.spoilt: dict[str, set[int]] = defaultdict(set)  # rows: ranks stood still, or disagree on the number of samples
        self.first = {name: column if name == "samples" else self._times(name, column) for name, column in values.items()}

    def take(self, other: _Part) -> None:
        """Hear the ranks of another part that printed the same steps."""
        for name, column in other.first.items():
            mine = self.first[name]
            if name == "samples":
                if column != mine:
                    self.spoilt[name].update(row for row, (a, b) in enumerate(zip(mine, column, strict=True)) if a != b)
            else:
                apart: Any = map(sub, column, mine)
                if other.count > 1:
                    apart = map(add, map(mul, apart, repeat(other.count)), other.more[name])
                self.more[name] = list(map(add, self.more[name], apart)) if name in self.more else list(apart)
            self.spoilt[name] |= other.spoilt[name]
        self.count += other.count

    def mean(self, name: str) -> list[Any]:
        """Return the average of each row, as printed where there is one rank."""
        if self.count == 1:
            return list(self.printed[name])
        if name == "samples":
            column: list[Any] = list(self.printed[name])
        else:
            times = map(add, self.first[name], map(truediv, self.more[name], repeat(self.count)))
            column = [1 / time for time in times] if name.endswith("_per_s") else list(times)
        for row in self.spoilt[name]:
            column[row] = _spoilt(name, column[row])
        return column

    def total(self, name: str, row: int) -> float:
        """Return the sum over the ranks of a row, of a rate as a time."""
        more = self.more[name][row] if name in self.more else 0.0
        return float(self.first[name][row] * self.count + more)

    def _times(self, name: str, column: list[Any]) -> list[Any]:
        """Return a column that can be summed; not a number is what no training run can have."""
        usual = min(column) > 1 / ABSURD and sum(column) < ABSURD  # of positive ones none is above the sum
        if not usual:
            column = [value if 1 / ABSURD < abs(value) < ABSURD or value == 0 else math.nan for value in column]
        if not name.endswith("_per_s"):
            return column
        if not usual:
            self.spoilt[name] = {row for row, value in enumerate(column) if value <= 0}
            column = [1.0 if value <= 0 else value for value in column]
        return list(map(truediv, repeat(1.0), column))


def _spoilt(name: str, mean: Any) -> float | None:
    """Return what ranks say together of which one stood still or went backwards, or that printed different numbers."""
    return None if name == "samples" else mean if math.isnan(mean) else 0.0


def _said(step: int, heard: Sequence[tuple[_Part, int]]) -> StepSample:
    """Return what several parts say of one step."""
    values: dict[str, Any] = {}
    count = sum(part.count for part, _ in heard)
    for name in set.intersection(*(set(part.first) for part, _ in heard)):
        if count == 1:
            part, row = heard[0]
            values[name] = part.printed[name][row]
            continue
        if name == "samples":
            said = {part.first[name][row] for part, row in heard}
            mean = said.pop() if len(said) == 1 else None
        else:
            mean = math.fsum(part.total(name, row) for part, row in heard) / count
            mean = 1 / mean if name.endswith("_per_s") else mean
        spoilt = any(row in part.spoilt[name] for part, row in heard)
        values[name] = _spoilt(name, mean) if spoilt else mean
    return StepSample(step, **values)


def _by_names(values: Mapping[str, Sequence[Any]]) -> dict[tuple[str, ...], list[int]]:
    """Return the rows that have the same kinds of values, by these."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(zip(*values.values(), strict=True)):
        found[tuple(name for name, value in zip(values, row, strict=True) if value is not None)].append(place)
    return found

"""Find the lines that a published rule needs, in truncated, concatenated, coloured and restarted
logs.

If the step goes back, the log holds several runs: the last complete one counts, with a warning.

>>> last_attempt([(20, "a"), (40, "b"), (20, "c"), (120, "d")], slack=0, last=120)
([(20, 'c'), (120, 'd')], ('the step goes back in the log, 1 times: the last complete run counts',))
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from heapq import merge
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from orchestrator.errors import DataError
from orchestrator.features.published.notes import GOES_BACK
from orchestrator.logs.text import clock
from orchestrator.notes import Note

Moment = tuple[int | None, float]
"""A clock that was read: the ordinal of its day, None without a date, and the seconds since
midnight.
"""

_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_REACH = 100
_DIGITS = 15
_Item = TypeVar("_Item")


class Line(NamedTuple):
    """A match of one of a rule's patterns, the pattern of a clock that may stand before it, and
    ``more`` groups, which lines after it have added. A tuple, because a log may have a million of
    them."""

    match: re.Match[bytes]
    clock: re.Pattern[bytes] | None = None
    more: Mapping[str, bytes] = MappingProxyType({})

    def raw(self, name: str) -> bytes | None:
        """Return the bytes of a group, None if it did not take part."""
        if name in self.more:
            return self.more[name]
        value: bytes | None = self.match[name] if name in self.match.re.groupindex else None
        return value

    def groups(self) -> dict[str, bytes]:
        """Return the groups that took part."""
        return {
            name: value for name, value in self.match.groupdict().items() if value is not None
        } | dict(self.more)

    def whole(self, name: str) -> int | None:
        """Return a group as a whole number, None if it did not take part. Raise DataError if it is
        no such number.
        """
        raw = self.raw(name)
        if raw is None:
            return None
        if len(raw) > _DIGITS or not raw.isdigit():
            raise log_error(
                f"expected a whole number of at most {_DIGITS} digits in {name}",
                f"found {_shorten(raw)}",
            )
        return int(raw)

    def optional(self, name: str) -> float | None:
        """Return a group as a number, None if it did not take part. Raise DataError if it is no
        number.
        """
        raw = self.raw(name)
        if raw is None:
            return None
        try:
            number = float(raw)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise log_error(f"expected a number in {name}", f"found {_shorten(raw)}")
        return number

    def moment(self) -> float | Moment | None:
        """Return the timestamp of the line, or the one that stands before it: seconds, or a clock;
        None without one.
        """
        raw = self.raw("timestamp") or self._before()
        if raw is None:
            return None
        text = raw.decode("utf-8", "replace")
        try:
            return float(text)
        except ValueError:
            return clock(text)

    def _before(self) -> bytes | None:
        """Return the nearest clock shortly before the match, in the same line and log entry.

        Lines are found by their fixed words first: searching a whole log for timestamps takes ten
        times as long.
        """
        if self.clock is None:
            return None
        start = self.match.start()
        head: bytes = self.match.string[max(0, start - _REACH) : start]
        matches = list(self.clock.finditer(head, max(map(head.rfind, (b"\n", b"["))) + 1))
        timestamp: bytes | None = matches[-1]["timestamp"] if matches else None
        return timestamp


def lines_of(
    log: bytes, patterns: Sequence[re.Pattern[bytes]], before: re.Pattern[bytes] | None = None
) -> list[Line]:
    """Return all matches in their order, also several in one line; ``before`` is the pattern of a
    clock that precedes them.

    A last line without a line end is left out: a number in it may be cut.
    """
    text = _text(log)
    by_pattern = [pattern.finditer(text) for pattern in patterns]
    matches = (
        merge(*by_pattern, key=lambda match: match.start())
        if len(by_pattern) > 1
        else chain(*by_pattern)
    )
    return [Line(match, before) for match in matches]


def _text(log: bytes) -> bytes:
    text = log[: max(log.rfind(b"\n"), log.rfind(b"\r")) + 1]
    if b"\x1b" in text:
        text = _ESCAPES.sub(b"", text)
    if b"\r" in text:
        return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text


def with_steps(lines: Sequence[Line]) -> list[tuple[int, Line]]:
    """Return the lines by step. A line without a step belongs to the step before it, once."""
    items: list[tuple[int, Line]] = []
    for line in lines:
        step = line.whole("step")
        if step is not None:
            items.append((step, line))
        elif items:
            before, added = items[-1][1], line.groups()
            if not added.keys() & before.groups().keys():
                items[-1] = items[-1][0], before._replace(more={**before.more, **added})
    return items


def last_attempt(
    items: Sequence[tuple[int, _Item]], slack: int, last: int
) -> tuple[list[tuple[int, _Item]], tuple[Note, ...]]:
    """Split where the step decreases by more than ``slack``; return the last part that reaches
    ``last``, else the longest.
    """
    attempts: list[list[tuple[int, _Item]]] = [[]]
    highest = -1
    for step, item in items:
        if step < highest - slack:
            attempts.append([])
            highest = step
        attempts[-1].append((step, item))
        highest = max(highest, step)
    whole = [attempt for attempt in attempts if any(step >= last for step, _ in attempt)]
    chosen = whole[-1] if whole else max(attempts, key=len)
    again = len(attempts) - 1
    return chosen, (GOES_BACK(count=again),) if again else ()


def describe_steps(steps: Sequence[int]) -> str:
    """Return as text which steps a log has."""
    if not steps:
        return "the log has no such line"
    return f"the log goes from {min(steps)} to {max(steps)}"


def log_error(expected: str, got: str, hint: str = "") -> DataError:
    """Return the error for a log that yields no number."""
    return DataError(f"{expected}, {got}", kind="result_invalid", hint=hint, phase="summarize")


def _shorten(raw: bytes) -> str:
    return repr(raw[:40].decode("utf-8", "replace"))

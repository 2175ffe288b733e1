"""The line of a log that a pattern nearly matches, and where in it the pattern stops: for messages about a wrong pattern.

>>> miss = near_miss(r"step (?P<step>[0-9]+) tps=(?P<samples_per_s>[0-9.]+)", "starting\\nstep 10 tps: 7512\\n")
>>> miss.number, miss.line[: miss.column - 1], miss.matched, miss.rest
(2, 'step 10 tps', 'step (?P<step>[0-9]+) tps', '=(?P<samples_per_s>[0-9.]+)')
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.logs.patterns import tokens

__all__ = ["NearMiss", "near_miss"]

_MOST_LINES = 5000
_MOST_CHARACTERS = 500
"""Of a line: a pattern needs time that grows with a power of it."""
_LEAST_CHARACTERS = 3
"""Fewer matching characters occur in any log by chance."""
_SHOWN_CHARACTERS = 120
_OPENING = re.compile(r"(?<!\\)\((?:\?(?:P<\w+>|[:=!]|<[=!]))?\Z")


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A line that a pattern matches in part. ``number`` is that of the line, and ``column`` that of the character at which the
    pattern stopped, both counted from 1. ``matched`` and ``rest`` are the two parts of the pattern."""

    line: str
    number: int
    column: int
    matched: str
    rest: str

    def __str__(self) -> str:
        """Return it in one line: the line up to where the pattern stopped, what came there, and what the pattern expected."""
        before, after = self.line[: self.column - 1], self.line[self.column - 1 :]
        came = repr(_start_of(after)) if after else "the end of the line"
        # The pattern as it is in the folder, without the backslashes that repr would double.
        rest = _start_of(self.rest)
        return f"line {self.number} matches up to {_end_of(before)!r}, then {came} where the pattern has '{rest}'"


def near_miss(pattern: str, text: str) -> NearMiss | None:
    """Return the line of ``text`` that matches the longest beginning of ``pattern``, the first of several; None if no line
    comes near. Lines that the whole pattern matches are passed over, and so is what follows the first 5000 different lines.

    Raises re.error for a pattern that is not a regular expression.
    """
    re.compile(pattern, re.ASCII)
    beginnings = list(_beginnings(pattern))
    best, nearest = 0, None
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        lines.setdefault(line.rstrip("\r")[:_MOST_CHARACTERS], number)
    for line, number in list(lines.items())[:_MOST_LINES]:
        for length, beginning in beginnings:
            if length <= best:
                break
            match = beginning.search(line)
            if match and length == len(pattern):
                break
            if match and match.end() - match.start() >= _LEAST_CHARACTERS:
                best, nearest = length, NearMiss(line, number, match.end() + 1, pattern[:length], pattern[length:])
                break
    return nearest


def _beginnings(pattern: str) -> Iterator[tuple[int, re.Pattern[str]]]:
    """Yield the beginnings of a pattern that are patterns themselves, the longest first, each with its length; groups that are
    open at its end are closed."""
    depth, length = 0, 0
    cuts: list[tuple[int, int]] = []
    for token in tokens(pattern):
        depth += (token == "(") - (token == ")")
        length += len(token)
        # An empty alternative would match anything, and so would an empty group.
        if token != "|" and not _OPENING.search(pattern, 0, length):
            cuts.append((length, depth))
    for length, depth in reversed(cuts):
        try:
            yield length, re.compile(pattern[:length] + ")" * depth, re.ASCII)
        except re.error:  # ends within a token, such as `(?P<st`
            continue


def _start_of(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _end_of(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"…{text[-_SHOWN_CHARACTERS:]}"

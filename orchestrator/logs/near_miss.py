"""The line of a log that a pattern nearly matches, and where in it the pattern stops: for messages
about a wrong pattern.

>>> miss = near_miss(r"step (?P<step>[0-9]+) tps=(?P<samples_per_s>[0-9.]+)", "starting\\nstep 10 tps: 7512\\n")
>>> miss.number, miss.line[: miss.column - 1], miss.matched, miss.rest
(2, 'step 10 tps', 'step (?P<step>[0-9]+) tps', '=(?P<samples_per_s>[0-9.]+)')
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.logs.patterns import literal_of, tokens

_MOST_LINES = 5000
_MOST_CHARACTERS = 500
"""Of a line: a pattern needs time that grows with a power of it."""
_LEAST_CHARACTERS = 3
"""Fewer matching characters occur in any log by chance."""
_SHOWN_CHARACTERS = 120
_MARK = re.compile(r"\\[^0-9A-Za-z]")
_OPENING = re.compile(r"(?<!\\)\((?:\?(?:P<\w+>|[:=!]|<[=!]))?\Z")


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A line that a pattern matches in part.

    ``number`` is the line's number and ``column`` the character at which the pattern stopped, both
    counted from 1. ``matched`` and ``rest`` are the two parts of the pattern.
    """

    line: str
    number: int
    column: int
    matched: str
    rest: str

    def __str__(self) -> str:
        """Return it in one line: the line up to where the pattern stopped, what came there, and
        what the pattern expected.
        """
        before, after = self.line[: self.column - 1], self.line[self.column - 1 :]
        came = repr(_start_of(after)) if after else "the end of the line"
        # The pattern as it is in the folder, without the backslashes that repr would double.
        rest = _start_of(self.rest)
        return f"line {self.number} matches up to {_end_of(before)!r}, then {came} where the pattern has '{rest}'"


def near_miss(pattern: str, text: str) -> NearMiss | None:
    """Return the line of ``text`` that matches the longest beginning of ``pattern``, the first of
    several; None if no line comes near. Lines that the whole pattern matches are passed over, and
    so is what follows the first 5000 different lines.

    Raises re.error for a pattern that is not a regular expression.
    """
    re.compile(pattern, re.ASCII)
    beginnings = list(_beginnings(pattern))
    best, nearest = 0, None
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        lines.setdefault(line.rstrip("\r")[:_MOST_CHARACTERS], number)
    first_lines = list(lines.items())[:_MOST_LINES]
    if displaced := _find_displaced(pattern, first_lines):
        return displaced
    for line, number in first_lines:
        for length, beginning in beginnings:
            if length <= best:
                break
            match = beginning.search(line)
            if match and length == len(pattern):
                break
            if match and match.end() - match.start() >= _LEAST_CHARACTERS:
                best, nearest = (
                    length,
                    NearMiss(line, number, match.end() + 1, pattern[:length], pattern[length:]),
                )
                break
    return nearest


def may_begin(pattern: str, line: str) -> bool:
    """Return True if a line is one of a pattern's, or begins like one beyond its first value.

    >>> rate = "^size=(?P<size>[0-9]+) rate=(?P<rate>[0-9.]+) GB/s$"
    >>> [may_begin(rate, line) for line in ("size=8 rate=1.5", "size=8 MiB", "size=8", "done")]
    [True, False, False, False]
    """
    shown = line[:_MOST_CHARACTERS]
    is_whole = re.search(pattern, line, re.ASCII)
    return bool(is_whole) or (
        shown == line and any(cut.search(line) for cut in _cut_lines(pattern))
    )


@lru_cache(maxsize=64)
def _cut_lines(pattern: str) -> tuple[re.Pattern[str], ...]:
    """Return patterns of lines that end within a pattern's lines, behind the first value."""
    depth, length, value = 0, 0, 0
    for token in tokens(pattern):
        opens = token == "(" and not depth and pattern.startswith("(?P<", length)
        depth += (token == "(") - (token == ")")
        length += len(token)
        if opens and not value:
            value = -1
        elif value < 0 and not depth:
            value = length
    return tuple(cut for _, cut in _beginnings(pattern, value, r"\Z")) if value > 0 else ()


def _find_displaced(pattern: str, lines: list[tuple[str, int]]) -> NearMiss | None:
    """Return the first line that has what an anchored pattern wants, but not at its beginning. A
    pattern that begins with a single mark, such as a bracket, may do without it: other text is then
    behind that mark."""
    if not pattern.startswith("^"):
        return None
    literal = literal_of(pattern)
    lines = [(line, number) for line, number in lines if literal in line]
    parts = list(tokens(pattern))[1:3]
    starts = [1, *([1 + len(parts[0])] if len(parts) > 1 and _MARK.fullmatch(parts[0]) else [])]
    for start in starts:
        try:
            loose = re.compile(pattern[start:], re.ASCII)
        except re.error:  # a mark that is repeated
            continue
        for line, number in lines:
            match = loose.search(line)
            if match and match.start() and match.end() - match.start() >= _LEAST_CHARACTERS:
                if re.search(pattern, line, re.ASCII):
                    return None
                column = 1 if start == 1 else 2
                return NearMiss(line, number, column, pattern[:start], pattern[start:])
    return None


def _beginnings(
    pattern: str, beyond: int = 0, end: str = ""
) -> Iterator[tuple[int, re.Pattern[str]]]:
    """Yield the beginnings of a pattern that are patterns themselves, the longest first, each with
    its length, which is more than ``beyond``; groups that are open at its end are closed, and
    ``end`` follows."""
    depth, length = 0, 0
    cuts: list[tuple[int, int]] = []
    for token in tokens(pattern):
        depth += (token == "(") - (token == ")")
        length += len(token)
        # An empty alternative would match anything, and so would an empty group.
        if length > beyond and token != "|" and not _OPENING.search(pattern, 0, length):
            cuts.append((length, depth))
    for length, depth in reversed(cuts):
        try:
            yield length, re.compile(f"(?:{pattern[:length]}{')' * depth}){end}", re.ASCII)
        except re.error:  # ends within a token, such as `(?P<st`
            continue


def _start_of(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}…"


def _end_of(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"…{text[-_SHOWN_CHARACTERS:]}"

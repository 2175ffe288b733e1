"""Lines that begin like a pattern's lines but do not match: interrupted rows, or other forms.

>>> copies = "^Copy: +(?P<rate>[0-9.]+) +[0-9.]+$"
>>> rows = {"log.readings[0]": compile_pattern("log.readings[0]", copies, None)}
>>> left_out = LeftOut(rows)
>>> left_out.look("Copy:   83539.9  0.0159\\nCopy:   8node1: INFO ring\\n", Tags())
>>> left_out.notes()
["1 line begins like those of log.readings[0] and was left out: 'Copy: 8node1: INFO ring'"]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.logs.notes import LINES_LEFT_OUT
from orchestrator.logs.patterns import Reader, compile_pattern, tokens
from orchestrator.logs.text import Tags
from orchestrator.notes import Note
from orchestrator.plural import plural

_LEAST_CHARACTERS = 3
"""Fewer plain characters occur in any line by chance."""
_LEAST_COLUMNS = 2
_SHOWN = 100
_FACTS = "log.facts"
_MOST_NOT_FINITE = 3
_COLUMN = re.compile(r" \+|\\s\+")
_NOT_FINITE = re.compile(
    r"(?<![\w.])[-+]?(?:nan|NaN|NAN|inf|Inf|INF|[Ii]nfinity)(?![\w.])", re.ASCII
)
_FINITE = ("1", "1.0", "1.00", "1.000", "1.0000", "1.000000", "1.000e+00")
"""What a program may print in its place."""


class LeftOut:
    """The lines of one log that begin like a result.

    ``literals``: a block without any of these texts holds no such lines. ``not_finite``: the first
    lines that one of ``results`` would match if a number in them were not NaN or infinite.
    """

    def __init__(self, readers: Mapping[str, Reader], results: Sequence[Reader] = ()) -> None:
        self.readers, self.results = readers, results
        starts = {key: _start(key, reader) for key, reader in readers.items()}
        self.starts = {key: start for key, start in starts.items() if start}
        # The beginning of a row without plain text is counted in a whole block first.
        self.in_blocks = {
            key: start.in_blocks or re.compile(start.pattern.pattern, re.ASCII | re.MULTILINE)
            for key, start in self.starts.items()
            if not start.literal
        }
        # By their text: a pattern computes its hash each time, which takes longer than a match.
        self.hits: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.not_finite: list[str] = []

    @property
    def literals(self) -> set[str]:
        """The plain text of the beginnings."""
        return {start.literal for start in self.starts.values()}

    def look(self, text: str, tags: Tags) -> None:
        """Look for such lines in a block after other readers; `hit` says how much they have
        matched.
        """
        for key, start in self.starts.items():
            hits = self.hits.pop(self.readers[key].pattern.pattern, 0)
            if self._count_beginnings(key, start, text) == hits:
                continue
            for line in text.split("\n"):
                if start.literal in line:
                    self._line(key, start, (piece for _, piece in tags.pieces(line)))
        if self.results and _NOT_FINITE.search(text):
            for line in filter(_NOT_FINITE.search, text.split("\n")):
                self._line_not_finite(piece for _, piece in tags.pieces(line))

    def hit(self, pattern: re.Pattern[str]) -> None:
        """Count a match of a pattern."""
        self.hits[pattern.pattern] += 1

    def hit_columns(
        self, reader: Reader, leading: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]
    ) -> None:
        """Count the matches of a pattern in a block that was read by columns."""
        name = next(
            name
            for name in reader.pattern.groupindex
            if name != "step" or len(reader.pattern.groupindex) == 1
        )
        column = columns.get(name, ())
        self.hits[reader.pattern.pattern] += len(column) - column.count(None) + (name in leading)

    def notes(self) -> list[Note]:
        """Return a note for each pattern with left-out lines."""
        notes = []
        for key, count in self.counts.items():
            begin, were, first = (
                ("begins", "was", "") if count == 1 else ("begin", "were", " the first is")
            )
            lines, line = plural(count, "line"), self.first[key]
            notes.append(
                LINES_LEFT_OUT(
                    lines=lines, begin=begin, pattern=key, were=were, first=first, line=line
                )
            )
        return notes

    def _count_beginnings(self, key: str, start: Reader, text: str) -> int:
        """Return the least number of lines of a block that may begin like a pattern's lines."""
        if start.literal:
            return text.count(start.literal)
        return sum(1 for _ in self.in_blocks[key].finditer(f"\n{text}"))

    def _line(self, key: str, start: Reader, pieces: Iterable[str]) -> None:
        for piece in pieces:
            begun = start.pattern.search(piece)
            if begun and not _matches(piece, self._rivals(key)):
                self.counts[key] += 1
                shown = piece if begun.end() < _SHOWN else piece[begun.start() :]
                self.first.setdefault(key, " ".join(shown.split())[:_SHOWN])

    def _line_not_finite(self, pieces: Iterable[str]) -> None:
        for piece in pieces:
            if len(self.not_finite) >= _MOST_NOT_FINITE or _matches(piece, self.results):
                continue
            finite = [_NOT_FINITE.sub(number, piece) for number in _FINITE]
            if any(_matches(text, self.results) for text in finite):
                self.not_finite.append(" ".join(piece.split())[:_SHOWN])

    def _rivals(self, key: str) -> Iterable[Reader]:
        """Return the readers that a line which begins like those of ``key`` may be for."""
        # A fact may be part of a row.
        of_facts = key.startswith(_FACTS)
        names = (name for name in self.readers if of_facts or not name.startswith(_FACTS))
        return (self.readers[name] for name in names)


def _matches(piece: str, readers: Iterable[Reader]) -> bool:
    return any(reader.literal in piece and reader.pattern.search(piece) for reader in readers)


def _start(key: str, reader: Reader) -> Reader | None:
    """Return a reader of a pattern's beginning, up to its second value, or up to its only one.

    For a fact, it ends at the first value. None if the beginning is too short to identify its
    lines.
    """
    pattern = reader.pattern.pattern
    depth, length, values = 0, 0, []
    for token in tokens(pattern):
        if token == "(" and not depth and pattern.startswith("(?P<", length):
            values.append(length)
        if token == "|" and not depth:
            return None
        depth += (token == "(") - (token == ")")
        length += len(token)
    # A fact is said once, among lines of its own form, and its form changes with the version of a
    # program.
    is_fact = key.startswith(_FACTS)
    beginning = pattern[: values[0 if is_fact else min(len(values) - 1, 1)]] if values else ""
    # Text that another line has put in front of a row hides an anchor.
    loose = beginning if is_fact else beginning.removeprefix("^")
    try:
        start = compile_pattern(key, loose, None, needs_groups=False)
        if len(start.literal.strip()) >= _LEAST_CHARACTERS:
            return start
        start = compile_pattern(key, beginning, None, needs_groups=False)
    except ConfigError:
        return None
    has_columns = beginning.startswith("^") and len(_COLUMN.findall(beginning)) >= _LEAST_COLUMNS
    return start if has_columns and not reader.literal else None

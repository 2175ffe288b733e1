"""Statements of a log besides its steps and results: participants, size of the run, and whether the
results are right.

>>> grammar = LogGrammar((), refuse=("^Failed",), facts=("^Batch size: (?P<global_batch>[0-9]+) global",))
>>> statements = Statements(grammar)
>>> statements.read(None, "Batch size: 128 global", lambda text: None)
>>> statements.read(None, "Failed validation", lambda text: None)
>>> statements.facts, statements.void
({'global_batch': {128: 'Batch size: 128 global'}}, ["the program says 'Failed validation'"])
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.errors import DataError
from orchestrator.grouping import group_pairs
from orchestrator.logs.agreements import Row, RowsAbove, Trend, contradiction_in
from orchestrator.logs.grammar import Agreement, Header, LogGrammar, is_multiplier
from orchestrator.logs.notes import CLOSING_LINE_UNREAD, CLOSING_LINES_DIFFER, NO_RANK
from orchestrator.logs.numbers import NumberForm
from orchestrator.logs.patterns import Reader, compile_pattern
from orchestrator.logs.text import whole
from orchestrator.notes import Note
from orchestrator.strictjson import strict_json

_MOST = 1 << 16
"""Ranks that are kept of a log."""
_MOST_REASONS = 20
_MOST_VALUES = 8
_MOST_ROWS = 1 << 12
"""Rows that are kept until the whole log, and the size of its run, are known."""
_SHOWN = 160
_CUT_OUT = r"^\W*\.\.\.+\W*$"
"""A line of dots, which people write in place of rows."""

Warn = Callable[[Note], None]


class Statements:
    """The statements of one log, line by line.

    ``void``: the reasons why its results do not count. ``facts``: the values of each fact, each
    with its line. ``listed``: how often the list of ranks has each rank, ``places`` each host with
    a device. ``open_rows``: rows whose agreements depend on facts not known yet, such as the size
    of the run. ``hit`` is called with the pattern of each fact.
    """

    def __init__(
        self, grammar: LogGrammar, hit: Callable[[re.Pattern[str]], None] = lambda pattern: None
    ) -> None:
        self.hit = hit
        self.numbers = grammar.numbers
        self.agreements = _alternatives(grammar.agreements)
        self.above_rows = RowsAbove(
            [part for one in grammar.agreements for part in one.parts], self.numbers
        )
        self.trends = [Trend(one) for one in grammar.agreements if one.rows != "each"]
        self.of_means: list[str] = []
        parts = self.above_rows.parts
        has_means = any(part.startswith("mean(") for part in parts)
        self.cut_out = _verdicts({"": _CUT_OUT if has_means else ""}).get("")
        self.is_excerpt = False
        self.open_rows: list[tuple[Row, Sequence[Agreement]]] = []
        self.rank = _reader("log.rank", grammar.rank, ("rank", "world_size"))
        self.rank_parts_line = _reader("log.rank_parts", grammar.rank_parts, ("json",))
        self.closing_line = _reader("log.closing", grammar.closing, ("json",))
        self.rank_list = _reader("log.rank_list", grammar.rank_list, ("rank", "host", "device"))
        self.end = _verdicts({"log.end": grammar.end}).get("log.end")
        self.is_ended = self.end is None
        self.is_ended_by_last = False
        self.refusals = _verdicts(grammar.by_key("refuse"))
        self.confirmations = _verdicts(grammar.by_key("confirm"))
        self.fact_lines = [
            compile_pattern(key, pattern, None) for key, pattern in grammar.by_key("facts").items()
        ]
        self.headers = [
            (
                compile_pattern(f"log.headers[{number}]", header.line, None, needs_groups=False),
                header,
            )
            for number, header in enumerate(grammar.headers)
        ]
        # One that has groups and no factors gives numbers, and no unit.
        self.units = [
            header for reader, header in self.headers if header.factors or not reader.pattern.groups
        ]
        self.literals = {reader.literal for reader in self.readers}
        self.above: Header | None = None
        self.given: dict[str, str] = {}
        self.missing = dict(grammar.by_key("confirm"))
        self.ranks: list[tuple[int, int | None]] = []
        self.rank_parts: list[str] = []
        self.closing: Mapping[str, Any] | None = None
        self.facts: dict[str, dict[Any, str]] = {}
        self.listed: Counter[int] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        self.void: list[str] = []

    @property
    def readers(self) -> list[Reader]:
        """The readers of all statements."""
        single = (
            self.rank,
            self.rank_parts_line,
            self.closing_line,
            self.rank_list,
            self.end,
            self.cut_out,
        )
        headers = [reader for reader, _ in self.headers]
        return [
            *(reader for reader in single if reader),
            *self.refusals.values(),
            *self.confirmations.values(),
            *self.fact_lines,
            *headers,
        ]

    def read(self, tag: int | None, text: str, warn: Warn, cut_at: int = -1) -> None:
        """Read a piece of a line that the rank ``tag`` printed. A match that ends at ``cut_at`` may
        be half of one.
        """
        if not any([literal in text for literal in self.literals]):
            return

        def find(reader: Reader | None) -> list[re.Match[str]]:
            if reader is None or reader.literal not in text:
                return []
            return [match for match in reader.pattern.finditer(text) if match.end() != cut_at]

        for match in find(self.rank):
            self._rank(match.groupdict(), warn)
        for match in find(self.rank_list):
            listed = whole(match["rank"])
            if listed is not None and len(self.listed) < _MOST:
                self.listed[listed] += 1
                place = match.groupdict()
                if host := place.get("host"):
                    self.places[host, place.get("device") or str(listed)] += 1
        self.rank_parts += [match["json"] for match in find(self.rank_parts_line)]
        for match in find(self.closing_line):
            self._closing(match["json"], warn)
        for refusal in self.refusals.values():
            if find(refusal):
                self.refuse(f"the program says {_shorten(text)}")
        for key in [key for key in self.missing if find(self.confirmations[key])]:
            del self.missing[key]
        if find(self.end):
            self.is_ended = True
        if find(self.cut_out):
            self.is_excerpt = True
        for reader in self.fact_lines:
            for match in find(reader):
                self.hit(reader.pattern)
                self._fact(match.groupdict(), text)
        for reader, header in self.headers:
            for match in find(reader):
                if header in self.units:
                    self.above = header
                groups = match.groupdict(default="")
                said = {name: value for name, value in groups.items() if value}
                self.given |= groups
                self._agree(said, text, (tag, reader.pattern))

    def read_last(self, pieces: Sequence[str]) -> None:
        """Read the last line where no line end follows it: it may be cut, and still be recognized
        as the end.
        """
        self.is_ended_by_last = bool(self.end and any(map(self.end.pattern.search, pieces)))

    def row(
        self, said: dict[str, str], text: str, source: tuple[int | None, object] = (None, None)
    ) -> dict[str, str]:
        """Return the groups of a row in the unit of the header above it.

        ``source`` is the rank that prints it, and its kind. A row that contradicts itself makes the
        log void. So does a row without a unit, neither from a header nor from its own numbers.
        """
        self.is_ended = self.end is None
        if self.above:
            for name, factor in self.above.factors.items():
                if name in said:
                    said[name] = _scale(said[name], factor, self.numbers)
        agrees = self._agree(said, text, source)
        if self.units and not self.above and not agrees:
            self.refuse(
                f"no header of log.headers stands above the row {_shorten(text)}, so that its unit is not known"
            )
        return said

    def _agree(self, said: Mapping[str, str], text: str, source: tuple[int | None, object]) -> bool:
        """Try the agreements about the values of a row; return whether an equation holds."""
        if not (self.agreements or self.trends):
            return False
        parts = self.above_rows.read(*source, said, self.given)
        row = Row({**self.given, **said, **parts}, _shorten(text), self.numbers)
        for trend in self.trends:
            if _is_about(trend.agreement, said):
                trend.add(row)
        agrees = False
        for alternatives in self.agreements:
            if not _is_about(alternatives[0], said):
                continue
            verdicts = row.verdicts(alternatives)
            # A bound holds in any unit, an equation in one.
            agrees = agrees or ("" in verdicts and alternatives[0].is_alternative)
            means = [part for one in alternatives for part in one.parts if part.startswith("mean(")]
            if "" not in verdicts and None in verdicts and len(self.open_rows) < _MOST_ROWS:
                self.open_rows.append((row, alternatives))
            elif reason := contradiction_in(verdicts):
                self.refuse(reason, self.of_means if means else self.void)
            for part in means:
                self.above_rows.forget(source[0], part)
        return agrees

    def verdict(self, has_results: bool, has_all_rows: bool = True) -> tuple[str, ...]:
        """Return why the results of the whole log are none; ``has_results``: it has any;
        ``has_all_rows``: no line that looks like one was left out.
        """
        for reason in self.of_means if has_all_rows and not self.is_excerpt else ():
            self.refuse(reason)
        for trend in self.trends:
            for reason in trend.contradictions():
                self.refuse(reason)
        if has_results and self.missing:
            for key, pattern in self.missing.items():
                self.refuse(
                    f"expected a line of {key}, {pattern!r}, in a log with results, got none"
                )
        if has_results and self.end and not (self.is_ended or self.is_ended_by_last):
            missing = f"no line of log.end, {self.end.pattern.pattern!r}, follows the last of them"
            self.refuse(f"{missing}: the log is cut, or its program did not end")
        return tuple(self.void)

    def refuse(self, reason: str, reasons: list[str] | None = None) -> None:
        """Keep a reason why the log has no results."""
        reasons = self.void if reasons is None else reasons
        if reason not in reasons and len(reasons) < _MOST_REASONS:
            reasons.append(reason)

    def _fact(self, groups: Mapping[str, str | None], text: str) -> None:
        times = math.prod(whole(text) or 1 for name, text in groups.items() if is_multiplier(name))
        for name, said in groups.items():
            if said is not None and not is_multiplier(name):
                number = whole(said.replace(",", ""))
                number = None if number is None else number * times
                values = self.facts.setdefault(name, {})
                if len(values) < _MOST_VALUES:
                    values.setdefault(said if number is None else number, text.strip()[:_SHOWN])

    def _rank(self, groups: Mapping[str, str | None], warn: Warn) -> None:
        rank, world_size = whole(groups.get("rank")), whole(groups.get("world_size"))
        if rank is None or len(self.ranks) >= _MOST:
            warn(NO_RANK())
        else:
            self.ranks.append((rank, world_size))

    def _closing(self, text: str, warn: Warn) -> None:
        try:
            value = strict_json(text, "closing line")
        except DataError as error:
            warn(CLOSING_LINE_UNREAD(fault=error.message))
            return
        if not isinstance(value, dict):
            warn(CLOSING_LINE_UNREAD(fault=f"expected a JSON object, got {type(value).__name__}"))
            return
        if self.closing not in (None, value):
            warn(CLOSING_LINES_DIFFER())
        self.closing = value


def _reader(key: str, pattern: str, groups: tuple[str, ...]) -> Reader | None:
    return compile_pattern(key, pattern, groups) if pattern else None


def _verdicts(patterns: Mapping[str, str]) -> dict[str, Reader]:
    return {
        key: compile_pattern(key, pattern, None, needs_groups=False)
        for key, pattern in patterns.items()
        if pattern
    }


def _scale(text: str, factor: float, form: NumberForm) -> str:
    """Return a printed number times a factor, with as many digits as were printed."""
    number, resolution = form.number(text), form.resolution(text)
    if factor == 1 or number is None or not resolution or not math.isfinite(number):
        return text
    decimals = max(0, -math.floor(math.log10(resolution * factor)))
    return f"{number * factor:.{decimals}f}"


def _alternatives(agreements: Sequence[Agreement]) -> list[list[Agreement]]:
    """Return the agreements about single rows by value: of alternatives for one, one has to hold."""
    by_value = group_pairs(
        (one.value if one.is_alternative else one, one) for one in agreements if one.rows == "each"
    )
    return list(by_value.values())


def _is_about(agreement: Agreement, said: Mapping[str, str]) -> bool:
    """Return whether a row has a group of the value of an agreement."""
    return any(part in said for part in agreement.value.split("-"))


def _shorten(text: str) -> str:
    words: Sequence[str] = text.split()
    line = " ".join(words)
    return repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…")

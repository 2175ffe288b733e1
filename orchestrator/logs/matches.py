"""Lines of a log that the patterns of a grammar match, nearly match, or leave out.

>>> grammar = LogGrammar((), (r"step (?P<step>[0-9]+) in (?P<step_time_s>[0-9.]+) s",))
>>> log = matches(b"start\\nstep 1 in 0.5 s\\nstep 2 in 7 ms\\n", grammar)
>>> log.patterns[0].count, log.patterns[0].first, log.patterns[0].values, log.patterns[0].near_miss.number
(1, 2, {'step': '1', 'step_time_s': '0.5'}, 3)
>>> log.unmatched
((1, 'start'), (3, 'step 2 in 7 ms'))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.metrics import Metric
from orchestrator.logs.near_miss import NearMiss, near_miss
from orchestrator.logs.numbers import NumberForm
from orchestrator.logs.parse import Parsed, parse
from orchestrator.logs.patterns import Reader, compile_pattern, tags_of
from orchestrator.logs.steps import GROUPS, SPEEDS
from orchestrator.logs.text import clean_text, clock

_MOST_SHOWN = 10
_OPTIONAL = ("log.refuse", "log.facts")
"""Patterns of which a log need not have a line, so that none is nearly missed."""


@dataclass(frozen=True, slots=True)
class PatternMatches:
    """The matches of one pattern. ``key`` is where it is in the file, ``first`` the number of the
    first line that it matches, counted from 1, and ``values`` the groups there. ``not_numbers`` are
    (line, group, text) of values that cannot be read."""

    key: str
    pattern: str
    count: int
    first: int = 0
    line: str = ""
    values: Mapping[str, str] | None = None
    not_numbers: tuple[tuple[int, str, str], ...] = ()
    near_miss: NearMiss | None = None


@dataclass(frozen=True, slots=True)
class MetricMatches:
    """The values of a metric in a log: how many lines have one, and the first of them in ``unit``,
    with its key.
    """

    name: str
    unit: str
    count: int
    first: str = ""
    key: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LogMatches:
    """A log as a grammar reads it. ``unmatched`` are the first lines that no pattern matches, with
    their numbers.
    """

    lines: int
    patterns: tuple[PatternMatches, ...]
    metrics: tuple[MetricMatches, ...]
    unmatched: tuple[tuple[int, str], ...]
    unmatched_count: int
    parsed: Parsed
    has_steps: bool = False

    @property
    def has_number(self) -> bool:
        """Return whether the log has a step with a speed or, without steps, a line with a result."""
        if not self.has_steps:
            return bool(self.parsed.readings)
        return any(
            getattr(sample, name) is not None for sample in self.parsed.samples for name in SPEEDS
        )


def matches(data: bytes, grammar: LogGrammar) -> LogMatches:
    """Return how a grammar reads a log. The last line counts only if it is ended, as when a run is
    read.

    Raises ConfigError for a pattern that cannot be used, DataError for too many samples.
    """
    whole = (
        data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
        .replace(b"\r\n", b"\n")
        .replace(b"\r", b"\n")
    )
    lines = clean_text(whole).split("\n")[:-1]
    parsed = parse(data, grammar)
    readers, tags = _readers(grammar), tags_of(grammar.prefix or parsed.prefix)
    searched = [reader.pattern for reader in readers.values()]
    left = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not any(
            pattern.search(piece) for _, piece in tags.pieces(line) for pattern in searched
        ):
            left.append((number, line))
    # Only what no pattern matches may be a line that one of them should match.
    unmatched = dict(left)
    rest = "\n".join(tags.without(unmatched.get(number, "")) for number in range(1, len(lines) + 1))
    groups = {metric.group for metric in grammar.metrics}
    pieces = [
        (number, line, piece)
        for number, line in enumerate(lines, start=1)
        for _, piece in tags.pieces(line)
    ]
    everything = "\n".join(map(tags.without, lines))
    texts = (rest, everything)
    of_patterns = [
        _of_pattern(key, reader, pieces, texts, groups, grammar.numbers)
        for key, reader in readers.items()
    ]
    metrics = tuple(
        _of_metric(metric, parsed.readings, grammar.numbers) for metric in grammar.metrics
    )
    shown = tuple(left[:_MOST_SHOWN])
    return LogMatches(
        len(lines), tuple(of_patterns), metrics, shown, len(left), parsed, bool(grammar.patterns)
    )


def _of_metric(
    metric: Metric, readings: Sequence[Mapping[str, str]], form: NumberForm
) -> MetricMatches:
    lines = [line for line in readings if metric.group in line]
    if not lines:
        return MetricMatches(metric.name, metric.unit, 0)
    key = {name: lines[0].get(name, "") for name in metric.keys}
    text = lines[0][metric.group]
    number = form.number(text)
    first = text if number is None else f"{number * metric.factor:g}"
    return MetricMatches(metric.name, metric.unit, len(lines), first, key)


def _readers(grammar: LogGrammar) -> dict[str, Reader]:
    groups = (*GROUPS, *grammar.metric_groups)
    readers = {
        key: compile_pattern(key, pattern, groups)
        for key, pattern in grammar.by_key("patterns").items()
    }
    others = {
        "log.rank": grammar.rank,
        "log.rank_parts": grammar.rank_parts,
        "log.closing": grammar.closing,
    }
    others |= {
        **grammar.by_key("readings"),
        "log.rank_list": grammar.rank_list,
        **grammar.by_key("facts"),
    }
    others |= {
        f"log.headers[{number}]": header.line for number, header in enumerate(grammar.headers)
    }
    others |= {**grammar.by_key("refuse"), **grammar.by_key("confirm"), "log.end": grammar.end}
    for key, pattern in others.items():
        if pattern:
            readers[key] = compile_pattern(key, pattern, None, needs_groups=False)
    return readers


def _of_pattern(
    key: str,
    reader: Reader,
    pieces: Sequence[tuple[int, str, str]],
    texts: tuple[str, str],
    groups: Set[str],
    form: NumberForm,
) -> PatternMatches:
    """Return the matches of a pattern in the ``pieces`` of lines: the number of the line, the line,
    and the text of a rank.

    ``texts`` are the lines that no pattern matches, and all lines: one that another pattern matches
    may be the only one near.
    """
    hits = [
        (number, line, match)
        for number, line, piece in pieces
        if reader.literal in piece
        for match in reader.pattern.finditer(piece)
    ]
    pattern = reader.pattern.pattern
    rest, everything = texts
    if key.startswith(_OPTIONAL):
        rest = everything = ""
    if not hits:
        return PatternMatches(key, pattern, 0, near_miss=near_miss(pattern, everything))
    nearest = near_miss(pattern, rest)
    invalid = [
        (number, name, text)
        for number, _, match in hits
        for name, text in match.groupdict().items()
        if text is not None
        and (key.startswith("log.patterns") or name in groups)
        and not _is_number(name, text, form)
    ]
    number, line, match = hits[0]
    values = {name: text for name, text in match.groupdict().items() if text is not None}
    return PatternMatches(
        key, pattern, len(hits), number, line, values, tuple(invalid[:_MOST_SHOWN]), nearest
    )


def _is_number(name: str, text: str, form: NumberForm) -> bool:
    if name in ("step", "samples"):
        return form.whole(text) is not None
    if name == "timestamp" and ":" in text:
        return clock(text) is not None
    number = form.number(text)
    return number is not None and (not math.isnan(number) or name == "loss")

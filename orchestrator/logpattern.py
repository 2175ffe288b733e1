"""The regular expressions of a log grammar: which are refused, and what plain text must be there for one to match.

>>> reader = compiled("log.patterns[0]", r"step=(?P<step>[0-9]+)", ("step",))
>>> reader.literal, reader.column(reader.pattern.findall("step=1 step=2"), "step")
('step=', ['1', '2'])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from orchestrator.errors import ConfigError

__all__ = ["Reader", "columns", "compiled"]

_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[*+]|\{\d*,?\d*\}|[()]|.", re.DOTALL)
_NOT_PLAIN = re.compile(r"\(\?[#aiLmsux-]|\\(?![dDwWsSbBAZtnrfv])[0-9A-Za-z]")


@dataclass(frozen=True, slots=True)
class Reader:
    """A compiled pattern. ``literal`` is in each of its matches, so text without it need not be searched."""

    pattern: re.Pattern[str]
    literal: str

    def column(self, rows: list[Any], name: str) -> list[str]:
        """Return what a group took in each of the rows of ``findall``. Raises ValueError where it took nothing in one."""
        at = self.pattern.groupindex[name] - 1
        texts = rows if self.pattern.groups == 1 else [row[at] for row in rows]
        if not all(texts):
            raise ValueError(name)
        return texts


def columns(readers: Sequence[Reader], lines: Sequence[str]) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Return what lines say, as text by group: of the step before the first of them, and a row per step after it.

    Matches of a pattern without a step speak of the step before them. Raises ValueError where that is not plain: where a group
    took nothing, two patterns read one line, or a value of a step is said twice.

    >>> two = compiled("0", "at (?P<step>[0-9]+)", ("step",)), compiled("1", "in (?P<seconds>[0-9]+)", ("seconds",))
    >>> columns(two, ["in 3", "at 7", "at 8", "in 5"])
    ({'seconds': '3'}, {'step': ['7', '8'], 'seconds': [None, '5']})
    """
    if len(readers) == 1 and {"step"} < readers[0].pattern.groupindex.keys():
        found = _rows(readers[0], [line for line in lines if readers[0].literal in line])
        return {}, {name: [*readers[0].column(found, name)] for name in readers[0].pattern.groupindex}
    of_each, whose = _rows_of_each(readers, lines)
    # Row 0 is the step before.
    places = list(accumulate(("step" in readers[number].pattern.groupindex for number in whose), initial=0))[1:]
    table: dict[str, list[str | None]] = {}
    for number, reader in enumerate(readers):
        mine = [place for place, speaker in zip(places, whose, strict=True) if speaker == number]
        for name in reader.pattern.groupindex:
            column = table.setdefault(name, [None] * (max(places, default=0) + 1))
            before = column.count(None)
            for place, text in zip(mine, reader.column(of_each[number], name), strict=True):
                column[place] = text
            if before - column.count(None) != len(mine):
                raise ValueError("a value is said twice")
    if places.count(0) > 1:
        raise ValueError("two matches before the first step")
    leading = {name: column[0] for name, column in table.items() if column[0] is not None}
    return leading, {name: column[1:] for name, column in table.items()}


def _rows(reader: Reader, lines: Iterable[str]) -> list[Any]:
    return list(chain.from_iterable(map(reader.pattern.findall, lines)))


def _rows_of_each(readers: Sequence[Reader], lines: Sequence[str]) -> tuple[list[list[Any]], list[int]]:
    """Return the rows of each reader, and the reader of each row in the order of the lines."""
    of_each: list[list[Any]] = [[] for _ in readers]
    whose: list[int] = []
    for line in lines:
        before = len(whose)
        for number, reader in enumerate(readers):
            if reader.literal in line and (found := reader.pattern.findall(line)):
                if len(whose) > before:
                    raise ValueError("two patterns read one line")
                of_each[number] += found
                whose += [number] * len(found)
    return of_each, whose


def compiled(where: str, pattern: str, groups: Sequence[str]) -> Reader:
    """Compile a pattern of a framework folder. ASCII, so that a digit of another script is not read as a number."""
    try:
        regex = re.compile(pattern, re.ASCII)
    except re.error as error:
        raise ConfigError(f"not a regular expression: {error}", kind="template_error", where=where) from error
    unknown = [name for name in regex.groupindex if name not in groups]
    if unknown or not regex.groupindex:
        got = ", ".join(unknown) or "none"
        raise ConfigError(f"expected named groups out of {', '.join(groups)}, got {got}", kind="template_error", where=where)
    if _repeats_a_repeat(pattern):
        raise ConfigError(
            "a repeated group holds a repeat",
            kind="template_error",
            where=where,
            hint="such a pattern can take for ever on a hostile line; repeat only plain characters or classes",
        )
    return Reader(regex, _literal(pattern))


def _literal(pattern: str) -> str:
    """Return the longest text that every match of ``pattern`` holds, as far as its plain characters outside groups tell.

    >>> _literal(r"^orch step=(?P<step>[0-9]+)x{3} s?"), _literal(r"a|b"), _literal(r"(?i)step")
    ('orch step=', '', '')
    """
    if _NOT_PLAIN.search(pattern):
        return ""
    depth, runs = 0, [""]
    for token in _tokens(pattern):
        depth += (token == "(") - (token == ")")
        if depth or token == ")":
            runs.append("")
        elif token == "|":
            return ""
        elif token in "*+?" or token[0] == "{":
            # A `{` that is no repeat is rare enough to be taken for one.
            runs[-1] = runs[-1][:-1]
            runs.append("")
        elif token in ".^$" or token[0] == "[" or (token[0] == "\\" and token[1].isalnum()):
            runs.append("")
        else:
            runs[-1] += token[-1]
    return max((run for run in runs if run.isascii()), key=len, default="")


def _repeats_a_repeat(pattern: str) -> bool:
    """Tell whether an unbounded repeat holds another, as in ``(a+)+``.

    >>> _repeats_a_repeat(r"(?:\\\\s+[0-9]+)*x"), _repeats_a_repeat(r"[0-9]+(?:[.][0-9]+)?")
    (True, False)
    """
    holds = [False]
    closed = False
    for token in _tokens(pattern):
        unbounded = token in "*+" or (token.startswith("{") and token.endswith(",}"))
        if unbounded and closed:
            return True
        if token == "(":
            holds.append(False)
        inner = holds.pop() if token == ")" and len(holds) > 1 else False
        closed = inner
        holds[-1] = holds[-1] or inner or unbounded
    return False


def _tokens(pattern: str) -> Iterator[str]:
    return (match[0] for match in _TOKENS.finditer(pattern))

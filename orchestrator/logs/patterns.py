"""The regular expressions of a log grammar: which are refused, and what plain text must be there for one to match.

>>> reader = compiled("log.patterns[0]", r"step=(?P<step>[0-9]+)", ("step",))
>>> reader.literal, reader.column(reader.found("step=1 step=2"), "step")
('step=', ['1', '2'])
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

from orchestrator.errors import ConfigError

__all__ = ["Reader", "columns", "compiled"]

_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[*+]|\{\d*,?\d*\}|[()]|.", re.DOTALL)
_NOT_PLAIN = re.compile(r"\(\?[#aiLmsux-]|\\(?![dDwWsSbBAZtnrfv])[0-9A-Za-z]")


@dataclass(frozen=True, slots=True)
class Reader:
    """A compiled pattern. ``literal`` is in each of its matches, so text without it need not be searched. ``of_lines`` finds
    in whole text what ``pattern`` finds in its lines; None where a match could go on in the next line."""

    pattern: re.Pattern[str]
    literal: str
    of_lines: re.Pattern[str] | None = None

    def found(self, text: str) -> list[str | None]:
        """Return what matches in the lines of a text took, one after another: of each the text before it, then each group."""
        if self.of_lines:
            return self.of_lines.split(text)
        lines = (line for line in text.split("\n") if self.literal in line)
        return list(chain.from_iterable(map(self.in_line, lines)))

    def in_line(self, line: str) -> list[str | None]:
        """Return what the matches in a line took, as `found` does."""
        return self.pattern.split(line)[:-1]

    def count(self, found: Sequence[str | None]) -> int:
        """Return how many matches that is."""
        return len(found) // (self.pattern.groups + 1)

    def column(self, found: Sequence[str | None], name: str) -> Sequence[Any]:
        """Return what one group took in each match. Raises ValueError where it took nothing in one."""
        texts = found[self.pattern.groupindex[name] :: self.pattern.groups + 1]
        if not all(texts):
            raise ValueError(name)
        return texts


def columns(readers: Sequence[Reader], text: str) -> tuple[dict[str, str], dict[str, Sequence[Any]]]:
    """Return what the lines of a text say, as text by group: of the step before the first of them, and a row per step after it.

    Matches of a pattern without a step speak of the step before them. Raises ValueError where that is not plain: where a group
    took nothing, two patterns read one line, or a value of a step is said twice.

    >>> two = compiled("0", "at (?P<step>[0-9]+)", ("step",)), compiled("1", "in (?P<seconds>[0-9]+)", ("seconds",))
    >>> columns(two, "in 3\\nat 7\\nat 8\\nin 5")
    ({'seconds': '3'}, {'step': ['7', '8'], 'seconds': [None, '5']})
    """
    if len(readers) == 1 and {"step"} < readers[0].pattern.groupindex.keys():
        found = readers[0].found(text)
        return {}, {name: readers[0].column(found, name) for name in readers[0].pattern.groupindex}
    of_each, whose = _found_by_each(readers, text.split("\n"))
    # Row 0 is the step before.
    places = list(accumulate(("step" in readers[number].pattern.groupindex for number in whose), initial=0))[1:]
    table: dict[str, list[str | None]] = {}
    for number, reader in enumerate(readers):
        mine = [place for place, speaker in zip(places, whose, strict=True) if speaker == number]
        for name in reader.pattern.groupindex:
            column = table.setdefault(name, [None] * (max(places, default=0) + 1))
            before = column.count(None)
            for place, said in zip(mine, reader.column(of_each[number], name), strict=True):
                column[place] = said
            if before - column.count(None) != len(mine):
                raise ValueError("a value is said twice")
    if places.count(0) > 1:
        raise ValueError("two matches before the first step")
    leading = {name: column[0] for name, column in table.items() if column[0] is not None}
    return leading, {name: column[1:] for name, column in table.items()}


def _found_by_each(readers: Sequence[Reader], lines: Sequence[str]) -> tuple[list[list[str | None]], list[int]]:
    """Return what each reader found, and the reader of each match in the order of the lines."""
    of_each: list[list[str | None]] = [[] for _ in readers]
    whose: list[int] = []
    for line in lines:
        before = len(whose)
        for number, reader in enumerate(readers):
            if reader.literal in line and (found := reader.in_line(line)):
                if len(whose) > before:
                    raise ValueError("two patterns read one line")
                of_each[number] += found
                whose += [number] * reader.count(found)
    return of_each, whose


@lru_cache(maxsize=64)
def compiled(where: str, pattern: str, groups: tuple[str, ...] | None) -> Reader:
    """Compile a pattern of a framework folder, with named groups out of ``groups``, or of any name.

    ASCII, so that a digit of another script is not read as a number.
    """
    try:
        regex = re.compile(pattern, re.ASCII)
    except re.error as error:
        raise ConfigError(f"not a regular expression: {error}", kind="template_error", where=where) from error
    unknown = [name for name in regex.groupindex if groups is not None and name not in groups]
    if unknown or not regex.groupindex:
        got = ", ".join(unknown) or "none"
        raise ConfigError(
            f"expected named groups out of {', '.join(groups or ('any',))}, got {got}", kind="template_error", where=where
        )
    if _repeats_a_repeat(pattern):
        raise ConfigError(
            "a repeated group holds a repeat",
            kind="template_error",
            where=where,
            hint="such a pattern can take for ever on a hostile line; repeat only plain characters or classes",
        )
    literal = _literal(pattern)
    of_lines = re.compile(pattern, re.ASCII | re.MULTILINE) if literal and _stays_in_line(pattern) else None
    return Reader(regex, literal, of_lines)


def _stays_in_line(pattern: str) -> bool:
    """Tell whether nothing in a pattern takes a line end, nor asks for the end of the whole text.

    >>> _stays_in_line(r"^a[0-9.]+ \\S*$"), _stays_in_line(r"a\\s+b"), _stays_in_line("a[^b]"), _stays_in_line(r"a\\Z")
    (True, False, False, False)
    """
    taking = [token for token in _tokens(pattern) if token == "\n" or (token[0] in "\\[" and len(token) > 1)]
    return not any(token in (r"\A", r"\Z") or re.fullmatch(token, "\n", re.ASCII) for token in taking)


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

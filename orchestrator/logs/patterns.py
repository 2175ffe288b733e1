"""The regular expressions of a log grammar: which are refused, and the plain text that every match
of a pattern contains.

>>> reader = compile_pattern("log.patterns[0]", r"step=(?P<step>[0-9]+)", ("step",))
>>> reader.literal, reader.column(reader.split("step=1 step=2"), "step")
('step=', ['1', '2'])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.logs.grammar import units_hint
from orchestrator.logs.steps import GROUPS
from orchestrator.logs.text import MPIRUN, Tags

RANKS = ("rank", "local_rank")
"""The groups of a prefix of which it has one."""

_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[*+]|\{\d*,?\d*\}|[()]|.", re.DOTALL)
_NOT_PLAIN = re.compile(r"\(\?[#aiLmsux-]|\\(?![dDwWsSbBAZtnrfv])[0-9A-Za-z]")


@dataclass(frozen=True, slots=True)
class Reader:
    """A compiled pattern.

    Every match contains ``literal``, so text without it need not be searched. ``of_lines`` finds in
    whole text the matches of ``pattern`` in single lines; None if a match could extend into the
    next line. ``in_blocks`` is the same for a pattern without plain text of two characters: one
    search of a block, behind a line end, is faster than one of each line.
    """

    pattern: re.Pattern[str]
    literal: str
    of_lines: re.Pattern[str] | None = None
    in_blocks: re.Pattern[str] | None = None

    def may_be_in(self, text: str, is_tagged: bool) -> bool:
        """Return False if no line of a block, behind a line end, can match. ``is_tagged``: a line
        may begin behind the tag of a rank.
        """
        if self.in_blocks and not is_tagged:
            return bool(self.in_blocks.search(text))
        return self.literal in text

    def split(self, text: str) -> list[str | None]:
        """Return the matches in the lines of a text as one flat list: for each match the text
        before it, then its groups.
        """
        if self.of_lines:
            return self.of_lines.split(text)
        lines = (line for line in text.split("\n") if self.literal in line)
        return list(chain.from_iterable(map(self.in_line, lines)))

    def in_line(self, line: str) -> list[str | None]:
        """Return the matches in one line, in the form of `split`."""
        return self.pattern.split(line)[:-1]

    def count(self, matches: Sequence[str | None]) -> int:
        """Return the number of matches in a list that `split` returned."""
        return len(matches) // (self.pattern.groups + 1)

    def column(self, matches: Sequence[str | None], name: str) -> Sequence[Any]:
        """Return the text of one group for each match. Raises ValueError if it is empty in a match."""
        texts = matches[self.pattern.groupindex[name] :: self.pattern.groups + 1]
        if not all(texts):
            raise ValueError(name)
        return texts


def columns(
    readers: Sequence[Reader], text: str
) -> tuple[dict[str, str], dict[str, Sequence[Any]]]:
    """Return the matched text by group: values for the step before the first match, and columns
    with a row per step.

    Matches of a pattern without a step belong to the step before them. Raises ValueError if that is
    ambiguous: a group is empty, two patterns match in one line, or a step has a value twice.

    >>> first = compile_pattern("0", "at (?P<step>[0-9]+)", ("step",))
    >>> two = first, compile_pattern("1", "in (?P<seconds>[0-9]+)", ("seconds",))
    >>> columns(two, "in 3\\nat 7\\nat 8\\nin 5")
    ({'seconds': '3'}, {'step': ['7', '8'], 'seconds': [None, '5']})
    """
    if len(readers) == 1 and {"step"} < readers[0].pattern.groupindex.keys():
        matches = readers[0].split(text)
        return {}, {
            name: readers[0].column(matches, name) for name in readers[0].pattern.groupindex
        }
    by_reader, order = _matches(readers, text.split("\n"))
    # Row 0 is the step before the first match.
    all_rows = list(
        accumulate(("step" in readers[number].pattern.groupindex for number in order), initial=0)
    )[1:]
    table: dict[str, list[str | None]] = {}
    for number, reader in enumerate(readers):
        rows = [row for row, matched in zip(all_rows, order, strict=True) if matched == number]
        for name in reader.pattern.groupindex:
            column = table.setdefault(name, [None] * (max(all_rows, default=0) + 1))
            before = column.count(None)
            for row, value in zip(rows, reader.column(by_reader[number], name), strict=True):
                column[row] = value
            if before - column.count(None) != len(rows):
                raise ValueError("a step has a value twice")
    if all_rows.count(0) > 1:
        raise ValueError("two matches before the first step")
    leading = {name: column[0] for name, column in table.items() if column[0] is not None}
    return leading, {name: column[1:] for name, column in table.items()}


def _matches(
    readers: Sequence[Reader], lines: Sequence[str]
) -> tuple[list[list[str | None]], list[int]]:
    """Return the matches of each reader, and the number of the reader for each match in the order
    of the lines.
    """
    by_reader: list[list[str | None]] = [[] for _ in readers]
    order: list[int] = []
    for line in lines:
        before = len(order)
        for number, reader in enumerate(readers):
            if reader.literal in line and (matches := reader.in_line(line)):
                if len(order) > before:
                    raise ValueError("two patterns match in one line")
                by_reader[number] += matches
                order += [number] * reader.count(matches)
    return by_reader, order


@lru_cache(maxsize=64)
def compile_pattern(
    where: str, pattern: str, groups: tuple[str, ...] | None, needs_groups: bool = True
) -> Reader:
    """Compile a pattern of a framework folder. Its named groups must be in ``groups``; None allows
    any name.

    Uses re.ASCII, so that a digit of another script is not read as a number. Raises ConfigError
    (template_error).
    """
    try:
        regex = re.compile(pattern, re.ASCII)
    except re.error as error:
        raise ConfigError(
            f"not a regular expression: {error}", kind="template_error", where=where
        ) from error
    unknown = [name for name in regex.groupindex if groups is not None and name not in groups]
    if unknown or (needs_groups and not regex.groupindex):
        got = ", ".join(unknown) or "none"
        is_of_steps = where.startswith("log.patterns")
        hint = ""
        if unknown and is_of_steps:
            declared = "a result of another name is a metric: declare it under log.metrics"
            hint = units_hint(unknown) or declared
        message = f"expected named groups from {', '.join(groups or ('any',))}, got {got}"
        raise ConfigError(message, kind="template_error", where=where, hint=hint)
    if _repeats_a_repeat(pattern):
        raise ConfigError(
            "a repeated group contains a repeat",
            kind="template_error",
            where=where,
            hint="such a pattern can take forever on a hostile line; repeat only plain characters or classes",
        )
    literal = literal_of(pattern)
    is_of_lines = not _NOT_PLAIN.search(pattern) and _stays_in_line(pattern)
    in_text = re.compile(pattern, re.ASCII | re.MULTILINE) if is_of_lines else None
    in_blocks = None
    if in_text and len(literal) < 2:  # a text of one character is in nearly every line
        in_blocks = re.compile(_behind_line_end(pattern), re.ASCII | re.MULTILINE)
    return Reader(regex, literal, in_text if literal else None, in_blocks)


def lines_with(text: str, readers: Sequence[Reader]) -> list[str]:
    """Return the lines of a text that contain the literal of any reader, without empty lines."""
    lines = filter(None, text.split("\n")) if readers else ()
    return [line for line in lines if any([reader.literal in line for reader in readers])]


def step_readers(
    patterns: Mapping[str, str], groups: Sequence[str]
) -> tuple[list[Reader], list[Reader]]:
    """Return the readers of step lines, without groups of metrics, and the readers of metrics in
    them.

    ``patterns`` are by key; ``groups`` names the groups of metrics. Raises ConfigError like
    `compile_pattern`.

    >>> steps, metrics = step_readers({"log.patterns[0]": "step (?P<step>[0-9]+) mfu (?P<mfu>[0-9.]+)%"}, ["mfu"])
    >>> list(steps[0].pattern.groupindex), list(metrics[0].pattern.groupindex)
    (['step'], ['step', 'mfu'])
    """
    steps, metrics = [], []
    for key, pattern in patterns.items():
        reader = compile_pattern(key, pattern, (*GROUPS, *groups))
        names = [name for name in groups if name in reader.pattern.groupindex]
        metrics += [reader] if names else []
        for name in names:
            pattern = pattern.replace(f"(?P<{name}>", "(?:")
        steps.append(compile_pattern(key, pattern, GROUPS) if names else reader)
    return steps, metrics


def tags_of(prefix: str) -> Tags:
    """Return the tags of a launcher with this prefix; mpirun's if it is empty.

    Raises ConfigError like `compile_pattern`, and for a prefix that could match the end of a line
    or nothing at all.

    >>> tags_of(r"^ *(?P<rank>[0-9]+): ").pieces("0: step 1\\n11: step 1")
    [(None, ''), (0, 'step 1\\n'), (11, 'step 1')]
    """
    if not prefix:
        return MPIRUN
    reader = compile_pattern("log.prefix", prefix, RANKS)
    if len(reader.pattern.groupindex) != 1:
        raise ConfigError(
            "expected one of the groups rank and local_rank, got both",
            kind="template_error",
            where="log.prefix",
        )
    if not reader.of_lines:
        raise ConfigError(
            "expected plain characters outside the group, and nothing that matches the end of a line",
            kind="template_error",
            where="log.prefix",
            hint=r"else other digits are read as ranks; such as '^\[(?P<rank>[0-9]+)\]<std(?:out|err)>:', ' *' for \s*",
        )
    return Tags(reader.of_lines, reader.literal, next(iter(reader.pattern.groupindex)))


def _stays_in_line(pattern: str) -> bool:
    """Return True if no part of a pattern matches a line end or requires the start or end of the
    whole text.

    >>> _stays_in_line(r"^a[0-9.]+ \\S*$"), _stays_in_line(r"a\\s+b"), _stays_in_line("a[^b]"), _stays_in_line(r"a\\Z")
    (True, False, False, False)
    """
    taking = [
        token
        for token in tokens(pattern)
        if token == "\n" or (token[0] in "\\[" and len(token) > 1)
    ]
    return not any(
        token in (r"\A", r"\Z") or re.fullmatch(token, "\n", re.ASCII) for token in taking
    )


def _behind_line_end(pattern: str) -> str:
    """Return the pattern with a line end in place of its ``^``: a plain character is found much
    faster.

    >>> _behind_line_end("^ {0,4}(?:a|b)"), _behind_line_end("^a|^b")
    ('\\n {0,4}(?:a|b)', '^a|^b')
    """
    depth = 0
    for token in tokens(pattern):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            return pattern
    if pattern.startswith("^"):
        return f"\n{pattern[1:]}"
    return pattern


def literal_of(pattern: str) -> str:
    """Return the longest text that every match of ``pattern`` contains, judged by its plain
    characters outside groups.

    >>> literal_of(r"^orch step=(?P<step>[0-9]+)x{3} s?"), literal_of(r"a|b"), literal_of(r"(?i)step")
    ('orch step=', '', '')
    """
    if _NOT_PLAIN.search(pattern):
        return ""
    depth, runs = 0, [""]
    for token in tokens(pattern):
        depth += (token == "(") - (token == ")")
        if depth or token == ")":
            runs.append("")
        elif token == "|":
            return ""
        elif token in "*+?" or token[0] == "{":
            # A `{` that is not a repeat is rare; treating it as one only shortens the literal.
            runs[-1] = runs[-1][:-1]
            runs.append("")
        elif token in ".^$" or token[0] == "[" or (token[0] == "\\" and token[1].isalnum()):
            runs.append("")
        else:
            runs[-1] += token[-1]
    return max((run for run in runs if run.isascii()), key=len, default="")


def shortest(literals: Iterable[str]) -> list[str]:
    """Return the texts that contain no other one; any text with one of the others has one of these.

    >>> shortest(["step=", "orch step=", "loss"])
    ['loss', 'step=']
    """
    found: list[str] = []
    for literal in sorted(set(literals), key=lambda text: (len(text), text)):
        if not any(short in literal for short in found):
            found.append(literal)
    return found


def _repeats_a_repeat(pattern: str) -> bool:
    """Return True if an unbounded repeat contains another one, as in ``(a+)+``.

    >>> _repeats_a_repeat(r"(?:\\\\s+[0-9]+)*x"), _repeats_a_repeat(r"[0-9]+(?:[.][0-9]+)?")
    (True, False)
    """
    holds = [False]
    closed = False
    for token in tokens(pattern):
        unbounded = token in "*+" or (token.startswith("{") and token.endswith(",}"))
        if unbounded and closed:
            return True
        if token == "(":
            holds.append(False)
        inner = holds.pop() if token == ")" and len(holds) > 1 else False
        closed = inner
        holds[-1] = holds[-1] or inner or unbounded
    return False


def tokens(pattern: str) -> Iterator[str]:
    """Yield the parts of a pattern: an escape, a class, a bracket, a repeat, or a single character."""
    return (match[0] for match in _TOKENS.finditer(pattern))

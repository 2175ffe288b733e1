"""Find the lines that a published rule needs, in truncated, concatenated, coloured and restarted logs.

If the step goes back, the log holds several runs: the last complete one counts, with a warning.

>>> last_attempt([(20, "a"), (40, "b"), (20, "c"), (120, "d")], slack=0, last=120)
([(20, 'c'), (120, 'd')], ('the step goes back in the log, 1 times: the last complete run counts',))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

from orchestrator.errors import DataError

__all__ = ["before", "last_attempt", "lines_in", "refused", "steps_said", "whole_attempt"]

_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_REACH = 100
_Item = TypeVar("_Item")


def lines_in(log: bytes, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
    """Return all matches, also several in one line. A last line without a line end is left out: a number in it may be cut."""
    end = max(log.rfind(b"\n"), log.rfind(b"\r")) + 1
    if b"\x1b" in log:
        return pattern.finditer(_ESCAPES.sub(b"", log[:end]))
    return pattern.finditer(log, 0, end)


def before(match: re.Match[bytes], pattern: re.Pattern[bytes]) -> bytes | None:
    """Return the nearest match of ``pattern`` shortly before a match, in the same line and log entry; None without one.

    Lines are found by their fixed words first: searching a whole log for timestamps takes ten times as long.
    """
    head: bytes = match.string[max(0, match.start() - _REACH) : match.start()]
    matches = pattern.findall(head, max(head.rfind(mark) for mark in (b"\n", b"\r", b"[")) + 1)
    return matches[-1] if matches else None


def whole_attempt(
    items: Sequence[tuple[int, _Item]], need: Sequence[int], what: str, least: Sequence[int] | None = None
) -> tuple[dict[int, _Item], tuple[str, ...]]:
    """Return the lines of the last complete attempt by step; the first line of a step that is logged twice.

    Raise DataError (result_invalid) if a step of ``need`` is missing, with the number of steps present. With ``least``, only
    these must be there, and others that are missing are a warning.
    """
    attempt, warnings = last_attempt(items, slack=0, last=need[-1])
    lines: dict[int, _Item] = {}
    for step, item in attempt:
        lines.setdefault(step, item)
    missing = [step for step in need if step not in lines]
    if missing and not set(least or missing) & set(missing):
        return lines, (*warnings, f"{len(missing)} of {len(need)} lines are missing, the first of {missing[0]}")
    if missing:
        got = f"found {len(need) - len(missing)} of {len(need)}, without {missing[0]}; {steps_said(list(lines))}"
        raise refused(f"expected {what}", got)
    return lines, warnings


def last_attempt(items: Sequence[tuple[int, _Item]], slack: int, last: int) -> tuple[list[tuple[int, _Item]], tuple[str, ...]]:
    """Split where the step decreases by more than ``slack``; return the last part that reaches ``last``, else the longest."""
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
    warning = f"the step goes back in the log, {again} times: the last complete run counts"
    return chosen, (warning,) if again else ()


def steps_said(steps: Sequence[int]) -> str:
    """Return as text which steps a log has."""
    return f"the log goes from {min(steps)} to {max(steps)}" if steps else "the log has no such line"


def refused(expected: str, got: str, hint: str = "") -> DataError:
    """Return the error for a log that yields no number."""
    return DataError(f"{expected}, {got}", kind="result_invalid", hint=hint, phase="summarize")

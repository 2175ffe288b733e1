"""Finding the lines that a published rule needs: in cut, glued, coloured and restarted logs.

Where the step goes back the log holds several runs; the last whole one counts, and that is said.

>>> last_attempt([(20, "a"), (40, "b"), (20, "c"), (120, "d")], slack=0, last=120)
([(20, 'c'), (120, 'd')], ('the step goes back in the log, 1 times: the last run that is whole counts',))
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
    """Return all matches, several in one line too. An unterminated last line is left out: a number may be cut in it."""
    end = max(log.rfind(b"\n"), log.rfind(b"\r")) + 1
    if b"\x1b" in log:
        return pattern.finditer(_ESCAPES.sub(b"", log[:end]))
    return pattern.finditer(log, 0, end)


def before(match: re.Match[bytes], pattern: re.Pattern[bytes]) -> bytes | None:
    """Return what ``pattern`` finds shortly before a match, in its own line and entry: the nearest, None without any.

    A line is found by its fixed words first, as searching all of a log for a clock takes ten times as long.
    """
    head: bytes = match.string[max(0, match.start() - _REACH) : match.start()]
    found = pattern.findall(head, max(head.rfind(mark) for mark in (b"\n", b"\r", b"[")) + 1)
    return found[-1] if found else None


def whole_attempt(
    found: Sequence[tuple[int, _Item]], need: Sequence[int], what: str
) -> tuple[dict[int, _Item], tuple[str, ...]]:
    """Return the lines of the last complete attempt by their step; of a step that is told twice the first line.

    Raises DataError (result_invalid) where a step of ``need`` is missing, saying how many there are.
    """
    attempt, warnings = last_attempt(found, slack=0, last=need[-1])
    lines: dict[int, _Item] = {}
    for step, item in attempt:
        lines.setdefault(step, item)
    missing = [step for step in need if step not in lines]
    if missing:
        got = f"found {len(need) - len(missing)} of {len(need)}, without {missing[0]}; {steps_said(list(lines))}"
        raise refused(f"expected {what}", got)
    return lines, warnings


def last_attempt(found: Sequence[tuple[int, _Item]], slack: int, last: int) -> tuple[list[tuple[int, _Item]], tuple[str, ...]]:
    """Split where the step goes back by more than ``slack``; return the last part that reaches ``last``, or the longest."""
    attempts: list[list[tuple[int, _Item]]] = [[]]
    highest = -1
    for step, item in found:
        if step < highest - slack:
            attempts.append([])
            highest = step
        attempts[-1].append((step, item))
        highest = max(highest, step)
    whole = [attempt for attempt in attempts if any(step >= last for step, _ in attempt)]
    chosen = whole[-1] if whole else max(attempts, key=len)
    again = len(attempts) - 1
    warning = f"the step goes back in the log, {again} times: the last run that is whole counts"
    return chosen, (warning,) * (again > 0)


def steps_said(steps: Sequence[int]) -> str:
    """Return in words which steps a log has."""
    return f"the log goes from {min(steps)} to {max(steps)}" if steps else "the log has no such line at all"


def refused(expected: str, got: str, hint: str = "") -> DataError:
    """Return the error of a log that gives no number."""
    return DataError(f"{expected}, {got}", kind="result_invalid", hint=hint, phase="summarize")

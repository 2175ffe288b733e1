"""The result of a bisect as lines for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from orchestrator.features.search.bisection import Bisected, BisectRecord, Fixed
from orchestrator.features.search.bisection.answer import EXPLAINED, PART, Tried, recorded_change
from orchestrator.features.search.bisection.shares import Share
from orchestrator.features.search.evidence import Change
from orchestrator.plural import plural
from orchestrator.report.cells import number
from orchestrator.report.text import one_line

__all__ = ["answer", "differences", "left_open", "tried"]


def answer(result: Bisected) -> str:
    """Return the answer in one sentence."""
    words: dict[str, Callable[[Bisected], str]] = {
        "explained": _explained,
        "part": _explained,
        "unproven": _unproven,
        "gone": _gone,
        "failed": lambda result: f"no result: {result.why}",
        "unfinished": lambda result: "the bisect is not finished",
    }
    return one_line(words[result.verdict](result))


def left_open(result: Bisected) -> list[str]:
    """Return what remains after the answer: settings outside of it, and differences that no run can
    have either way.
    """
    lines = []
    if result.verdict == PART:
        lines.append("what explains the rest could not be determined")
    if result.verdict in (EXPLAINED, PART):
        if unsure := [text for text in result.doubtful if text not in result.untested]:
            lines.append(f"that {_and(unsure)} {_takes(unsure)} part in it is not certain")
        if untested := result.untested:
            runs = "runs without it" if len(untested) == 1 else "runs without each of them"
            lines.append(
                f"that {_and(untested)} {_takes(untested)} part in it is not certain: no time was left for {runs}"
            )
        if result.is_early:
            lines.append(
                "no time was left to search further: a smaller set, or one that explains more, is possible"
            )
    shares = {text: result.alone[text] for text in result.outside if text in result.alone}
    for text, part in shares.items():
        lines.append(f"{text} alone explains {_share(part)} of it")
    if unknown := [
        text for text in result.outside if text not in shares and result.verdict != "gone"
    ]:
        lines.append(f"not measured alone: {', '.join(unknown)}")
    return [one_line(line) for line in (*lines, *map(_fixed, result.fixed))]


def differences(record: BisectRecord) -> list[str]:
    """Return a line for each difference between A and B: first those that a run can have either
    way.
    """
    settable = [
        f"{difference.name}: {_value(difference.before)} → {_value(difference.after)}"
        for difference in record.differences
    ]
    return [one_line(line) for line in (*settable, *map(_fixed, record.fixed))]


def tried(result: Bisected) -> list[str]:
    """Return a line for each set of differences that ran, those of the verification last."""
    lines = []
    for verifying in (False, True):
        rows = [row for row in result.tried if row.verifying == verifying]
        if rows:
            lines += [
                "verification:" if verifying else "search:",
                *(_line(row, result) for row in rows),
            ]
    return lines


def _line(row: Tried, result: Bisected) -> str:
    count = len(result.outside) + len(result.causes) + len(result.doubtful)
    name = (
        "A"
        if not row.settings
        else "B"
        if len(row.settings) == count
        else f"A with {' '.join(row.settings)}"
    )
    if row.failure:
        return one_line(f"  {name}: not run: {row.failure}")
    share = f"  {_share(row.share)} of the change" if row.share else ""
    return one_line(f"  {name}: {number(row.typical)} {result.unit}, {plural(row.n, 'run')}{share}")


def _explained(result: Bisected) -> str:
    named = result.causes + result.doubtful  # the share is that of all of them
    together = " together" if len(named) > 1 else ""
    verb = "explain" if len(named) > 1 else "explains"
    if result.share is None:
        return f"{_and(named)}{together} {verb} {_change(result)}, because A and B were run again and differ in nothing else"
    alone = [f"{text} {_share(result.alone[text])}" for text in named if text in result.alone]
    apart = f"; alone {', '.join(alone)}" if len(named) > 1 and alone else ""
    return f"{_and(named)}{together} {verb} {_share(result.share)} of {_change(result)}{apart}"


def _change(result: Bisected) -> str:
    ends = f" ({_percents(result.change)})" if result.change else ""
    return f"the change from {number(result.before)} to {number(result.after)} {result.unit}{ends}"


def _gone(result: Bisected) -> str:
    recorded = f"{result.recorded_ratio - 1:+.1%}"
    said = (
        "the change could not be reproduced"
        if recorded_change(result.a, result.b)
        else "A and B do not differ"
    )
    if result.change is None:
        return f"{said}; it was {recorded}"
    pairs = f"{plural(result.change.pairs, 'pair')} of runs"
    return f"{said}: B against A {_percents(result.change)}, in {pairs}; it was {recorded}"


def _unproven(result: Bisected) -> str:
    return f"it could not be determined what explains {_change(result)}: {_why_unproven(result)}"


def _why_unproven(result: Bisected) -> str:
    if result.evidence and result.share is not None and (result.share.low <= 0):
        named = _and(result.doubtful)
        return f"{named} explained {_share(result.share)} in the verification, possibly nothing"
    if result.evidence:
        return "the verification did not show a certain change from A to B"
    return result.why


def _percents(change: Change) -> str:
    return f"{change.ratio - 1:+.1%}, {change.interval.low - 1:+.1%} to {change.interval.high - 1:+.1%}"


def _share(share: Share) -> str:
    if not math.isfinite(share.low) or not math.isfinite(share.high):
        return "an unknown share"
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f} %)"


def _fixed(fixed: Fixed) -> str:
    return f"cannot be chosen for a run: {fixed.name}: {fixed.before} → {fixed.after}: {fixed.why}"


def _value(value: str | int | float | bool | None) -> str:
    return (
        "not set"
        if value is None
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _and(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def _takes(texts: Sequence[str]) -> str:
    return "take" if len(texts) > 1 else "takes"

"""The result of a bisect as lines for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from orchestrator.analysis.bisect import Bisected, BisectRecord, Fixed
from orchestrator.analysis.bisect.answer import EXPLAINED, PART, Tried, recorded_change
from orchestrator.analysis.bisect.shares import Change, Share
from orchestrator.report.cells import number
from orchestrator.report.text import one_line

__all__ = ["answer", "differences", "left_open", "tried"]


def answer(found: Bisected) -> str:
    """Return the answer in one sentence."""
    words: dict[str, Callable[[Bisected], str]] = {
        "explained": _explained,
        "part": _explained,
        "unproven": _unproven,
        "gone": _gone,
        "failed": lambda one: f"no result: {one.why}",
        "unfinished": lambda one: "the bisect is not finished",
    }
    return one_line(words[found.verdict](found))


def left_open(found: Bisected) -> list[str]:
    """Return what remains after the answer: settings outside of it, and differences that no run can have either way."""
    lines = []
    if found.verdict == PART:
        lines.append("what explains the rest could not be told")
    if found.doubtful and found.verdict in (EXPLAINED, PART) and found.share is not None:
        lines.append(f"that {_and(found.doubtful)} {_takes(found.doubtful)} part is not certain")
    shares = {text: found.alone[text] for text in found.outside if text in found.alone}
    for text, part in shares.items():
        lines.append(f"{text} alone explains {_share(part)} of it")
    if unknown := [text for text in found.outside if text not in shares and found.verdict != "gone"]:
        lines.append(f"not measured alone: {', '.join(unknown)}")
    return [one_line(line) for line in (*lines, *map(_fixed, found.fixed))]


def differences(record: BisectRecord) -> list[str]:
    """Return a line for each difference between A and B: first those that a run can have either way."""
    settable = [f"{one.name}: {_value(one.before)} → {_value(one.after)}" for one in record.differences]
    return [one_line(line) for line in (*settable, *map(_fixed, record.fixed))]


def tried(found: Bisected) -> list[str]:
    """Return a line for each set of differences that ran, those of the verification last."""
    lines = []
    for verifying in (False, True):
        rows = [row for row in found.tried if row.verifying == verifying]
        if rows:
            lines += ["verification:" if verifying else "search:", *(_line(row, found) for row in rows)]
    return lines


def _line(row: Tried, found: Bisected) -> str:
    count = len(found.outside) + len(found.causes) + len(found.doubtful)
    name = "A" if not row.settings else "B" if len(row.settings) == count else f"A with {' '.join(row.settings)}"
    if row.failure:
        return one_line(f"  {name}: not run: {row.failure}")
    share = f"  {_share(row.share)} of the change" if row.share else ""
    return one_line(f"  {name}: {number(row.typical)} {found.unit}, {row.n} runs{share}")


def _explained(found: Bisected) -> str:
    named = found.causes or found.doubtful
    together = " together" if len(named) > 1 else ""
    verb = "explain" if len(named) > 1 else "explains"
    if found.share is None:
        return f"{_and(named)}{together} {verb} {_change(found)}, because A and B were run again and differ in nothing else"
    alone = [f"{text} {_share(found.alone[text])}" for text in named if text in found.alone]
    apart = f"; alone {', '.join(alone)}" if len(named) > 1 and alone else ""
    return f"{_and(named)}{together} {verb} {_share(found.share)} of {_change(found)}{apart}"


def _change(found: Bisected) -> str:
    ends = f" ({_percents(found.change)})" if found.change else ""
    return f"the change from {number(found.before)} to {number(found.after)} {found.unit}{ends}"


def _gone(found: Bisected) -> str:
    recorded = f"{found.recorded_ratio - 1:+.1%}"
    said = "the change was not seen again" if recorded_change(found.a, found.b) else "A and B do not differ"
    if found.change is None:
        return f"{said}; it was {recorded}"
    return f"{said}: B against A {_percents(found.change)}, in {found.change.pairs} pairs of runs; it was {recorded}"


def _unproven(found: Bisected) -> str:
    return f"it could not be told what explains {_change(found)}: {_why_unproven(found)}"


def _why_unproven(found: Bisected) -> str:
    if found.evidence and found.share is not None and (found.share.low <= 0):
        named = _and(found.doubtful)
        return f"{named} explained {_share(found.share)} in the verification, which may be nothing"
    if found.evidence:
        return "in the verification the change itself was not certain"
    return found.why


def _percents(found: Change) -> str:
    return f"{found.ratio - 1:+.1%}, {found.interval.low - 1:+.1%} to {found.interval.high - 1:+.1%}"


def _share(found: Share) -> str:
    if not math.isfinite(found.low) or not math.isfinite(found.high):
        return "an unknown share"
    return f"{100 * found.value:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f} %)"


def _fixed(one: Fixed) -> str:
    return f"not run either way: {one.name}: {one.before} → {one.after}: {one.why}"


def _value(value: str | int | float | bool | None) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _and(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def _takes(texts: Sequence[str]) -> str:
    return "take" if len(texts) > 1 else "takes"

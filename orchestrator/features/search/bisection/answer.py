"""The result of a bisect, from the files of its bench alone: the answer, its evidence, and open
questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.features.search.bisection.differences import settings
from orchestrator.features.search.bisection.shares import Share, is_side, share
from orchestrator.features.search.bisection.steps import CONFIRMED, GONE, reduce_set
from orchestrator.features.search.record import BisectRecord, Candidate, Fixed, Setting, SideRecord
from orchestrator.features.search.strategy import Change, Speeds, State, change, good
from orchestrator.plan.option_values import as_written
from orchestrator.plural import join_words, plural
from orchestrator.report.cells import number
from orchestrator.report.text import one_line
from orchestrator.results.numbers.intervals import LEVEL, geometric_mean

EXPLAINED, PART, UNPROVEN, GONE_AGAIN, FAILED, UNFINISHED = (
    "explained",
    "part",
    "unproven",
    "gone",
    "failed",
    "unfinished",
)
_HALF = 0.5
_MARGIN = 0.02
"""A recorded change below this may be due to the day; its direction is not expected again."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A set of differences that ran: the settings that it takes from B, the typical value, and its
    share of the change, None where it is not known or is one of the sides. ``verifying``: in the
    verification. ``failure``: why it could not be run."""

    settings: tuple[str, ...]
    n: int
    typical: float | None
    share: Share | None
    verifying: bool
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Bisected:
    """The result.

    ``verdict``: ``explained`` if it is certain that the verified set explains more than half of the
    change, ``part`` if it certainly explains some of it, ``unproven``, ``gone`` if the change was
    not seen again, ``failed`` if A or B has no number, or ``unfinished``.

    ``causes`` are the settings of B that certainly contribute, ``doubtful`` the others of the
    verified set. ``untested`` are settings without which the set was not run, for lack of time.
    ``is_early``: there was no time either for a further round of the search, which might have found
    another set. ``share`` is the set's, from the verification alone; None for all differences
    together. ``change`` is the change from A to B in the verification or, before it, in the search;
    ``before`` and ``after`` are typical values of the same runs, in ``unit``. ``alone`` has the
    shares of single settings, from all runs.
    """

    bench_id: str
    verdict: str
    why: str
    a: SideRecord
    b: SideRecord
    metric: str
    unit: str
    recorded_ratio: float
    change: Change | None
    before: float | None
    after: float | None
    causes: tuple[str, ...]
    doubtful: tuple[str, ...]
    untested: tuple[str, ...]
    is_early: bool
    share: Share | None
    alone: Mapping[str, Share]
    outside: tuple[str, ...]
    fixed: tuple[Fixed, ...]
    tried: tuple[Tried, ...]
    evidence: tuple[str, ...]


def measure_change(a: SideRecord, b: SideRecord) -> float | None:
    """Return the logarithm of B over A as they were first measured; None if it is within two per
    cent.
    """
    ratio = b.typical / a.typical
    return math.log(ratio) if abs(ratio - 1) >= _MARGIN else None


def answer_of(bench_id: str, record: BisectRecord, state: State) -> Bisected:
    """Return the result of a bisect in this state."""
    a, b = state.sides
    final = state.verification
    chosen = final.rung.verifies if final else ()
    verified: Speeds = good(final.values) if final else {}
    speeds = verified or state.speeds
    whole = change(speeds, b, a)
    of_set = share(verified, chosen) if chosen and chosen != b else None
    verdict = _verdict(record, state, chosen, whole, of_set)
    certain: set[int] = set()
    if chosen and whole and verdict in (EXPLAINED, PART):
        certain = _certain(verified, chosen, whole)
    places = range(len(b))
    texts = settings(record.differences, b)
    members = [place for place in places if chosen and chosen[place]]
    pooled = good(state.opening, *(each.values for each in state.rounds))
    alone = {}
    for place in places if len(b) > 1 else ():
        of_single = share(pooled, tuple(int(place == other) for other in places))
        if of_single:
            alone[texts[place]] = of_single
    ran = {*final.rung.candidates, *state.refused} if final else set()
    reduced = reduce_set(chosen)
    return Bisected(
        bench_id=bench_id,
        verdict=verdict,
        why=state.failed or record.ended,
        a=record.before,
        b=record.after,
        metric=record.metric,
        unit=record.unit,
        recorded_ratio=record.after.typical / record.before.typical,
        change=whole,
        before=_typical(speeds, a),
        after=_typical(speeds, b),
        causes=tuple(texts[place] for place in members if place in certain),
        doubtful=tuple(texts[place] for place in members if place not in certain),
        untested=tuple(texts[place] for place, rest in reduced.items() if rest not in ran),
        is_early=final is not None and final.rung.is_early,
        share=of_set,
        alone=alone,
        outside=tuple(texts[place] for place in places if place not in members),
        fixed=record.fixed,
        tried=tuple(_list_tried(record, state, verified)),
        evidence=state.evidence,
    )


def _verdict(
    record: BisectRecord,
    state: State,
    chosen: Candidate,
    whole: Change | None,
    of_set: Share | None,
) -> str:
    if state.failed:
        return FAILED
    if record.ended in ("", GONE):
        return GONE_AGAIN if record.ended else UNFINISHED
    if record.ended != CONFIRMED or not chosen or not whole or not whole.is_certain:
        return UNPROVEN
    recorded = measure_change(record.before, record.after)
    if recorded is not None and (whole.ratio - 1) * recorded < 0:
        return UNPROVEN
    if all(chosen):
        return EXPLAINED
    if of_set is None or of_set.low <= 0:
        return UNPROVEN
    return EXPLAINED if of_set.low >= _HALF else PART


def _certain(verified: Speeds, chosen: Candidate, whole: Change) -> set[int]:
    """Return the places of the differences that the set certainly needs, by the verification alone.

    Without each of them, the value is further from B's. Their levels are corrected for their number
    (Bonferroni).
    """
    if sum(chosen) == 1:
        return {chosen.index(1)}
    level = 1 - (1 - LEVEL) / sum(chosen)
    needed = set()
    for place, rest in reduce_set(chosen).items():
        to_rest = change(verified, chosen, rest, level)
        if to_rest and to_rest.is_certain and (to_rest.ratio > 1) == (whole.ratio > 1):
            needed.add(place)
    return needed


def _list_tried(record: BisectRecord, state: State, verified: Speeds) -> list[Tried]:
    rows = []
    for speeds, verifying in ((state.speeds, False), (verified, True)):
        for candidate in sorted(speeds, key=lambda candidate: (sum(candidate), candidate)):
            taken = tuple(settings(record.differences, candidate))
            part = None if is_side(candidate) else share(speeds, candidate)
            typical = _typical(speeds, candidate)
            rows.append(Tried(taken, len(speeds[candidate]), typical, part, verifying))
    for candidate, why in state.refused.items():
        if candidate not in state.speeds:
            taken = tuple(settings(record.differences, candidate))
            rows.append(Tried(taken, 0, None, None, False, why))
    return rows


def _typical(speeds: Speeds, candidate: Candidate) -> float | None:
    if candidate not in speeds:
        return None
    return geometric_mean(list(speeds[candidate].values()))


# --- in words ------------------------------------------------------------------------------------


def answer(result: Bisected) -> str:
    """Return the answer in one sentence."""
    change, share = result.change, result.share
    ends = f" ({_percents(change)})" if change else ""
    speeds = f"from {number(result.before)} to {number(result.after)} {result.unit}"
    of_change = f"the change {speeds}{ends}"
    named = result.causes + result.doubtful  # the share covers all of them
    if result.verdict == UNFINISHED:
        text = "the bisect is not finished"
    elif result.verdict == FAILED:
        text = f"no result: {result.why}"
    elif result.verdict == GONE_AGAIN:
        is_known = measure_change(result.a, result.b) is not None
        text = "the change could not be reproduced" if is_known else "A and B do not differ"
        if change:
            pairs = plural(change.pairs, "pair")
            text += f": B against A {_percents(change)}, in {pairs} of runs"
        text += f"; it was {result.recorded_ratio - 1:+.1%}"
    elif result.verdict == UNPROVEN:
        why = result.why
        if result.evidence:
            why = "the verification did not show a certain change from A to B"
        if result.evidence and share and share.low <= 0:
            part = f"explained {_share(share)} in the verification"
            why = f"{join_words(result.doubtful)} {part}, possibly nothing"
        text = f"it could not be determined what explains {of_change}: {why}"
    else:
        verb = " together explain" if len(named) > 1 else " explains"
        text = f"{join_words(named)}{verb} "
        if share:
            text += f"{_share(share)} of {of_change}"
        else:
            text += f"{of_change}, because A and B were run again and differ in nothing else"
        alone = [f"{text} {_share(result.alone[text])}" for text in named if text in result.alone]
        if share and len(named) > 1 and alone:
            text += f"; alone {', '.join(alone)}"
    return one_line(text)


def left_open(result: Bisected) -> list[str]:
    """Return open questions: settings outside of the answer, and differences that no run can have
    either way.
    """
    lines = []
    if result.verdict == PART:
        lines.append("what explains the rest could not be determined")
    if result.verdict in (EXPLAINED, PART):
        unsure = [text for text in result.doubtful if text not in result.untested]
        which = "each of them" if len(result.untested) > 1 else "it"
        for texts, why in (
            (unsure, ""),
            (result.untested, f": no time was left for runs without {which}"),
        ):
            verb = "take" if len(texts) > 1 else "takes"
            if texts:
                lines.append(f"that {join_words(texts)} {verb} part in it is not certain{why}")
        if result.is_early:
            which = "a smaller set, or one that explains more, is possible"
            lines.append(f"no time was left to search further: {which}")
    known = [text for text in result.outside if text in result.alone]
    unknown = [text for text in result.outside if text not in result.alone]
    for text in known:
        lines.append(f"{text} alone explains {_share(result.alone[text])} of it")
    if unknown and result.verdict != GONE_AGAIN:
        lines.append(f"not measured alone: {', '.join(unknown)}")
    return [one_line(line) for line in (*lines, *map(_describe_fixed, result.fixed))]


def differences(record: BisectRecord) -> list[str]:
    """Return a line for each difference between A and B: first those that a run can have either
    way.
    """
    lines = []
    for difference in record.differences:
        values = _value(difference.before), _value(difference.after)
        lines.append(f"{difference.name}: {values[0]} → {values[1]}")
    return [one_line(line) for line in (*lines, *map(_describe_fixed, record.fixed))]


def list_attempts(result: Bisected) -> list[list[str]]:
    """Return lines for the search and for the verification: one for each set of differences that
    ran.
    """
    tables = []
    for verifying, name in ((False, "search:"), (True, "verification:")):
        rows = [_line(row, result) for row in result.tried if row.verifying == verifying]
        if rows:
            tables.append([name, *rows])
    return tables


def _line(row: Tried, result: Bisected) -> str:
    name = f"A with {' '.join(row.settings)}" if row.settings else "A"
    if len(row.settings) == len(result.outside) + len(result.causes) + len(result.doubtful):
        name = "B"
    if row.failure:
        return one_line(f"  {name}: not run: {row.failure}")
    share = f"  {_share(row.share)} of the change" if row.share else ""
    return one_line(f"  {name}: {number(row.typical)} {result.unit}, {plural(row.n, 'run')}{share}")


def _percents(change: Change) -> str:
    ends = f"{change.interval.low - 1:+.1%} to {change.interval.high - 1:+.1%}"
    return f"{change.ratio - 1:+.1%}, {ends}"


def _share(share: Share) -> str:
    if not math.isfinite(share.low) or not math.isfinite(share.high):
        return "an unknown share"
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f} %)"


def _describe_fixed(fixed: Fixed) -> str:
    return f"cannot be chosen for a run: {fixed.name}: {fixed.before} → {fixed.after}: {fixed.why}"


def _value(value: Setting) -> str:
    return "not set" if value is None else as_written(value)

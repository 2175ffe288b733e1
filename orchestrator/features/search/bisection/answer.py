"""The result of a bisect, from the files of its bench alone: an answer, what is left open, and the
evidence for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.features.search.bisection.shares import Share, Speeds, change, is_side, share
from orchestrator.features.search.bisection.state import BisectState, bisect_state, setting
from orchestrator.features.search.bisection.steps import CONFIRMED, GONE, reduced_sets
from orchestrator.features.search.evidence import Change, reader_of
from orchestrator.features.search.record import Candidate, Fixed, SideRecord
from orchestrator.record import BenchDir
from orchestrator.results import RunResult, mean
from orchestrator.results.numbers.intervals import LEVEL

__all__ = ["EXPLAINED", "Bisected", "Tried", "bisected", "recorded_change"]

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
"""A recorded change below this may be that of another day; its direction is not expected again."""


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
    """The result. ``verdict``: ``explained`` if it is certain that the verified set explains more
    than half of the change,
    ``part`` if it certainly explains some of it, ``unproven``, ``gone`` if the change was not seen again, ``failed`` if A or B
    has no number, or ``unfinished``.

    ``causes`` are settings of B of which it is certain that they take part, ``doubtful`` others of the verified set;
    ``untested`` are those of them without which the set was not run, because the time was too short. ``is_early``: it was too
    short for a further round of the search as well, which might have found another set. ``share``
    is that of the set, of the verification alone; None for all differences together. ``change`` is
    that from A to B in the verification, or before it in the search; ``before`` and ``after`` are
    typical values of the same runs, in ``unit``.
    ``alone`` are shares of single settings, of all runs.
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

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON; numbers are unrounded, null where an end of an interval is
        infinite.
        """
        return {"schema": 1, **_finite(asdict(self))}


def recorded_change(a: SideRecord, b: SideRecord) -> float | None:
    """Return the logarithm of B over A as they were first measured; None if it is within two per
    cent.
    """
    ratio = b.typical / a.typical
    return math.log(ratio) if abs(ratio - 1) >= _MARGIN else None


def bisected(bench: BenchDir, results: Sequence[RunResult] | None = None) -> Bisected:
    """Return the result of a bisect; ``results`` are those of its runs if already read. Raise
    DataError if it is damaged.
    """
    return answer_of(bench.record().bench_id, bisect_state(bench, reader_of(bench, results)))


def answer_of(bench_id: str, state: BisectState) -> Bisected:
    """Return the result of a bisect in this state."""
    record, count = state.record, state.count
    a, b = (0,) * count, (1,) * count
    speeds = state.verified if state.verified else state.speeds
    whole = change(speeds, b, a)
    of_set = share(state.verified, state.chosen) if state.chosen and state.chosen != b else None
    certain = _certain(state, whole)
    verdict = _verdict(state, whole, of_set)
    settings = [setting(difference) for difference in record.differences]
    chosen = [place for place, taken in enumerate(state.chosen or a) if taken]
    singles = {
        place: tuple(int(other == place) for other in range(count)) for place in range(count)
    }
    pooled = _pooled(state.speeds, state.verified)
    alone = {
        settings[place]: single_share
        for place, single in singles.items()
        if count > 1 and (single_share := share(pooled, single))
    }
    proven = verdict in (EXPLAINED, PART)
    return Bisected(
        bench_id=bench_id,
        verdict=verdict,
        why=state.failed_side or record.ended,
        a=record.before,
        b=record.after,
        metric=record.metric,
        unit=record.unit,
        recorded_ratio=record.after.typical / record.before.typical,
        change=whole,
        before=_typical(speeds, a),
        after=_typical(speeds, b),
        causes=tuple(settings[place] for place in chosen if proven and place in certain),
        doubtful=tuple(settings[place] for place in chosen if not (proven and place in certain)),
        untested=tuple(settings[place] for place in _untested(state)),
        is_early=state.chosen is not None and state.record.rungs[-1].is_early,
        share=of_set,
        alone=alone,
        outside=tuple(text for place, text in enumerate(settings) if place not in chosen),
        fixed=record.fixed,
        tried=tuple(_tried(state, settings)),
        evidence=state.evidence,
    )


def _verdict(state: BisectState, whole: Change | None, of_set: Share | None) -> str:
    if state.failed_side:
        return FAILED
    if not state.record.ended:
        return UNFINISHED
    if state.record.ended == GONE:
        return GONE_AGAIN
    if (
        state.record.ended != CONFIRMED
        or state.chosen is None
        or whole is None
        or not whole.is_certain
    ):
        return UNPROVEN
    recorded = recorded_change(state.record.before, state.record.after)
    if recorded is not None and (whole.ratio - 1) * recorded < 0:
        return UNPROVEN
    if all(state.chosen):
        return EXPLAINED
    if of_set is None or of_set.low <= 0:
        return UNPROVEN
    return EXPLAINED if of_set.low >= _HALF else PART


def _certain(state: BisectState, whole: Change | None) -> set[int]:
    """Return the places of the differences of which it is certain, by the verification alone, that
    the set needs them: without each, the value is further from B's. Their levels are corrected for
    their number (Bonferroni)."""
    chosen = state.chosen
    if chosen is None or whole is None:
        return set()
    members = [place for place, taken in enumerate(chosen) if taken]
    if len(members) == 1:
        return set(members)
    needed = set()
    for place in members:
        to_rest = change(
            state.verified, chosen, reduced_sets(chosen)[place], 1 - (1 - LEVEL) / len(members)
        )
        if to_rest and to_rest.is_certain and (to_rest.ratio > 1) == (whole.ratio > 1):
            needed.add(place)
    return needed


def _untested(state: BisectState) -> list[int]:
    """Return the places of the members without which the verified set was left out of its
    verification for lack of time.
    """
    if state.chosen is None:
        return []
    ran = {*state.record.rungs[-1].candidates, *state.refused}
    return [place for place, rest in reduced_sets(state.chosen).items() if rest not in ran]


def _tried(state: BisectState, settings: Sequence[str]) -> list[Tried]:
    rows = []
    for speeds, verifying in ((state.speeds, False), (state.verified, True)):
        for candidate, by_block in sorted(speeds.items(), key=lambda item: (sum(item[0]), item[0])):
            explained = None if is_side(candidate) else share(speeds, candidate)
            rows.append(
                Tried(
                    _taken(candidate, settings),
                    len(by_block),
                    _typical(speeds, candidate),
                    explained,
                    verifying,
                )
            )
    rows += [
        Tried(_taken(candidate, settings), 0, None, None, False, why)
        for candidate, why in state.refused.items()
        if candidate not in state.speeds
    ]
    return rows


def _taken(candidate: Candidate, settings: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for taken, text in zip(candidate, settings, strict=True) if taken)


def _pooled(*parts: Speeds) -> dict[Candidate, dict[int, float]]:
    pooled: dict[Candidate, dict[int, float]] = {}
    for part in parts:
        for candidate, by_block in part.items():
            pooled.setdefault(candidate, {}).update(by_block)
    return pooled


def _typical(speeds: Speeds, candidate: Candidate) -> float | None:
    values = list(speeds.get(candidate, {}).values())
    return math.exp(mean([math.log(value) for value in values])) if values else None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

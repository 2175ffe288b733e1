"""The next candidates of a bisect, and the set of differences that it verifies, as pure functions.

First A and B run again, until it is certain that they still differ. Then each difference runs
alone, the likeliest first; then all differences together that have an effect alone; then B without
one difference at a time, which shows differences that work only together; then halves, as in delta
debugging (A. Zeller and R. Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE
Transactions on Software Engineering 28, 2002, algorithm ddmin). The search ends with the smallest
set that explains `MOST` of the change. Its measurements selected that set, so nothing is claimed
from them: A, B, the set, and the set without each of its members run again in a number of blocks
chosen before, and the answer comes from these runs alone.

>>> speeds = {(0, 0): {1: 100.0, 2: 101.0, 3: 99.0, 4: 100.0}, (1, 1): {1: 80.0, 2: 81.0, 3: 80.0, 4: 79.0}}
>>> following(2, speeds, Limit(run_s=1.0, left_s=900.0)).candidates
((1, 0), (0, 1))
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.features.search.bisection.shares import Share, find_shared_blocks, is_side, share
from orchestrator.features.search.record import Candidate, Rung
from orchestrator.features.search.strategy import Speeds, change
from orchestrator.results.numbers.t_distribution import student
from orchestrator.results.numbers.throughput import deviation

BLOCKS = 4
"""Blocks of A and B before anything else."""
MOST = 0.8
"""The share of the change that a set has to explain to end the search."""
# Why a bisect has ended, as its record says.
CONFIRMED = "verified"
GONE = "the change was not seen again"
NO_TIME = "no time was left"
LEAST_BLOCKS = 4
"""Blocks of the verification for which time is reserved, and without which there is none."""
_FIRST, _LAST = 3, 12
"""Blocks of a candidate: of its first round, and the most; each round in between doubles them."""
_LAST_OF_SIDES = 16
_TOGETHER = 6
"""Single differences that are tried in one round."""
_EXACT = 0.1
"""Half of the interval of a share below which it is taken as it is."""
_USUAL, _MOST_VERIFYING = 6, 12
_STILL = 0.25
"""Part of the recorded change below which it counts as gone."""
_SLIGHT = 0.02
"""Without a recorded change, a smaller one is none."""
_SURE = 0.98
"""Level of the interval that decides whether the change is still there."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The seconds of a run, and those that are left of the budget."""

    run_s: float
    left_s: float


def following(
    count: int,
    speeds: Speeds,
    limit: Limit,
    refused: Collection[Candidate] = (),
    recorded: float | None = None,
) -> Rung | str:
    """Return the next round, or why there is none: `GONE` or `NO_TIME`.

    A round has candidates besides A and B, which run in every block. ``count`` is the number of
    differences. ``speeds`` are all values so far, including A's and B's. ``refused`` are the
    candidates that cannot be run. ``recorded`` is the logarithm of B over A as first measured, None
    if that was within chance.
    """
    b = (1,) * count
    there = _still_there(speeds, b, recorded)
    if there is None:
        blocks = len(find_shared_blocks(speeds, b, without(b, b)))
        step = _fitting(Rung((), min(max(blocks, BLOCKS), _LAST_OF_SIDES - blocks)), limit, count)
        return step or NO_TIME
    if not there:
        return GONE
    known = _Known(count, speeds, refused)
    outcome = known.search()
    if not isinstance(outcome, list):
        return _verification(outcome, speeds, limit, refused)
    guess = known.guess()
    blocks = min(map(known.blocks, outcome))
    step = _fitting(
        Rung(tuple(outcome), min(blocks, _LAST - blocks) if blocks else _FIRST),
        limit,
        count,
        sum(guess),
    )
    return step or (
        _verification(guess, speeds, limit, refused, is_early=True) if any(guess) else NO_TIME
    )


def without(candidate: Candidate, others: Candidate) -> Candidate:
    """Return a candidate that takes the differences of ``others`` from A.

    >>> without((1, 1, 1), (0, 1, 0))
    (1, 0, 1)
    """
    return tuple(int(taken and not other) for taken, other in zip(candidate, others, strict=True))


def reduce_set(chosen: Candidate) -> dict[int, Candidate]:
    """Return a set without each of its members, by the place of that member; nothing for a set of
    one.

    >>> reduce_set((1, 0, 1))
    {0: (0, 0, 1), 2: (1, 0, 0)}
    """
    members = [place for place, taken in enumerate(chosen) if taken]
    smaller = {}
    for member in members if len(members) > 1 else ():
        rest = (taken and place != member for place, taken in enumerate(chosen))
        smaller[member] = tuple(map(int, rest))
    return smaller


class _Known:
    """The evidence on each candidate so far, and the next candidates that the search needs."""

    def __init__(self, count: int, speeds: Speeds, refused: Collection[Candidate]) -> None:
        self._count, self._speeds, self._refused = count, speeds, refused
        self._all: Candidate = (1,) * count

    def blocks(self, candidate: Candidate) -> int:
        """Return the number of blocks in which it, A and B have a value."""
        return len(
            find_shared_blocks(self._speeds, candidate, self._all, without(self._all, self._all))
        )

    def search(self) -> list[Candidate] | Candidate:
        """Return the candidates that have to be measured next, or the set of differences to verify."""
        singles = [self._of([place]) for place in range(self._count)]
        for batch in (
            singles[start : start + _TOGETHER] for start in range(0, self._count, _TOGETHER)
        ):
            hits = [candidate for candidate in batch if self._explains(candidate)]
            if hits:
                return max(hits, key=lambda candidate: self._share(candidate).value)
            if unknown := self._unknown(batch):
                return unknown
        for proposed in (self._effective(singles), self._find_needed(singles)):
            if isinstance(proposed, list):
                return proposed
            if unknown := self._unknown([proposed]):
                return unknown
            if self._explains(proposed) and proposed != self._all:
                return proposed
        return self._halve()

    def guess(self) -> Candidate:
        """Return the set that the values so far support best.

        This is the smallest set that explains the change, or B without the differences that it does
        not need. Without such a set, it is all differences with an effect alone or, if that was
        refused, the one with the largest share. The reduced B may not have run itself: the
        verification runs it.
        """
        explaining = [
            candidate
            for candidate in self._speeds
            if not is_side(candidate) and self._explains(candidate)
        ]
        singles = [self._of([place]) for place in range(self._count)]
        effective = self._effective(singles)
        left_out = reduce_set(self._all)
        left = self._of(
            [
                place
                for place, rest in left_out.items()
                if effective[place] or not self._explains(rest)
            ]
        )
        if (
            any(left)
            and left != self._all
            and left not in self._refused
            and self._explains(left) is None
        ):
            explaining.append(left)
        largest = max(singles, key=lambda single: self._share(single).low)
        default = effective if effective not in self._refused else largest
        return min(
            explaining,
            key=lambda candidate: (sum(candidate), -self._share(candidate).value),
            default=default,
        )

    def _effective(self, singles: Sequence[Candidate]) -> Candidate:
        """Return all differences together that certainly have an effect alone, in the change's
        direction.
        """
        return self._of(
            [place for place, single in enumerate(singles) if self._share(single).low > 0]
        )

    def _find_needed(self, singles: Sequence[Candidate]) -> list[Candidate] | Candidate:
        """Return all differences together that have an effect alone, or without which B is
        certainly less changed; before that is known, the candidates to measure."""
        left_out = [without(self._all, single) for single in singles]
        if unknown := self._unknown(left_out):
            return unknown
        effective, refused = self._effective(singles), self._refused
        lost = [rest not in refused and self._share(rest).high < 1 for rest in left_out]
        return self._of([place for place in range(self._count) if effective[place] or lost[place]])

    def _halve(self) -> list[Candidate] | Candidate:
        """Return the result of ddmin, or the candidates that it has to know next."""
        smallest, parts = self._all, 2
        while sum(smallest) > 1:
            chunks = list(self._chunks(smallest, parts))
            tried = [*chunks, *(without(smallest, chunk) for chunk in chunks)]
            tried = [
                candidate
                for candidate in dict.fromkeys(tried)
                if any(candidate) and candidate != smallest
            ]
            hits = [candidate for candidate in tried if self._explains(candidate)]
            if hits:
                smallest, parts = (
                    min(
                        hits, key=lambda candidate: (sum(candidate), -self._share(candidate).value)
                    ),
                    2,
                )
            elif unknown := self._unknown(tried):
                return unknown
            elif parts >= sum(smallest):
                break
            else:
                parts = min(2 * parts, sum(smallest))
        return smallest

    def _chunks(self, candidate: Candidate, parts: int) -> Iterator[Candidate]:
        places = [place for place, taken in enumerate(candidate) if taken]
        ends = [len(places) * part // parts for part in range(parts + 1)]
        for start, end in zip(ends, ends[1:], strict=False):
            yield self._of(places[start:end])

    def _of(self, places: Collection[int]) -> Candidate:
        return tuple(int(place in places) for place in range(self._count))

    def _unknown(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        return [
            candidate
            for candidate in candidates
            if any(candidate) and self._explains(candidate) is None
        ]

    def _explains(self, candidate: Candidate) -> bool | None:
        """Return whether a candidate explains most of the change; None if that is not known yet."""
        if is_side(candidate) or candidate in self._refused:
            return candidate == self._all
        measured = share(self._speeds, candidate)
        if measured is None:
            return None
        if measured.low >= MOST or measured.high < MOST:
            return measured.low >= MOST
        if measured.half <= _EXACT or measured.blocks >= _LAST:
            return measured.value >= MOST
        return None

    def _share(self, candidate: Candidate) -> Share:
        """Return the share of a candidate; one without any runs may be anything."""
        return share(self._speeds, candidate) or Share(0.0, -math.inf, math.inf, 0)


def _still_there(speeds: Speeds, b: Candidate, recorded: float | None) -> bool | None:
    """Return whether B certainly differs from A, in the direction that was recorded; None if that
    is not known yet.
    """
    whole = change(speeds, b, without(b, b), _SURE)
    if whole is None:
        return None
    low, high, middle = (
        math.log(end) for end in (whole.interval.low, whole.interval.high, whole.ratio)
    )
    if recorded is not None:
        low, high = (low, high) if recorded > 0 else (-high, -low)
        middle = middle if recorded > 0 else -middle
        if high < _STILL * abs(recorded):
            return False
    elif max(abs(low), abs(high)) < _SLIGHT:
        return False
    if whole.is_certain:
        return recorded is None or (low > 0 and middle >= _STILL * abs(recorded))
    return False if whole.pairs >= _LAST_OF_SIDES else None


def _fitting(step: Rung, limit: Limit, count: int, members: int = 0) -> Rung | None:
    """Return as much of a round as fits and leaves time for a verification: fewer blocks, then
    fewer candidates; None if not even two blocks of one candidate do.

    ``members``: of the set that is in hand. If it has several, there has to be time for runs
    without two of them as well: without these the verification could not name one.
    """
    sides = 2
    reduced = 2 if members > 1 else 0
    kept_s = LEAST_BLOCKS * (sides + min(count, 2) - 1 + reduced) * limit.run_s
    for candidates in range(len(step.candidates), -1 if not step.candidates else 0, -1):
        for repeats in range(step.repeats, min(step.repeats, 2) - 1, -1):
            if (
                repeats > 0
                and (candidates + sides) * repeats * limit.run_s + kept_s <= limit.left_s
            ):
                return Rung(step.candidates[:candidates], repeats)
    return None


def _verification(
    chosen: Candidate,
    speeds: Speeds,
    limit: Limit,
    refused: Collection[Candidate],
    *,
    is_early: bool = False,
) -> Rung | str:
    """Return the verification of a set: as many blocks as its share needs by the scatter so far, or
    as fit.

    Where not even the least blocks fit, it goes without the last members' reduced sets; the answer
    says of which.
    """
    also = [candidate for candidate in reduce_set(chosen).values() if candidate not in refused]
    candidates = tuple(
        dict.fromkeys([chosen, *(candidate for candidate in also if not is_side(candidate))])
    )
    runs = len({*candidates, (0,) * len(chosen), (1,) * len(chosen)})
    fits = int(limit.left_s / (runs * limit.run_s)) if limit.run_s else _MOST_VERIFYING
    while fits < LEAST_BLOCKS and len(candidates) > 1:
        candidates, runs = candidates[:-1], runs - 1
        fits = int(limit.left_s / (runs * limit.run_s))
    if fits < LEAST_BLOCKS:
        return NO_TIME
    return Rung(candidates, min(fits, _enough(chosen, speeds)), confirms=True, is_early=is_early)


def _enough(chosen: Candidate, speeds: Mapping[Candidate, Mapping[int, float]]) -> int:
    """Return the number of blocks after which the interval of the share is expected to be exact."""
    a, b = (0,) * len(chosen), (1,) * len(chosen)
    blocks = find_shared_blocks(speeds, a, b, chosen)
    if len(blocks) < 2:
        return _USUAL
    whole = [math.log(speeds[b][block] / speeds[a][block]) for block in blocks]
    part = [math.log(speeds[chosen][block] / speeds[a][block]) for block in blocks]
    z = math.fsum(whole) / len(blocks)
    r = 0.0 if chosen == b else math.fsum(part) / len(blocks) / z
    scatter = deviation([x - r * w for x, w in zip(part, whole, strict=True)]) / abs(z)
    for count in range(_USUAL, _MOST_VERIFYING):
        if student(count - 1, 0.975) * scatter / math.sqrt(count) <= _EXACT:
            return count
    return _MOST_VERIFYING

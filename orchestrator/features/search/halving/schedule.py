"""The schedule of `orch tune`, and its result: successive halving, as pure functions.

A candidate has an index of a value for each knob, counted from 1; 0 leaves a knob unchanged, so
``(0, 0, …)`` is the default. The first round (rung) tries many candidates in short runs. Each
further round tries half as many in runs of twice the window: half of them are the best of the
previous round, the others are new ones derived from these (K. Jamieson and A. Talwalkar,
"Non-stochastic best arm identification and hyperparameter optimization", 2016, halve without new
ones). The default runs in every round. The best of many noisy speeds is too high by selection, so
no gain is reported from these rounds: the last candidate and the default are run again,
alternately, and the gain comes from these runs alone.

>>> stages(8, warmup_steps=20, steps=120, times=Times(20.0, 0.07), left_s=420.0)
(Stage(candidates=8, repeats=1, steps=45), Stage(candidates=4, repeats=1, steps=70), Stage(candidates=2, repeats=1, steps=120))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from orchestrator.features.search.halving.candidates import children, design
from orchestrator.features.search.record import Candidate, Rung
from orchestrator.features.search.strategy import ENOUGH_PAIRS, Round, Times
from orchestrator.plan import Knob

_CONFIRMING = 5
"""Runs of the default, and of the best candidate, for which time is reserved."""
_RESERVE = 1.25
"""Seconds reserved per second of expected confirmation: full runs of the default are often the
longest of a tune.
"""
_MOST_CONFIRMING = 8
_MOST_CANDIDATES = 64
_MOST_REPEATS = 4
_LEAST_WINDOW = 10
"""Steps. Every run takes its start-up time, so shorter windows save next to nothing."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The size of a round: number of candidates besides the default, repeats of each, and steps of
    a run including warm-up.
    """

    candidates: int
    repeats: int
    steps: int

    def seconds(self, times: Times) -> float:
        """Return the seconds of the round."""
        return (self.candidates + 1) * self.repeats * times.run_s(self.steps)


# Why a tune has ended, as its record says.
CONFIRMED = "confirmed"
DEFAULT_FASTEST = "the default was the fastest"
NO_GOOD_RUN = "no candidate of the last round had a good run"
NOTHING_APPLIES = "no parameter of this framework applies to this configuration"
TOO_SHORT = "no time was left to try a candidate"
NOT_CONFIRMED = "no time was left to confirm the best candidate"


@dataclass(frozen=True, slots=True)
class TuneSchedule:
    """The parameters of a tune's schedule: knobs, seed, and the steps of a full run, including
    warm-up.
    """

    knobs: tuple[Knob, ...]
    seed: int
    warmup_steps: int
    steps: int


# --- what comes next ------------------------------------------------------------------------------


def following(
    schedule: TuneSchedule, done: Sequence[Round], times: Times, left_s: float
) -> Rung | str:
    """Return the next round after the finished ones, within the remaining time, or why the tune
    ends.

    Time for the confirmation is reserved from the start. There is no confirmation if the default
    was the fastest.
    """
    knobs, steps = schedule.knobs, schedule.steps
    if not knobs:
        return NOTHING_APPLIES
    if done and done[-1].rung.confirms:
        return CONFIRMED
    order = rank_candidates(done[-1].values) if done else []
    if done and not any(map(any, order)):
        return NO_GOOD_RUN
    before = done[-1].rung.candidates if done else ()
    most = math.ceil(len(before) / 2) or len(design(knobs, schedule.seed, _MOST_CANDIDATES))
    for_search_s = left_s - reserve_s(times, steps)
    rungs = stages(most, schedule.warmup_steps, steps, times, for_search_s)
    if rungs and not done:
        first = design(knobs, schedule.seed, rungs[0].candidates)
        return Rung(first, rungs[0].repeats, rungs[0].steps)
    if not done:
        return TOO_SHORT
    if rungs and most > 1:
        tried = [candidate for measured in done for candidate in measured.values]
        next_ones = survivors(knobs, order, tried, rungs[0].candidates)
        return Rung(tuple(next_ones), rungs[0].repeats, rungs[0].steps)
    if not any(order[0]):
        return DEFAULT_FASTEST
    repeats = confirming(times, steps, left_s)
    if repeats:
        return Rung((order[0],), repeats, steps, confirms=True)
    return NOT_CONFIRMED


def least_s(times: Times, steps: int) -> float:
    """Return the seconds needed to try and confirm one candidate."""
    return 2 * times.run_s(steps) + reserve_s(times, steps)


def reserve_s(times: Times, steps: int) -> float:
    """Return the seconds that are reserved for the confirmation."""
    return _RESERVE * 2 * _CONFIRMING * times.run_s(steps)


# --- time -----------------------------------------------------------------------------------------


def stages(
    most: int, warmup_steps: int, steps: int, times: Times, left_s: float
) -> tuple[Stage, ...]:
    """Return the rounds that fit into ``left_s`` seconds: as many candidates as possible, ``most``
    at most, then repeats.

    Empty if there is no time. The last round, with two candidates, has the full window; each
    earlier one has half of the next one's, but at least ten steps.
    """
    for first in range(most, 0, -1):
        rounds = _halving(first, warmup_steps, steps)
        if sum(stage.seconds(times) for stage in rounds) <= left_s:
            return _add_repeats(rounds, times, left_s)
    return ()


def confirming(times: Times, steps: int, left_s: float) -> int:
    """Return the number of runs of the best candidate and of the default at the end: up to 8; 0 if
    3 do not fit.
    """
    fits = int(left_s / (2 * times.run_s(steps)))
    if fits >= ENOUGH_PAIRS:
        return min(fits, _MOST_CONFIRMING)
    return 0


def _halving(first: int, warmup_steps: int, steps: int) -> list[Stage]:
    sizes = [first]
    while sizes[-1] > 2:
        sizes.append(math.ceil(sizes[-1] / 2))
    window = steps - warmup_steps
    windows = [
        max(min(window, _LEAST_WINDOW), math.ceil(window / 2**left)) for left in range(len(sizes))
    ]
    return [
        Stage(size, 1, warmup_steps + part)
        for size, part in zip(sizes, reversed(windows), strict=True)
    ]


def _add_repeats(single: Sequence[Stage], times: Times, left_s: float) -> tuple[Stage, ...]:
    """Use the remaining time for repeats, in later rounds first, whose candidates differ least."""
    rungs = list(single)
    for _ in range(1, _MOST_REPEATS):
        for place in reversed(range(len(rungs))):
            longer = list(rungs)
            longer[place] = replace(longer[place], repeats=longer[place].repeats + 1)
            if sum(stage.seconds(times) for stage in longer) <= left_s:
                rungs = longer
    return tuple(rungs)


# --- what was measured ----------------------------------------------------------------------------


def rank_candidates(speeds: Mapping[Candidate, Mapping[int, float | None]]) -> list[Candidate]:
    """Return the candidates of one round, the fastest first, by the mean of the logarithms of their
    speeds.

    Candidates with a failed run or without runs are left out. Of equally fast ones, the one with
    fewer changes comes first.
    """
    means = {}
    for candidate, by_repeat in speeds.items():
        logs = [math.log(speed) for speed in by_repeat.values() if speed]
        if logs and len(logs) == len(by_repeat):
            means[candidate] = math.fsum(logs) / len(logs)
    return sorted(
        means, key=lambda candidate: (-means[candidate], sum(map(bool, candidate)), candidate)
    )


def survivors(
    knobs: Sequence[Knob], order: Sequence[Candidate], tried: Iterable[Candidate], size: int
) -> list[Candidate]:
    """Return ``size`` candidates for the next round: the best of ``order``, and new ones."""
    best = [candidate for candidate in order if any(candidate)]
    kept = best[: math.ceil(size / 2)]
    new = list(islice(children(knobs, kept, tried), size - len(kept)))
    return [*kept, *new, *best[len(kept) : size - len(new)]]

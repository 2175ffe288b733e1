"""What `orch tune` tries, for how long, and what it may claim of it: successive halving, as pure functions.

A candidate says for each knob which of its values it takes; 0 is none, so ``(0, 0, …)`` is the default, what holds without a
tune. The first rung tries many candidates in short runs. Each further one tries half as many in runs of twice the window: the
better half of those that it keeps, and in the other half new ones made of the best (K. Jamieson and A. Talwalkar,
"Non-stochastic best arm identification and hyperparameter optimization", 2016, halve without new ones). The default runs along
in every rung. The best of many noisy speeds is too high, so nothing is claimed of what was measured on the way: the last
candidate and the default are run again, in turns, and the gain is that of these runs alone.

>>> stages(8, warmup_steps=20, steps=120, times=Times(20.0, 0.07), left_s=420.0)
(Stage(candidates=8, repeats=1, steps=45), Stage(candidates=4, repeats=1, steps=70), Stage(candidates=2, repeats=1, steps=120))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from orchestrator.analysis.tune.candidates import Candidate, children, design
from orchestrator.plan import Knob
from orchestrator.results import Interval
from orchestrator.results.numbers.intervals import ratio_interval

__all__ = [
    "TuneSchedule",
    "Gain",
    "RungResult",
    "Rung",
    "Stage",
    "Times",
    "confirming",
    "following",
    "gain",
    "least_s",
    "ranked",
    "reserve_s",
    "stages",
    "survivors",
]

_CONFIRMING = 5
"""Runs of the default, and of the best candidate, for which time is kept back."""
_KEPT_BACK = 1.25
"""Seconds for each second that the confirmation should take: whole runs of the default are often the longest of a tune."""
_MOST_CONFIRMING = 8
_MOST_CANDIDATES = 64
_ENOUGH_PAIRS = 3
_MOST_REPEATS = 4
_LEAST_WINDOW = 10
"""Steps. A run costs its start before it measures anything, so shorter windows save next to nothing."""


@dataclass(frozen=True, slots=True)
class Times:
    """What runs take: seconds before and after the steps of one, and seconds of a step."""

    start_s: float
    step_s: float

    def run_s(self, steps: int) -> float:
        """Return the seconds of a run of so many steps."""
        return self.start_s + steps * self.step_s


@dataclass(frozen=True, slots=True)
class Stage:
    """A rung: so many candidates, and the default, each run so often, for so many steps, warm-up included."""

    candidates: int
    repeats: int
    steps: int

    def seconds(self, times: Times) -> float:
        """Return what the rung takes."""
        return (self.candidates + 1) * self.repeats * times.run_s(self.steps)


@dataclass(frozen=True, slots=True)
class Rung:
    """Candidates to run, and the default beside them; ``confirms``: the last one, of the best candidate alone."""

    candidates: tuple[Candidate, ...]
    repeats: int
    steps: int
    confirms: bool = False


@dataclass(frozen=True, slots=True)
class RungResult:
    """A rung that is over: samples/s of each candidate, the default among them, by repeat, None for a run that failed."""

    rung: Rung
    speeds: Mapping[Candidate, Mapping[int, float | None]]


@dataclass(frozen=True, slots=True)
class TuneSchedule:
    """What decides a tune besides what it measures: knobs, seed, and the steps of a whole run, warm-up included."""

    knobs: tuple[Knob, ...]
    seed: int
    warmup_steps: int
    steps: int

    @property
    def default(self) -> Candidate:
        """The candidate that turns no knob."""
        return (0,) * len(self.knobs)


@dataclass(frozen=True, slots=True)
class Gain:
    """The typical speed of a candidate over that of the default, from ``pairs`` of runs made one after the other.

    ``sure``: the whole 95 % interval lies above 1, and there are three pairs or more.
    """

    ratio: float
    interval: Interval
    pairs: int

    @property
    def decides(self) -> bool:
        """Claim that there are pairs enough to say whether the candidate is faster."""
        return self.pairs >= _ENOUGH_PAIRS

    @property
    def sure(self) -> bool:
        """Claim that the candidate is faster."""
        return self.decides and self.interval.low > 1


# --- what comes next ------------------------------------------------------------------------------------------------------


def following(schedule: TuneSchedule, done: Sequence[RungResult], times: Times, left_s: float) -> Rung | None:
    """Return the rung that follows those that are over, in the time that is left; None where the tune is at its end.

    Time for the confirmation is kept back from the start. There is none where the default came out first.
    """
    if done and done[-1].rung.confirms:
        return None
    order = ranked(done[-1].speeds) if done else []
    size = math.ceil(len(done[-1].rung.candidates) / 2) if done else _MOST_CANDIDATES
    if not done or (size > 1 and any(map(any, order))):
        if not done:
            size = len(design(schedule.knobs, schedule.seed, size))
        for_search_s = left_s - reserve_s(times, schedule.steps)
        rungs = stages(size, warmup_steps=schedule.warmup_steps, steps=schedule.steps, times=times, left_s=for_search_s)
        if rungs:
            tried = [candidate for measured in done for candidate in measured.speeds]
            size = rungs[0].candidates
            new = survivors(schedule.knobs, order, tried, size) if done else design(schedule.knobs, schedule.seed, size)
            return Rung(tuple(new), rungs[0].repeats, rungs[0].steps)
    repeats = confirming(times, schedule.steps, left_s)
    return Rung((order[0],), repeats, schedule.steps, confirms=True) if repeats and order and any(order[0]) else None


def least_s(times: Times, steps: int) -> float:
    """Return the seconds in which one candidate can be tried and confirmed."""
    return 2 * times.run_s(steps) + reserve_s(times, steps)


def reserve_s(times: Times, steps: int) -> float:
    """Return the seconds that are kept back for the confirmation."""
    return _KEPT_BACK * 2 * _CONFIRMING * times.run_s(steps)


# --- candidates -----------------------------------------------------------------------------------------------------------


# --- time -----------------------------------------------------------------------------------------------------------------


def stages(most: int, *, warmup_steps: int, steps: int, times: Times, left_s: float) -> tuple[Stage, ...]:
    """Return the rungs with as many candidates, ``most`` at most, as time allows, and then as many repeats; none: no time.

    The last rung, of two candidates, has the whole window; each before it half of the next one's, ten steps at least.
    """
    for first in range(most, 0, -1):
        found = _halving(first, warmup_steps, steps)
        if sum(stage.seconds(times) for stage in found) <= left_s:
            return _repeated(found, times, left_s)
    return ()


def confirming(times: Times, steps: int, left_s: float) -> int:
    """Return how often the best candidate and the default are run at the end: up to 8 times; 0 where 3 do not fit."""
    fits = int(left_s / (2 * times.run_s(steps)))
    return min(fits, _MOST_CONFIRMING) if fits >= _ENOUGH_PAIRS else 0


def _halving(first: int, warmup_steps: int, steps: int) -> list[Stage]:
    sizes = [first]
    while sizes[-1] > 2:
        sizes.append(math.ceil(sizes[-1] / 2))
    window = steps - warmup_steps
    windows = [max(min(window, _LEAST_WINDOW), math.ceil(window / 2**left)) for left in range(len(sizes))]
    return [Stage(size, 1, warmup_steps + part) for size, part in zip(sizes, reversed(windows), strict=True)]


def _repeated(found: Sequence[Stage], times: Times, left_s: float) -> tuple[Stage, ...]:
    """Give what time is left to repeats, of the later rungs first, where the best are hard to tell apart."""
    rungs = list(found)
    grown = True
    while grown:
        grown = False
        for place in reversed(range(len(rungs))):
            more = [*rungs[:place], replace(rungs[place], repeats=rungs[place].repeats + 1), *rungs[place + 1 :]]
            if more[place].repeats <= _MOST_REPEATS and sum(stage.seconds(times) for stage in more) <= left_s:
                rungs, grown = more, True
    return tuple(rungs)


# --- what was measured ----------------------------------------------------------------------------------------------------


def ranked(speeds: Mapping[Candidate, Mapping[int, float | None]]) -> list[Candidate]:
    """Return the candidates of one rung, the fastest first, by the mean of the logarithms of their speeds.

    Without those of which a run failed, and those that were not run. Of equals the one that turns fewer knobs comes first.
    """
    means = {}
    for candidate, found in speeds.items():
        logs = [math.log(speed) for speed in found.values() if speed]
        if logs and len(logs) == len(found):
            means[candidate] = math.fsum(logs) / len(logs)
    return sorted(means, key=lambda candidate: (-means[candidate], sum(map(bool, candidate)), candidate))


def survivors(knobs: Sequence[Knob], order: Sequence[Candidate], tried: Iterable[Candidate], size: int) -> list[Candidate]:
    """Return the candidates of a rung of that size after one that ended in this order: the better ones, and new ones."""
    best = [candidate for candidate in order if any(candidate)]
    kept = best[: math.ceil(size / 2)]
    new = list(islice(children(knobs, kept, tried), size - len(kept)))
    return [*kept, *new, *best[len(kept) : size - len(new)]]


def gain(measured: RungResult) -> Gain | None:
    """Return what the candidate of a confirmation gains over the default; None for fewer than two pairs of good runs."""
    (best,) = measured.rung.candidates
    default = (0,) * len(best)
    one, other = ({at: speed for at, speed in measured.speeds[who].items() if speed} for who in (best, default))
    logs = [math.log(speed / other[repeat]) for repeat, speed in one.items() if repeat in other]
    found = ratio_interval(one, other)
    return Gain(math.exp(math.fsum(logs) / len(logs)), found, len(logs)) if found else None

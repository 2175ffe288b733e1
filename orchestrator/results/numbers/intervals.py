"""Confidence intervals of a measured speed or speedup, from the repeats of a cell.

Only repeats are independent; the steps of a run share its node placement, clocks and caches, so
even thousands of them do not make a number more certain than the number of runs does. Speeds are
compared as logarithms, where the interval of a ratio becomes the interval of a difference, with
Student's t (Student, "The probable error of a mean", Biometrika 6, 1908). With the few repeats of a
benchmark, bootstrap percentiles cover the true value far less often than their nominal level:
``benchmarks/coverage.py`` shows both.

>>> speed = interval([98.0, 100.0, 102.0, 99.0, 101.0])
>>> ratio = ratio_interval({1: 200.0, 2: 220.0, 3: 181.0}, {1: 100.0, 2: 110.0, 3: 90.0})
>>> [f"{found.low:.2f} to {found.high:.2f}" for found in (speed, ratio) if found]
['98.05 to 101.97', '1.99 to 2.02']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from orchestrator.results.numbers.t_distribution import probability, student
from orchestrator.results.numbers.throughput import deviation

LEVEL = 0.95
_ALIKE = 0.005
"""Speeds within half a percent are treated as equal, however closely the others agree."""
_LABELINGS, _SEED = 20_000, 7
"""Up to this many ways to assign runs to two benches are all tried; beyond that this many are
drawn, with a fixed seed.
"""
_TIE = 1e-9
"""Differences of logarithms closer than this are treated as equal."""
_LARGEST = 700.0
"""The logarithm of a number that still fits a float; two absurdly different repeats could yield a
larger one.
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``low`` to ``high``; a fraction ``level`` of many such intervals contains the true
    value.
    """

    low: float
    high: float
    level: float

    def scale(self, factor: float) -> Interval:
        """Return the interval of the value times a positive factor."""
        return Interval(self.low * factor, self.high * factor, self.level)


def interval(speeds: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return the interval of the typical speed from repeats, all above 0; None for fewer than two."""
    centre = centre_of(logarithms(speeds), unit=speeds[0]) if speeds else None
    return centre.interval(level) if centre else None


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of one or more values above 0; of equal values, exactly their
    value.

    >>> geometric_mean([9.0, 9.0, 9.0]), round(geometric_mean([8.0, 2.0]), 9)
    (9.0, 4.0)
    """
    return times_exp(values[0], math.fsum(logarithms(values)) / len(values))


def logarithms(values: Sequence[float]) -> list[float]:
    """Return the logarithms of values in units of the first one.

    Equal values give 0, so that nothing is rounded on the way back by `times_exp`: exp(log(9)) is
    9.000000000000002.
    """
    return [math.log(value) - math.log(values[0]) for value in values]


def times_exp(unit: float, log: float) -> float:
    """Return ``unit``, above 0, times the exponential of ``log``; at most a number near the largest
    float.
    """
    total = math.log(unit) + log
    if max(abs(log), abs(total)) < _LARGEST:
        return unit * math.exp(log)
    return math.exp(max(-_LARGEST, min(total, _LARGEST)))


def plain_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return Student's interval of the mean of values of any sign, which have no logarithms; None
    for fewer than two.

    >>> plain_interval([0.0, 0.0, 0.0])
    Interval(low=0.0, high=0.0, level=0.95)
    """
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    half = student(len(values) - 1, (1 + level) / 2) * deviation(values) / math.sqrt(len(values))
    return Interval(centre - half, centre + half, level)


def ratio_interval(
    speeds: Mapping[int, float], others: Mapping[int, float], level: float = LEVEL
) -> Interval | None:
    """Return the interval of the typical ratio of two cells, each with its speeds, all above 0, by
    repeat.

    Repeats with the same index ran one after the other, so drift over a bench is common to both and
    cancels in their ratio. None if the cells share fewer than two repeats.
    """
    ratios = [speed / others[repeat] for repeat, speed in speeds.items() if repeat in others]
    return interval(ratios, level)


@dataclass(frozen=True, slots=True)
class Centre:
    """The mean of logarithms, in units of the value ``unit``: the ``variance`` of that mean, its
    degrees of freedom, and the
    ``scatter`` of a single logarithm, a standard deviation."""

    unit: float
    log: float
    variance: float
    freedom: float
    scatter: float

    def interval(self, level: float = LEVEL) -> Interval:
        """Return Student's interval around ``unit`` times the exponential of the mean."""
        half = student(self.freedom, (1 + level) / 2) * math.sqrt(self.variance)
        return Interval(
            times_exp(self.unit, self.log - half), times_exp(self.unit, self.log + half), level
        )


def centre_of(
    logs: Sequence[float], *, unit: float = 1.0, fitted: float = 0.0, added: float = 0.0
) -> Centre | None:
    """Return the mean of logarithms with its uncertainty, None for fewer than two.

    If a line was fitted to more values than these and taken out of them, ``fitted`` is the share of
    its one degree of freedom that came from these, 0 to 1: it is missing from their scatter
    (degrees of freedom by F. E. Satterthwaite, Biometrics Bulletin 2, 1946). ``added`` is a
    variance of the mean in units of the variance of one value, on top of 1 / n.
    """
    count = len(logs)
    free = count - 1 - fitted
    if count < 2 or free < _TIE:
        return None
    centre = math.fsum(logs) / count
    scatter = math.fsum((log - centre) ** 2 for log in logs) / free
    freedom = free**2 / (count - 2 + (1 - fitted) ** 2)
    return Centre(unit, centre, scatter * (1 / count + added), freedom, math.sqrt(scatter))


@dataclass(frozen=True, slots=True)
class Change:
    """The ratio of two groups' typical values.

    It has the ``ratio``, its interval, and the probability that groups of equal typical value
    differ by at least as much, by Welch's t-test.
    """

    ratio: float
    interval: Interval
    chance: float


def change_between(before: Centre, after: Centre, level: float = LEVEL) -> Change:
    """Return the change from one typical value to another.

    The two were measured separately and may scatter differently: Welch's t on logarithms (B. L.
    Welch, "The generalization of Student's problem when several different population variances are
    involved", Biometrika 34, 1947), with the degrees of freedom of F. E. Satterthwaite (Biometrics
    Bulletin 2, 1946).
    """
    centre = math.log(after.unit) - math.log(before.unit) + after.log - before.log
    variance = before.variance + after.variance
    spread = before.variance**2 / before.freedom + after.variance**2 / after.freedom
    freedom = max(1.0, variance**2 / spread) if spread else 1.0
    error = math.sqrt(variance)
    half = student(freedom, (1 + level) / 2) * error
    ratio = times_exp(after.unit, after.log) / times_exp(before.unit, before.log)
    ends = Interval(times_exp(ratio, -half), times_exp(ratio, half), level)
    return Change(
        ratio, ends, 2 * probability(freedom, -abs(centre) / error) if error else float(not centre)
    )


def change_interval(
    before: Sequence[float], after: Sequence[float], level: float = LEVEL
) -> Interval | None:
    """Return the interval of the typical speed ``after`` over that ``before``, all above 0; None
    for fewer than two of either.

    >>> found = change_interval([100.0, 101.0, 99.0], [109.0, 111.0, 110.0])
    >>> f"{found.low:.3f} to {found.high:.3f}"
    '1.076 to 1.124'
    """
    sides = [centre_of(logarithms(speeds), unit=speeds[0]) for speeds in (before, after) if speeds]
    found = [side for side in sides if side]
    if len(found) != 2:
        return None
    return change_between(found[0], found[1], level).interval


def chance(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how often speeds, all above 0, assigned to two benches at random differ by at least as
    much as these do.

    A permutation test, two-sided, of the difference of the mean logarithms (R. A. Fisher, "The
    Design of Experiments", 1935, section 21). If labelings are drawn, the observed one is counted
    with them, so the result is never 0 (B. Phipson and G. K. Smyth, "Permutation p-values should
    never be zero", 2010).

    >>> round(chance([100.0, 101.0, 99.0, 98.0, 102.0], [89.0, 91.0, 90.0, 92.0, 88.0]) * 252)
    2
    """
    # Sorted, so that the result does not depend on which side is called before.
    first, second = sorted(sorted(map(math.log, speeds)) for speeds in (before, after))
    logs, size = [*first, *second], len(first)
    drawn = math.comb(len(logs), size) > _LABELINGS
    chosen: Iterable[Sequence[float]] = combinations(logs, size)
    if drawn:
        random = Random(_SEED)
        chosen = (random.sample(logs, size) for _ in range(_LABELINGS))
    # The difference of the means grows with the sum of one side alone.
    per_sum = 1 / size + 1 / len(second)
    observed = sum(first)
    sums = [sum(side) - observed for side in chosen]
    at_most = sum(1 for beyond in sums if beyond * per_sum <= _TIE)
    at_least = sum(1 for beyond in sums if beyond * per_sum >= -_TIE)
    return min(1.0, 2 * (min(at_most, at_least) + drawn) / (len(sums) + drawn))


def least_chance(before: int, after: int) -> float:
    """Return the smallest `chance` that is possible with this many speeds on each side, however far
    apart they are.

    >>> least_chance(3, 3), round(least_chance(5, 5), 4)
    (0.1, 0.0079)
    """
    return min(1.0, 2 / math.comb(before + after, before))


def holm(chances: Sequence[float]) -> list[float]:
    """Return each p-value adjusted for multiple comparisons (S. Holm, "A simple sequentially
    rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, worst = [0.0] * len(chances), 0.0
    for done, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        worst = max(worst, min(1.0, chances[place] * (len(chances) - done)))
        adjusted[place] = worst
    return adjusted


def outliers(speeds: Sequence[float], chance: float = 0.01) -> list[int]:
    """Return the indexes of outliers among speeds, all above 0.

    ``chance`` is the probability of reporting any if there is none. Each logarithm is compared with
    the mean and deviation of all others (externally studentized residuals; R. D. Cook and S.
    Weisberg, "Residuals and Influence in Regression", 1982, section 2.2.2). Empty for fewer than
    four speeds.

    >>> outliers([100.0, 101.0, 92.0, 100.5, 100.2])
    [2]
    """
    if len(speeds) < 4:
        return []
    limit = student(len(speeds) - 2, 1 - chance / 2 / len(speeds))
    logs, indexes = [math.log(speed) for speed in speeds], []
    for place, log in enumerate(logs):
        others = [*logs[:place], *logs[place + 1 :]]
        centre = math.fsum(others) / len(others)
        scatter = deviation(others) * math.sqrt(1 + 1 / len(others))
        if abs(log - centre) > max(limit * scatter, _ALIKE):
            indexes.append(place)
    return indexes

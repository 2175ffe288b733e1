"""The excess of one member of a group over the others, from measurements of all at the same times.

A member's mean over blocks and runs is compared with the median of the other members' means: like
with like, so that noise with a long tail, whose mean is above its median, is no excess. The
uncertainty is the largest of several answers, each of which is too small for some shape of noise:

- the scatter of blocks, after the correlation from block to block;
- with two or more runs, the scatter of whole runs: by Student's t, pooled over the members, and by
  the distribution of the highest member if the measurements of each run are dealt to its members at
  random, which keeps the shape of the noise (E. J. G. Pitman, "Significance tests which may be
  applied to samples from any populations", 1937; the highest of all: P. H. Westfall and S. S.
  Young, "Resampling-Based Multiple Testing", 1993). An excess is taken out before;
- with a single run, the differences among its members, and the usual differences of equal members
  from run to run, which one run cannot show.

One of many members is always the highest, so the level of an interval covers all of them together
(O. J. Dunn, "Multiple comparisons among means", JASA 56, 1961).

>>> slow, usual = [1.1, 1.2, 1.1, 1.0, 1.1, 1.2], [0.0, 0.1, 0.0, -0.1, 0.0, 0.1]
>>> found = excesses({"a": [slow], "b": [usual], "c": [[-value for value in usual]]})
>>> f"{found['a'].value:.2f}, {found['a'].low:.2f} to {found['a'].high:.2f}; {found['b'].low:.2f} to {found['b'].high:.2f}"
'1.12, 0.87 to 1.36; -0.78 to -0.29'
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from orchestrator.results.numbers.t_distribution import fisher, student
from orchestrator.results.numbers.throughput import mean, median

CERTAIN = 0.99
"""How often none of the intervals of a group misses its true value."""
_FEWEST_BLOCKS = 4
_MOST_CARRIED = 0.9
_UNLIKE = 0.05
"""Chance of a scatter that is so much larger than that of the others, below which it is taken for
the member's own.
"""
_ROUNDING = 1e-9
"""Least uncertainty of a mean: differences of times that agree in all printed digits are not exact.
"""
_USUAL, _PRIOR = 0.01, 8.0
"""The standard deviation by which equal ranks differ from run to run, and the degrees of freedom
that it counts for.
"""
_OF_MEDIAN = math.pi / 2
"""The ratio of a median's variance to a mean's, for many normal values."""
_OF_DEALS = 0.2
_DEALS, _MOST_DEALT, _FEWEST_DEALS, _SEED = 1000, 1_000_000, 200, 7
"""How often values are dealt anew; of thousands of ranks less often, so that about a million values
are dealt.
"""

Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class Excess:
    """The excess of a member over the others, and its interval.

    ``is_usual``: it is above them in every run, but for one in six.
    """

    value: float
    low: float
    high: float
    is_usual: bool


def excesses(
    values: Mapping[Member, Sequence[Sequence[float]]], comparisons: int = 0, usual: float = _USUAL
) -> dict[Member, Excess]:
    """Return the excess of each member; empty if there are too few blocks.

    ``values`` has the blocks of each run of each member, as many for each member. ``comparisons``
    counts the members of all groups that are judged together, if there are others. ``usual`` is the
    standard deviation of equal members from run to run, for a single run, which cannot show it.
    """
    runs = min(map(len, values.values()), default=0)
    fewest = min((len(blocks) for runs in values.values() for blocks in runs), default=0)
    if len(values) < 2 or not runs or fewest < _FEWEST_BLOCKS:
        return {}
    means = {member: list(map(mean, runs)) for member, runs in values.items()}
    levels = {member: mean(of_runs) for member, of_runs in means.items()}
    ordered = sorted(levels.values())
    found = {member: level - median_without(level, ordered) for member, level in levels.items()}
    chance = 1 - (1 - CERTAIN) / (2 * max(comparisons, len(values)))
    halves = _of_blocks(values, chance)
    if runs > 1:
        between = _of_runs(means, levels, chance)
        candidates = {
            member: value
            for member, value in found.items()
            if value > max(halves[member], between[member])
        }
        dealt = 0.0
        if candidates:
            dealt = _of_deals(means, candidates, max(comparisons, len(values)))
        halves = {member: max(half, between[member], dealt) for member, half in halves.items()}
    else:
        alone = _of_one_run(levels, found, chance, usual)
        halves = {member: max(half, alone[member]) for member, half in halves.items()}
    columns = [sorted(of_run) for of_run in zip(*means.values(), strict=True)]
    by_member = {}
    for member, value in found.items():
        below = sum(
            own <= median_without(own, of_run)
            for own, of_run in zip(means[member], columns, strict=True)
        )
        half = max(halves[member], _ROUNDING)
        by_member[member] = Excess(value, value - half, value + half, below <= runs // 6)
    return by_member


def median_without(own: float, values: Sequence[float]) -> float:
    """Return the median of two or more sorted values without one of them.

    >>> [median_without(own, [1.0, 2.0, 5.0, 9.0]) for own in (1.0, 5.0)], median_without(3.0, [1.0, 3.0, 4.0])
    ([5.0, 2.0], 2.5)
    """
    place, count = bisect_left(values, own), len(values) - 1
    low, high = ((at if at < place else at + 1) for at in ((count - 1) // 2, count // 2))
    return (values[low] + values[high]) / 2


def _of_others(count: int) -> float:
    """Return the variance of a value less the median of so many others, in units of the variance of
    one.
    """
    return 1 + (_OF_MEDIAN if count > 2 else 1.0) / count


def _of_blocks(
    values: Mapping[Member, Sequence[Sequence[float]]], chance: float
) -> dict[Member, float]:
    """Return half of the interval of each member that the scatter of its blocks allows."""
    apart = _without_common(values)
    carried = _carry_over([blocks for runs in apart.values() for blocks in runs])
    dependence = (1 + carried) / (1 - carried)
    halves = {}
    for member, runs in apart.items():
        count = sum(map(len, runs))
        freedom = count - len(runs)
        spread = sum(_scatter(blocks) * (len(blocks) - 1) for blocks in runs) / freedom
        variance = spread * dependence / count
        halves[member] = student(max(1.0, freedom / dependence), chance) * math.sqrt(variance)
    return halves


def _without_common(
    values: Mapping[Member, Sequence[Sequence[float]]],
) -> dict[Member, list[list[float]]]:
    """Return the blocks of each member less the median of the others in the same block, which all
    have in common.
    """
    apart: dict[Member, list[list[float]]] = {member: [] for member in values}
    for of_run in zip(*values.values(), strict=True):
        columns = [sorted(block) for block in zip(*of_run, strict=True)]
        for member, blocks in zip(values, of_run, strict=True):
            apart[member].append(
                [
                    own - median_without(own, column)
                    for own, column in zip(blocks, columns, strict=True)
                ]
            )
    return apart


def _of_runs(
    means: Mapping[Member, Sequence[float]], levels: Mapping[Member, float], chance: float
) -> dict[Member, float]:
    """Return half of the interval of each member that the scatter of whole runs allows a mean.

    Members are taken to scatter alike, which makes two or three runs enough, unless a member
    certainly scatters more.
    """
    runs, members = len(next(iter(means.values()))), len(means)
    common = []
    for run in range(runs):
        common.append(median([of_runs[run] - levels[member] for member, of_runs in means.items()]))
    squares = {}
    for member, of_runs in means.items():
        squares[member] = math.fsum(
            (value - levels[member] - shift) ** 2
            for value, shift in zip(of_runs, common, strict=True)
        )
    total = math.fsum(squares.values())
    free = (members - 1) * (runs - 1)
    of_others = _of_others(members - 1)
    pooled = student(max(1, free), chance) * math.sqrt(total / max(1, free) / runs * of_others)
    halves = {}
    for member, own in squares.items():
        variance = own / (runs - 1)
        others = (total - own) / max(1, (members - 1) * (runs - 1))
        halves[member] = pooled
        if variance > others and (
            not others or fisher(variance / others, runs - 1, (members - 1) * (runs - 1)) < _UNLIKE
        ):
            # Few members are unlike the others, so that this level is not shared by all of them.
            halves[member] = max(
                pooled,
                student(runs - 1, (1 + CERTAIN) / 2) * math.sqrt(variance / runs * of_others),
            )
    return halves


def _of_deals(
    means: Mapping[Member, Sequence[float]], candidates: Mapping[Member, float], comparisons: int
) -> float:
    """Return the highest of equal members above their median, at most, in nearly all deals of the
    values to members.

    An excess of the candidates is no noise and is taken out first. With it goes a part of the
    noise, so more than 99 of 100 deals are looked at: if a quarter of all runs are slow, one of
    eight members has three slow ones in 12 of 100 benches.
    """
    columns = []
    for of_run in zip(*means.values(), strict=True):
        pairs = zip(means, of_run, strict=True)
        columns.append([value - candidates.get(member, 0.0) for member, value in pairs])
    runs, members = len(columns), len(means)
    deals = max(_FEWEST_DEALS, min(_DEALS, _MOST_DEALT // (runs * members)))
    random, highest = Random(_SEED), []
    for _ in range(deals):
        for column in columns[1:]:
            random.shuffle(column)
        totals = [math.fsum(of_member) for of_member in zip(*columns, strict=True)]
        highest.append((max(totals) - median(totals)) / runs)
    certain = 1 - (1 - CERTAIN) * _OF_DEALS * members / max(members, comparisons)
    return sorted(highest)[min(deals - 1, math.ceil(certain * deals))]


def _of_one_run(
    levels: Mapping[Member, float], found: Mapping[Member, float], chance: float, usual: float
) -> dict[Member, float]:
    """Return half of the interval of each member that the differences of members in a single run
    allow.

    The highest, a third of all at most, are left out one after the other, so that slow members do
    not hide each other; the lowest of them that stands out from all below it does, with those above
    it (B. Rosner, "Percentage points for a generalized ESD many-outlier procedure", Technometrics
    25, 1983). The usual scatter is a prior for theirs. A single run does not show the shape of it,
    so a member stands out only if it does so for a normal and for an exponential one.
    """
    order = sorted(levels, key=lambda member: -levels[member])
    most = max(1, len(order) // 3)
    limits = []
    for place in range(most):
        limits.append(_limit([levels[member] for member in order[place:]], chance, usual))
    for place in range(most - 1, -1, -1):
        if found[order[place]] > limits[place]:
            # Those above it stand out with it.
            return {member: limits[place] for member in order}
    return {member: limits[0] for member in order}


def _limit(falling: Sequence[float], chance: float, usual: float) -> float:
    """Return how far the first of some falling values must be above the median of the rest to stand
    out.
    """
    rest = falling[1:]
    if not rest:
        return math.inf
    freedom = len(rest) - 1
    variance = (_PRIOR * usual**2 + freedom * _scatter(rest)) / (_PRIOR + freedom)
    limit = student(_PRIOR + freedom, chance) * math.sqrt(variance * _of_others(len(rest)))
    # The highest of as many values with an exponential tail, less their median.
    tail = math.sqrt(variance) * math.log(len(falling) / (1 - CERTAIN) / 2)
    return max(limit, tail)


def _scatter(values: Sequence[float]) -> float:
    """Return the sample variance; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def _carry_over(series: Sequence[Sequence[float]]) -> float:
    """Return how much of a deviation is carried from block to block, over all series, 0 to 0.9.

    The mean of a short series takes 1 / n of it away, which is added again (F. H. C. Marriott and
    J. A. Pope, "Bias in the estimation of autocorrelations", Biometrika 41, 1954).
    """
    products, squares = 0.0, 0.0
    for values in series:
        centre = mean(values)
        apart = [value - centre for value in values]
        products += math.fsum(left * right for left, right in zip(apart, apart[1:], strict=False))
        squares += math.fsum(value * value for value in apart)
    if not squares:
        return 0.0
    shortest = min(map(len, series))
    return min(_MOST_CARRIED, max(0.0, products / squares + 1 / shortest))

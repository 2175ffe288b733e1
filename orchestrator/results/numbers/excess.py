"""By how much one member of a group is above the others, from measurements of all of them at the same times.

Blocks of steps of one run depend on each other, so the uncertainty of a mean over blocks is the larger of two: what the
scatter of blocks allows, after the correlation from block to block, and what the scatter of whole runs allows. One of many
members is always the highest, so the level of an interval is that of all of them together (O. J. Dunn, "Multiple comparisons
among means", JASA 56, 1961).

>>> slow, usual = [1.1, 1.2, 1.1, 1.0, 1.1, 1.2], [0.0, 0.1, 0.0, -0.1, 0.0, 0.1]
>>> found = excesses({"a": [slow], "b": [usual], "c": [[-value for value in usual]]})
>>> f"{found['a'].value:.2f}, {found['a'].low:.2f} to {found['a'].high:.2f}; {found['b'].low:.2f} to {found['b'].high:.2f}"
'1.12, 0.92 to 1.31; -0.18 to 0.21'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.results.numbers.t_distribution import fisher, student
from orchestrator.results.numbers.throughput import mean

__all__ = ["CERTAIN", "Excess", "excesses"]

CERTAIN = 0.99
"""How often none of the intervals of a group misses its true value."""
_FEWEST_BLOCKS = 4
_MOST_CARRIED = 0.9
_UNLIKE = 0.05
"""Chance of a scatter that is so much larger than that of the others, below which it is taken for the member's own."""
_ROUNDING = 1e-9
"""Least uncertainty of a mean: differences of times that agree in all printed digits are not exact."""

Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class Excess:
    """How far a member is above the others, and the interval of that; ``is_usual``: it is above them in every run, but for one
    in six."""

    value: float
    low: float
    high: float
    is_usual: bool


def excesses(differences: Mapping[Member, Sequence[Sequence[float]]]) -> dict[Member, Excess]:
    """Return the excess of each member; empty where blocks are too few. ``differences``: of each member, for each run, the
    differences of its blocks to the others, as many for each member."""
    runs = min((len(runs) for runs in differences.values()), default=0)
    blocks = min((len(blocks) for runs in differences.values() for blocks in runs), default=0)
    if not runs or blocks < _FEWEST_BLOCKS:
        return {}
    means = {member: [mean(blocks) for blocks in runs] for member, runs in differences.items()}
    carried = _carried([blocks for runs in differences.values() for blocks in runs])
    dependence = (1 + carried) / (1 - carried)
    between = {member: _scatter(of_runs) for member, of_runs in means.items()}
    chance = 1 - (1 - CERTAIN) / (2 * len(differences))
    by_member = {}
    for member, of_runs in means.items():
        count = sum(map(len, differences[member]))
        freedom = count - runs
        spread = sum(_scatter(blocks) * (len(blocks) - 1) for blocks in differences[member]) / freedom
        variance = spread * dependence / count
        half = student(max(1.0, freedom / dependence), chance) * math.sqrt(variance)
        if runs > 1:
            half = max(half, _of_runs(member, between, runs, chance))
        value, half = mean(of_runs), max(half, _ROUNDING)
        by_member[member] = Excess(value, value - half, value + half, sum(of_run <= 0 for of_run in of_runs) <= runs // 6)
    return by_member


def _of_runs(member: Member, between: Mapping[Member, float], runs: int, chance: float) -> float:
    """Return half of the interval that the scatter of whole runs allows a mean. ``between``: that of each member, a variance.

    Members are taken to scatter alike, which makes two or three runs enough, unless a member certainly scatters more.
    """
    of_all = max(1, len(between) - 1) * (runs - 1)
    own, others = between[member], [scatter for other, scatter in between.items() if other != member]
    half = student(of_all, chance) * math.sqrt(max(mean(list(between.values())), own) / runs)
    usual = mean(others) if others else own
    if own > usual and (not usual or fisher(own / usual, runs - 1, len(others) * (runs - 1)) < _UNLIKE):
        # Few members are unlike the others, so that this level is not shared by all of them.
        half = max(half, student(runs - 1, (1 + CERTAIN) / 2) * math.sqrt(own / runs))
    return half


def _scatter(values: Sequence[float]) -> float:
    """Return the sample variance; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def _carried(series: Sequence[Sequence[float]]) -> float:
    """Return how much of a deviation is carried from block to block, over all series, 0 to 0.9.

    The mean of a short series takes 1 / n of it away, which is added again (F. H. C. Marriott and J. A. Pope, "Bias in the
    estimation of autocorrelations", Biometrika 41, 1954).
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

"""How far a measured speed, or a speedup, may be from the true one: confidence intervals from the repeats of a cell.

Repeats are what is independent; steps within a run share its node placement, clocks and caches, so thousands of them make no
number more certain than its runs do. Speeds are compared as logarithms, in which an interval of a ratio is one of a difference,
and Student's t is applied to them (Student, "The probable error of a mean", Biometrika 6, 1908). With the few repeats that a
benchmark has, the percentiles of a bootstrap cover the truth far less often than they promise: ``benchmarks/coverage.py`` shows
both.

>>> speed = interval([98.0, 100.0, 102.0, 99.0, 101.0])
>>> ratio = ratio_interval({1: 200.0, 2: 220.0, 3: 181.0}, {1: 100.0, 2: 110.0, 3: 90.0})
>>> [f"{found.low:.2f} to {found.high:.2f}" for found in (speed, ratio) if found]
['98.05 to 101.97', '1.99 to 2.02']
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.stats import deviation

__all__ = ["LEVEL", "Interval", "interval", "outliers", "ratio_interval"]

LEVEL = 0.95
_ALIKE = 0.005
"""Speeds within half a percent are not told apart, however closely the others agree."""
_LARGEST = 700.0
"""The logarithm of a number that a float still holds: two absurdly different repeats could ask for a larger one."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``low`` to ``high``; of many such intervals a share of ``level`` holds the true value."""

    low: float
    high: float
    level: float

    def scaled(self, factor: float) -> Interval:
        """Return the interval of the value times a positive factor."""
        return Interval(self.low * factor, self.high * factor, self.level)


def interval(speeds: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return the interval of the typical speed of which these, all above 0, are repeats; None for fewer than two."""
    return _around([math.log(speed) for speed in speeds], level)


def ratio_interval(speeds: Mapping[int, float], others: Mapping[int, float], level: float = LEVEL) -> Interval | None:
    """Return the interval of the typical ratio of two cells, each with its speeds, all above 0, by repeat.

    Repeats of one number ran one after another, so what drifts in the course of a bench is in both and falls out of their
    ratio. None where fewer than two repeats are in both.
    """
    return _around([math.log(speed / others[repeat]) for repeat, speed in speeds.items() if repeat in others], level)


def outliers(speeds: Sequence[float], chance: float = 0.01) -> list[int]:
    """Return the places of those speeds, all above 0, that are no part of the others; ``chance``: of finding any where none is.

    Each logarithm is held against mean and deviation of all others (externally studentized residuals; R. D. Cook and S.
    Weisberg, "Residuals and Influence in Regression", 1982, section 2.2.2). Fewer than four tell nothing.

    >>> outliers([100.0, 101.0, 92.0, 100.5, 100.2])
    [2]
    """
    if len(speeds) < 4:
        return []
    from scipy.special import stdtrit

    limit = float(stdtrit(len(speeds) - 2, 1 - chance / 2 / len(speeds)))
    logs, found = [math.log(speed) for speed in speeds], []
    for place, log in enumerate(logs):
        others = [*logs[:place], *logs[place + 1 :]]
        centre = math.fsum(others) / len(others)
        scatter = deviation(others) * math.sqrt(1 + 1 / len(others))
        if abs(log - centre) > max(limit * scatter, _ALIKE):
            found.append(place)
    return found


def _around(logs: Sequence[float], level: float) -> Interval | None:
    if len(logs) < 2:
        return None
    from scipy.special import stdtrit  # takes a while, and a summary without repeats needs none of it

    count = len(logs)
    centre = math.fsum(logs) / count
    half = float(stdtrit(count - 1, (1 + level) / 2)) * deviation(logs) / math.sqrt(count)
    return Interval(math.exp(centre - half), math.exp(min(centre + half, _LARGEST)), level)

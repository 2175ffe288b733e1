"""Say how small a change two benches can show, and how many repeats a change takes, from the
scatter of a bench.

A change is found if the whole interval of `intervals.change_between` is beyond a margin and both
tests of a comparison call it significant; it is ruled out if the whole interval is within the
margin. How often that happens follows from Student's t of the difference of two means of equal
scatter (J. Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988, chapter 2). The
scatter is known from few runs and may itself be larger or smaller, so powers are averaged over what
it may be: the "assurance" of A. O'Hagan, J. W. Stevens and M. J. Campbell (Pharmaceutical
Statistics 4, 2005).

>>> one_percent = Scatter(0.01, freedom=8.0)
>>> f"{least_change(one_percent, 5):.1%}", repeats_to_find(one_percent, 0.03)
('2.7%', 5)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from orchestrator.results.numbers.intervals import LEVEL, Centre, least_chance
from orchestrator.results.numbers.t_distribution import student

OFTEN = 0.9
"""How often a change is to be found: the "nine of ten" of every sentence."""
MOST_REPEATS = 200
_FEWEST_REPEATS = 2
_POINTS = 16
"""Values of equal probability that stand for what a scatter may be."""
_LARGEST = 5.0
"""A change of the logarithm that no two benches are apart by."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Scatter:
    """The standard deviation of the logarithm of one run, without drift, and the degrees of freedom
    from which it is known. ``fitted`` is the share of a degree of freedom that the line of a drift
    takes from each further bench, 0 without one.
    """

    deviation: float
    freedom: float
    fitted: float = 0.0


def scatter_of(sides: Sequence[tuple[Centre, int]]) -> Scatter | None:
    """Return the scatter that one or more benches have in common, each with its number of runs;
    None without any.
    """
    freedom = math.fsum(centre.freedom for centre, _ in sides)
    if not freedom:
        return None
    squares = math.fsum(centre.scatter**2 * centre.freedom for centre, _ in sides)
    fitted = max(max(0.0, count - 1 - centre.freedom) for centre, count in sides)
    return Scatter(math.sqrt(squares / freedom), freedom, fitted)


def least_change(
    scatter: Scatter, repeats: int, margin: float = 0.0, comparisons: int = 1
) -> float:
    """Return the smallest slowdown, a share of 1, that benches of so many repeats find in nine of
    ten; 1 if none would do.
    """
    allowed = -math.log1p(-margin)
    change = _least(lambda log: _power(scatter, repeats, log, allowed, comparisons) >= OFTEN)
    return 1.0 if math.isinf(change) else -math.expm1(-change)


def repeats_to_find(
    scatter: Scatter, change: float, margin: float = 0.0, comparisons: int = 1
) -> int | None:
    """Return the repeats of each bench that find a slowdown, a share of 1, in nine of ten; None if
    200 would not do.
    """
    log, allowed = -math.log1p(-change), -math.log1p(-margin)
    return _fewest(lambda repeats: _power(scatter, repeats, log, allowed, comparisons) >= OFTEN)


def repeats_to_exclude(scatter: Scatter, distance: float) -> int | None:
    """Return the repeats of each bench with which nine of ten intervals end before a limit that is
    so far, in logarithms, from the true change; None if 200 would not do."""
    return _fewest(lambda repeats: _reaches(scatter, repeats, distance) >= OFTEN)


def _reaches(scatter: Scatter, repeats: int, distance: float) -> float:
    """Return how often the whole interval is on one side of a limit at a ``distance`` from the true
    change.
    """
    return _average_chance(
        scatter, repeats, lambda shift, noise, t: _NORMAL.cdf(distance * shift - t * noise)
    )


def _power(
    scatter: Scatter, repeats: int, change: float, allowed: float, comparisons: int
) -> float:
    """Return the probability that a change is found.

    It is found if it exceeds the allowed change and is significant after the correction for
    comparisons.
    """
    if least_chance(repeats, repeats) >= 1 - LEVEL:
        return 0.0
    free = max(1.0, 2 * (repeats - 1 - scatter.fitted))
    corrected = student(free, 1 - (1 - LEVEL) / 2 / comparisons)
    found = _average_chance(
        scatter,
        repeats,
        lambda shift, noise, t: _NORMAL.cdf(
            change * shift - max(allowed * shift + t * noise, corrected * noise)
        ),
    )
    if 2 * least_chance(repeats, repeats) < 1 - LEVEL:
        return found
    # The only labeling that is unlikely enough is that in which all runs of one bench are below all
    # of the other.
    apart = _average_chance(
        scatter,
        repeats,
        lambda shift, noise, t: _chance_of_separation(
            change * shift * math.sqrt(2 / repeats), repeats
        ),
    )
    return min(found, apart)


def _average_chance(
    scatter: Scatter, repeats: int, chance: Callable[[float, float, float], float]
) -> float:
    """Return the mean of a chance over what the scatter of runs may truly be, and over the scatter
    that a comparison finds.

    ``chance`` takes the standard errors of the difference of two means in a unit of the logarithm,
    the scatter that is found over the true one, and the quantile of Student's t.
    """
    free = max(1.0, 2 * (repeats - 1 - scatter.fitted))
    t = student(free, (1 + LEVEL) / 2)
    deviation = max(scatter.deviation, 1e-9)
    errors = [ratio / (deviation * math.sqrt(2 / repeats)) for ratio in _ratios(scatter.freedom)]
    noises = _ratios(free)
    return (
        math.fsum(chance(shift, noise, t) for shift in errors for noise in noises)
        / len(errors)
        / len(noises)
    )


@lru_cache(maxsize=512)
def _ratios(freedom: float) -> tuple[float, ...]:
    """Return values of equal probability of an estimated standard deviation over the true one (E.
    B. Wilson and M. M. Hilferty, "The distribution of chi-square", PNAS 17, 1931)."""
    of_cube = 2 / (9 * freedom)
    cubes = (
        1 - of_cube + _NORMAL.inv_cdf((n + 0.5) / _POINTS) * math.sqrt(of_cube)
        for n in range(_POINTS)
    )
    return tuple(math.sqrt(max(cube, 0.01) ** 3) for cube in cubes)


def _chance_of_separation(shift: float, count: int) -> float:
    """Return how often all of some normal values are above all of as many others, which are lower
    by ``shift`` deviations.
    """
    total = 0.0
    for n in range(_POINTS):
        highest = _NORMAL.inv_cdf(((n + 0.5) / _POINTS) ** (1 / count))
        total += _NORMAL.cdf(shift - highest) ** count
    return total / _POINTS


def _least(enough: Callable[[float], bool]) -> float:
    """Return the least change of the logarithm that is enough, to half a percent of it; infinite if
    none is.
    """
    high = 1e-4
    while not enough(high):
        high *= 2
        if high > _LARGEST:
            return math.inf
    low = high / 2
    while high > low * 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _fewest(enough: Callable[[int], bool]) -> int | None:
    """Return the fewest repeats that are enough; None if the most are not."""
    low, high = _FEWEST_REPEATS - 1, 8
    while not enough(high):
        low, high = high, high * 2
        if low >= MOST_REPEATS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high if high <= MOST_REPEATS else None

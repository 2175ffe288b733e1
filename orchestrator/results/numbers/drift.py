"""Typical speeds and speedups of a bench, each with an interval of the same estimate, without the
drift of the machine.

A machine that slows down over a bench makes every configuration slower alike. In the order that
`orchestrator.plan.bench` plans, most of the drift cancels out of a speedup by itself. A line
removes the rest, and the scatter that a drift adds to the repeats: the logarithm of a speed is its
configuration's, plus a slope times the place of the run in the bench, plus noise (analysis of
covariance; R. A. Fisher, "Statistical Methods for Research Workers", 4th edition, 1932, section
49.1). The slope is common to all configurations. It is used only if noise alone is unlikely to give
one as large, because a line that is fitted to noise widens the intervals (T. A. Bancroft, "On
biases in estimation due to the use of preliminary tests of significance", Annals of Mathematical
Statistics 15, 1944).

Speeds refer to the middle of the bench. Without drift they are geometric means, with the intervals
of `orchestrator.results.numbers.intervals`.

>>> slow = {n: Placed(place, 100.0 * 0.99**place) for n, place in enumerate((0, 3, 4))}
>>> fast = {n: Placed(place, 200.0 * 0.99**place) for n, place in enumerate((1, 2, 5))}
>>> drift = drift_of([list(slow.values()), list(fast.values())])
>>> f"{drift.total:.1%} {typical_ratio(fast, slow, drift).value:.3f} {typical_value(list(slow.values()), drift).value:.2f}"
'-4.9% 2.000 97.52'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from random import Random

from orchestrator.results.numbers.intervals import (
    Centre,
    Change,
    Interval,
    centre_of,
    chance,
    change_between,
    logarithms,
    times_exp,
)
from orchestrator.results.numbers.t_distribution import student

_UNLIKELY = 0.2
"""A slope is used if noise alone gives one at least as large with this probability or less."""
_CERTAIN = 0.01
"""The same of a drift that is reported."""
_LEAST_RUNS, _EXCHANGES, _SEED = 10, 500, 7
_ALIKE = 1e-6
"""Runs that differ by less than this have no noise to speak of, only rounding."""
_LEAST_FREEDOM = 3
"""Fewest degrees of freedom of a slope's own uncertainty: two configurations with three repeats
each.
"""


@dataclass(frozen=True, slots=True)
class Placed:
    """The value of a run, above 0, and its ``place`` in the order of its bench; None for a run of
    another bench.
    """

    place: float | None
    value: float


@dataclass(frozen=True, slots=True)
class Drift:
    """The ``slope`` of the logarithm of speed per run, 0 for a steady bench.

    ``middle`` is the place in the middle of the bench, ``runs`` the distance from its first to its
    last place, ``squares`` the sum of squares of places about the mean of each configuration, on
    which the uncertainty of the slope depends. ``is_certain``: noise alone gives one as large in
    one of a hundred benches.
    """

    slope: float = 0.0
    middle: float = 0.0
    runs: float = 0.0
    squares: float = math.inf
    is_certain: bool = False

    @property
    def total(self) -> float:
        """The speedup from the first run to the last because of the drift, as a fraction; below 0
        if slower.
        """
        return math.exp(self.slope * self.runs) - 1

    def offset(self, run: Placed) -> float:
        """Return the distance of a run from the middle of the bench, in runs; 0 if it ran in
        another bench.
        """
        if run.place is None or not self.slope:
            return 0.0
        return run.place - self.middle


STEADY = Drift()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A typical value and the interval around it, None with too few repeats."""

    value: float
    interval: Interval | None


def drift_of(cells: Sequence[Sequence[Placed]]) -> Drift:
    """Return the drift that all configurations of a bench share, each given by its runs; `STEADY`
    if noise explains it.
    """
    groups = []
    for runs in cells:
        group = [(run.place, math.log(run.value)) for run in runs if run.place is not None]
        if len(group) > 1:
            groups.append(group)
    freedom = sum(len(group) - 1 for group in groups) - 1
    if freedom < _LEAST_FREEDOM:
        return STEADY
    apart: list[tuple[float, float]] = []
    for group in groups:
        middle, level = map(_mean, zip(*group, strict=True))
        apart += [(place - middle, log - level) for place, log in group]
    squares = math.fsum(place * place for place, _ in apart)
    slope = math.fsum(place * log for place, log in apart) / squares if squares else 0.0
    noise = math.fsum((log - slope * place) ** 2 for place, log in apart) / freedom
    error = math.sqrt(noise / squares) if squares else 0.0
    if abs(slope) <= student(freedom, 1 - _UNLIKELY / 2) * error:
        return STEADY
    places = [run.place for runs in cells for run in runs if run.place is not None]
    is_certain = abs(slope) > student(freedom, 1 - _CERTAIN / 2) * error
    return Drift(
        slope, (min(places) + max(places)) / 2, max(places) - min(places), squares, is_certain
    )


def find_carry_over(cells: Sequence[Sequence[Placed]], drift: Drift = STEADY) -> float | None:
    """Return the correlation of what runs are off by with what the run before them is; None unless
    there certainly is one.

    It is certain if in less than one of a hundred ways to exchange the runs of each configuration
    it is as large (E. J. G. Pitman, "Significance tests which may be applied to samples from any
    populations", 1937). A drift that is no straight line has one too.
    """
    residuals, places = [], []
    for cell in cells:
        runs = [run for run in cell if run.place is not None]
        if len(runs) < 2:
            continue
        logs = _less_slope(
            [run.value for run in runs], [drift.offset(run) for run in runs], drift.slope
        )
        residuals.append([log - _mean(logs) for log in logs])
        places.append([run.place or 0.0 for run in runs])
    squares = math.fsum(value * value for values in residuals for value in values)
    count = sum(map(len, residuals))
    if count < _LEAST_RUNS or squares <= count * _ALIKE**2:
        return None

    def correlation() -> float:
        in_order = sorted(zip(chain(*places), chain(*residuals), strict=True))
        return math.fsum(first[1] * second[1] for first, second in pairwise(in_order)) / squares

    found, random = correlation(), Random(_SEED)
    larger = 0
    for _ in range(_EXCHANGES):
        for values in residuals:
            random.shuffle(values)
        larger += correlation() >= found
        if larger >= _CERTAIN * _EXCHANGES:
            return None
    return found


def typical_value(runs: Sequence[Placed], drift: Drift = STEADY) -> Estimate:
    """Return the speed of one or more runs of a configuration in the middle of the bench."""
    return _estimate(
        [run.value for run in runs], [drift.offset(run) for run in runs], drift.slope, drift.squares
    )


def typical_centre(
    runs: Sequence[Placed], drift: Drift = STEADY, *, from_middle: float | None = None
) -> Centre | None:
    """Return the mean logarithm of the runs of a configuration in the middle of the bench; None for
    fewer than two.

    ``from_middle`` replaces the distance of their mean place from the middle where the uncertainty
    of the slope is added.
    """
    if not runs:
        return None
    offsets = [drift.offset(run) for run in runs]
    distance = _mean(offsets) if from_middle is None else from_middle
    return _centre([run.value for run in runs], offsets, drift.slope, drift.squares, distance)


def typical_change(
    before: Sequence[Placed], after: Sequence[Placed], drifts: tuple[Drift, Drift]
) -> Change | None:
    """Return the change from a configuration of one bench to one of another, each in the middle of
    its bench, without the drift of that bench; None for fewer than two runs of either.

    If both ran in one bench, its slope is as wrong for one as for the other.
    """
    distances: tuple[float | None, float | None] = (None, None)
    if drifts[0].slope and drifts[0] == drifts[1]:
        means = [
            _mean(list(map(drift.offset, runs)))
            for runs, drift in zip((before, after), drifts, strict=True)
        ]
        distances = (abs(means[1] - means[0]) / math.sqrt(2),) * 2
    sides = [
        typical_centre(runs, drift, from_middle=distance)
        for runs, drift, distance in zip((before, after), drifts, distances, strict=True)
    ]
    found = [side for side in sides if side]
    if len(found) != 2:
        return None
    return change_between(found[0], found[1])


def chance_without_drift(
    before: Sequence[Placed], after: Sequence[Placed], drifts: tuple[Drift, Drift]
) -> float:
    """Return the `chance` of a permutation test of two configurations, each without the drift of
    its bench.

    Residuals of a fitted line are smaller than the noise. They are enlarged to make up for that
    before runs of the two benches are exchanged (P. Good, "Permutation, Parametric and Bootstrap
    Tests of Hypotheses", 2005, on residuals).
    """
    first, second = (
        _without(runs, drift) for runs, drift in zip((before, after), drifts, strict=True)
    )
    return chance(first, second)


def _without(runs: Sequence[Placed], drift: Drift) -> list[float]:
    if not drift.slope:
        return [run.value for run in runs]
    offsets = [drift.offset(run) for run in runs]
    logs = [
        math.log(run.value) - drift.slope * offset
        for run, offset in zip(runs, offsets, strict=True)
    ]
    centre, free = _mean(logs), len(runs) - 1 - _fitted_share(offsets, drift.squares)
    larger = math.sqrt((len(runs) - 1) / free) if free > 0 else 1.0
    return [math.exp(centre + larger * (log - centre)) for log in logs]


def typical_ratio(
    runs: Mapping[int, Placed], others: Mapping[int, Placed], drift: Drift = STEADY
) -> Estimate | None:
    """Return the ratio of two configurations from the repeats that both have.

    None if they share fewer than two. Runs of one repeat are close in time, so whatever both have
    in common, drift or not, cancels out of their ratio.
    """
    pairs = [(run, others[repeat]) for repeat, run in runs.items() if repeat in others]
    if len(pairs) < 2:
        return None
    ratios = [run.value / other.value for run, other in pairs]
    # The noise of a difference has twice the variance of the noise that the slope's uncertainty
    # comes from.
    return _estimate(
        ratios,
        [drift.offset(run) - drift.offset(other) for run, other in pairs],
        drift.slope,
        2 * drift.squares,
    )


def _estimate(
    values: Sequence[float], offsets: Sequence[float], slope: float, squares: float
) -> Estimate:
    """Return the estimate from values and their distances from the middle of the bench, in runs."""
    centre = _centre(values, offsets, slope, squares, _mean(offsets))
    logs = _less_slope(values, offsets, slope)
    return Estimate(times_exp(values[0], _mean(logs)), centre.interval() if centre else None)


def _centre(
    values: Sequence[float], offsets: Sequence[float], slope: float, squares: float, distance: float
) -> Centre | None:
    """Return the mean logarithm of values without the slope.

    The slope was fitted to these as well: it took a share of a degree of freedom from them. If they
    lie to one side of the middle, on average at a ``distance``, the uncertainty of the slope is
    added.
    """
    fitted, added = _fitted_share(offsets, squares), distance * distance / squares
    return centre_of(
        _less_slope(values, offsets, slope), unit=values[0], fitted=fitted, added=added
    )


def _less_slope(values: Sequence[float], offsets: Sequence[float], slope: float) -> list[float]:
    return [log - slope * offset for log, offset in zip(logarithms(values), offsets, strict=True)]


def _fitted_share(offsets: Sequence[float], squares: float) -> float:
    """Return the share of the slope's degree of freedom that came from runs at these distances."""
    centre = _mean(offsets)
    return math.fsum((offset - centre) ** 2 for offset in offsets) / squares


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

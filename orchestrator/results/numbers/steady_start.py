"""The beginning of a run's steady state, learned from its step times, to check its window.

The number of warm-up steps is declared, not known: compilation, caches, a growing memory pool and
clocks that fall with temperature may take longer. The series of all step times, warm-up included,
is divided into segments of equal level, as in E. Barrett et al., "Virtual machine warmup blows hot
and cold" (OOPSLA 2017): change points by an exact search with a penalty for each (B. Jackson et
al., "An algorithm for optimal partitioning of data on an interval", IEEE Signal Processing Letters
12, 2005). The steady state begins with the first segment at the level of the last one. How often
this is right is in docs/results/methods.md, measured by ``benchmarks/steady_start.py``.

>>> steps = [Stretch(step, 1, 0.65 if step <= 40 else 0.5 + 0.01 * (step % 2)) for step in range(1, 121)]
>>> steady_start(steps)
SteadyStart(first_step=41, step_s=0.505)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from orchestrator.results.numbers.steadiness import clip, whiten
from orchestrator.results.numbers.throughput import WORTH, Stretch, mean, median

_FEWEST = 20
_POINTS = 120
"""A longer series is averaged to at most this many points."""
_SHORTEST = 5
"""Points of the shortest segment."""
_PENALTY = 5.0
"""Of a change point, in units of the noise's variance times the logarithm of the number of points.
With 2, white noise gives one in a quarter of all series; neighbouring steps are alike, which no
whitening removes completely."""
_AT_LEVEL = 0.5
"""Least share of what follows the start that is at the level of the last segment."""
_LEAST = 0.25
"""Least share of a run that is in its steady state, as of the 2000 iterations of Barrett et al. at
least 500.
"""
_OF_MEDIAN, _CERTAIN = 1.2533, 3.0
"""The standard error of a median of normal values over that of their mean; levels that differ by
less than so many standard errors are equal too."""
_FAR, _SLOW = 6.0, 0.25
"""A single slow step is this many standard deviations, and this share, above the level."""


@dataclass(frozen=True, slots=True)
class SteadyStart:
    """The first step of the steady state, None if there is none, and the typical time of a step in
    it, or of the last steps (s)."""

    first_step: int | None
    step_s: float

    def holds_from(self, step: int) -> bool:
        """Return True if the steady state has begun when this step begins."""
        return self.first_step is not None and self.first_step <= step


def steady_start(lines: Sequence[Stretch]) -> SteadyStart | None:
    """Return the begin of the steady state, from all lines of a run in order, warm-up included;
    None for fewer than 20 lines.

    Levels that differ by less than `WORTH`, or by no more than chance, are equal. A stretch of
    slower steps later on is no warm-up; `steadiness` reports it.
    """
    if len(lines) < _FEWEST:
        return None
    width = -(-len(lines) // _POINTS)
    groups = [lines[place : place + width] for place in range(0, len(lines), width)]
    times = []
    for group in groups:
        times.append(math.fsum(line.seconds for line in group) / sum(line.steps for line in group))
    logs = [math.log(time) for time in times]
    correlated, white, noise = whiten(logs)
    bounds = [0, *(place + 1 for place in _changes(clip(white, noise), noise)), len(times)]
    segments = list(zip(bounds, bounds[1:], strict=False))
    levels = [median(times[first:last]) for first, last in segments]
    error = _OF_MEDIAN * noise / (1 - correlated)
    last = bounds[-1] - bounds[-2]
    at_level = [
        abs(level / levels[-1] - 1)
        < max(WORTH, _CERTAIN * error * math.sqrt(1 / (stop - begin) + 1 / last))
        for level, (begin, stop) in zip(levels[:-1], segments, strict=False)
    ] + [True]
    first = at_level.index(True)
    start = segments[first][0]
    alike = sum(
        last - begin for (begin, last), is_at in zip(segments, at_level, strict=True) if is_at
    )
    usual = median(
        [
            time
            for (begin, last), is_at in zip(segments, at_level, strict=True)
            if is_at
            for time in times[begin:last]
        ]
    )
    limit = usual * max(1 + _SLOW, math.exp(_FAR * noise))
    while start < len(times) - 1 and times[start] > limit:
        start, alike = start + 1, alike - 1
    is_steady = alike >= _AT_LEVEL * (len(times) - start) and len(times) - start >= _LEAST * len(
        times
    )
    line = groups[start][0]
    return SteadyStart(line.last - line.steps + 1 if is_steady else None, usual)


def _changes(values: Sequence[float], noise: float) -> list[int]:
    """Return the places at which the mean of a series changes: those that minimize its squared
    residuals, in units of the noise, plus a penalty for each change."""
    count = len(values)
    least = noise or 1e-12
    centre = mean(values)
    sums = [0.0, *accumulate((value - centre) / least for value in values)]
    squares = [0.0, *accumulate(((value - centre) / least) ** 2 for value in values)]
    penalty = _PENALTY * math.log(count)
    best, before = [-penalty] + [math.inf] * count, [0] * (count + 1)
    for stop in range(_SHORTEST, count + 1):
        total, square = sums[stop], squares[stop]
        for start in (0, *range(_SHORTEST, stop - _SHORTEST + 1)):
            inside = total - sums[start]
            cost = (
                best[start] + square - squares[start] - inside * inside / (stop - start) + penalty
            )
            if cost < best[stop]:
                best[stop], before[stop] = cost, start
    changes, stop = [], count
    while stop:
        stop = before[stop]
        changes.append(stop)
    return [place for place in reversed(changes) if place]

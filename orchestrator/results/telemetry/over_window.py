"""The samples of a node over the measured window: means of readings, rates of counters, and what
counters of errors grew by.

Samples come about once a second, so what happened at the ends of a window is interpolated between
two of them. A window of which less than half was sampled has no mean.

>>> joules = [(0.0, 1000.0), (1.0, 1400.0), (2.0, 1800.0), (3.0, 1850.0)]
>>> rate_over(joules, 0.5, 1.5)
400.0
>>> watts = [(0.0, 400.0), (1.0, 400.0), (2.0, 300.0)]
>>> mean_over(watts, 1.0, 2.0)
350.0
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

Point = tuple[float, float]
"""Seconds, and the value that was read then."""
_COVERED = 0.5
"""Share of a window that has to lie between its first and its last sample."""
_EDGE = 0.25
"""Share of a window that may lie between two samples if one of its ends does: what is assumed there
is a straight line.
"""


def energy_per_sample(powers_w: Sequence[float], samples_per_s: float) -> float:
    """Return the joules per sample of devices that draw these powers together while samples are
    computed at this speed.

    >>> energy_per_sample([650.0, 640.0], 2580.0)
    0.5
    """
    return math.fsum(powers_w) / samples_per_s


def mean_over(points: Sequence[Point], begin: float, end: float) -> float | None:
    """Return the mean of a reading over a window, weighted by time, with straight lines between
    samples; None if less than half of the window lies between samples."""
    span = _covered_part(points, begin, end)
    if span is None:
        return None
    first, last = span
    inside = [(at, value) for at, value in points if first < at < last]
    line = [(first, _at(points, first)), *inside, (last, _at(points, last))]
    pairs = zip(line, line[1:], strict=False)
    return math.fsum((later - earlier) * (x + y) / 2 for (earlier, x), (later, y) in pairs) / (
        last - first
    )


def is_resolved(points: Sequence[Point], begin: float, end: float) -> bool:
    """Return True if the samples around both ends of a window are close to each other, compared
    with the window: between them a GPU may have begun to work.

    >>> is_resolved([(float(at), 0.0) for at in range(12)], 2.5, 8.5), is_resolved([(0, 0), (12, 9), (18, 20)], 2.5, 16.5)
    (True, False)
    """
    times = [at for at, _ in points]
    for edge in (begin, end):
        place = bisect_left(times, edge)
        if 0 < place < len(times) and times[place] - times[place - 1] > _EDGE * (end - begin):
            return False
    return True


def continue_to(
    end: float, points: Sequence[Point], begin: float, *, counts: bool
) -> Sequence[Point]:
    """Return the samples up to a window's end, with a last one at the end: a reading stays what it
    was in the last sample of the window, and a counter (``counts``) grows as it did between the
    last two.

    The next sample may have seen a GPU whose program had ended with the window, so that no line
    leads to it. Where the window has no two samples, or none close to its end, there is no better
    guess than that line: the samples are returned as they are.

    >>> joules = [(0.0, 0.0), (1.0, 600.0), (2.0, 1200.0), (3.0, 1300.0)]
    >>> continue_to(2.5, joules, 0.0, counts=True)
    [(0.0, 0.0), (1.0, 600.0), (2.0, 1200.0), (2.5, 1500.0)]
    """
    inside = [point for point in points if begin <= point[0] <= end]
    if len(inside) < 2 or end - inside[-1][0] > _EDGE * (end - begin):
        return points
    (earlier, was), (last, value) = inside[-2:]
    until = [point for point in points if point[0] <= last]
    if last == end:
        return until
    growth = (value - was) / (last - earlier) if counts else 0.0
    return [*until, (end, value + growth * (end - last))]


def rate_over(points: Sequence[Point], begin: float, end: float) -> float | None:
    """Return the growth of a counter per second over a window.

    None if less than half of the window lies between samples, or if the counter was set back.
    """
    span = _covered_part(points, begin, end)
    if span is None or any(
        later < earlier for (_, earlier), (_, later) in zip(points, points[1:], strict=False)
    ):
        return None
    first, last = span
    return (_at(points, last) - _at(points, first)) / (last - first)


def growth_over(points: Sequence[Point], begin: float, end: float) -> float:
    """Return the growth of a counter of errors from the last sample before a window to the first
    one after it; 0 if it is unknown, or was set back.
    """
    before = [value for at, value in points if at <= begin][-1:] or [value for _, value in points][
        :1
    ]
    after = [value for at, value in points if at >= end][:1] or [value for _, value in points][-1:]
    if before and after:
        return max(0.0, after[0] - before[0])
    return 0.0


def readings_in(points: Sequence[Point], begin: float, end: float) -> list[float]:
    """Return the values that were read within a window."""
    return [value for at, value in points if begin <= at <= end]


def _covered_part(points: Sequence[Point], begin: float, end: float) -> tuple[float, float] | None:
    """Return the part of a window that lies between samples; None if it is less than half of it."""
    if len(points) < 2 or end <= begin:
        return None
    first, last = max(begin, points[0][0]), min(end, points[-1][0])
    if last - first >= _COVERED * (end - begin):
        return (first, last)
    return None


def _at(points: Sequence[Point], at: float) -> float:
    """Return the value at a time between the first and the last sample."""
    place = min(max(1, bisect_left(points, (at, -math.inf))), len(points) - 1)
    (earlier, x), (later, y) = points[place - 1], points[place]
    return x + (y - x) * (at - earlier) / (later - earlier)

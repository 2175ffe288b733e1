"""Find steps of a window that take longer than others, and their cost.

It looks for three ways to be unsteady: some steps are far slower than all others (a stall), a
stretch of consecutive steps is slower or faster than the rest (a level shift, a late end of the
warm-up), and all steps drift. Each has to cost `WORTH` of the time, so noise that does
not change the throughput gives no finding. How often each method is right and wrong is in
docs/results/methods.md, measured by ``benchmarks/steadiness.py``.

>>> unsteady([Stretch(step, 1, 50.0 if step == 33 else 0.5) for step in range(21, 121)])
('1 of 100 steps took 100 times as long as the median: step 33; that is 49.5 s, 49.7% of the window',)
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import accumulate

from orchestrator.notes import Note
from orchestrator.results.numbers.notes import (
    SLOW_START,
    SLOW_STEPS,
    SLOW_STRETCH,
    SLOWING_DOWN,
    SPEEDING_UP,
)
from orchestrator.results.numbers.throughput import WORTH, Stretch, mean, median

_NORMAL = 1.4826
"""The standard deviation of normal values over their median absolute deviation."""
_FAR, _SLOW = 6.0, 0.25
"""A slow step is this many standard deviations, and this share of the median, above the median."""
_FEWEST_FOR_SLOW, _FEWEST_FOR_STRETCH = 4, 20
_POINTS = 200
"""A longer series is averaged to at most this many points before it is searched for a stretch."""
_SHORTEST = 5
"""Points of the shortest stretch, and of the shortest rest."""
_ROUNDS = 5
"""How often the bounds of a stretch and the levels on both sides of them are fitted to each other.
"""
_BEYOND_CHANCE = 6.0
"""Smallest statistic of a stretch. Steady windows exceed it in at most 1 of 200 cases while step
times are correlated by 0.5 or less from step to step; docs/results/methods.md has the measured
shares."""
_OUTLIER, _CLIPPED, _NEAR = 3.0, 2.5, 7
_MOST_CORRELATED = 0.9
_PARTS = 10
_TOO_ONE_SIDED = 33
_NAMED = 5


def unsteady(window: Sequence[Stretch], *, in_seconds: bool = True) -> tuple[Note, ...]:
    """Return in which ways the lines of a window, in order, are not steady, and what that costs;
    empty if they are. ``in_seconds``: their seconds are known, not only the ratios of these.
    """
    times = [line.seconds / line.steps for line in window]
    slow = slow_steps(times)
    texts = [_of_slow(window, times, slow, in_seconds)] if slow else []
    # Judged without the slow steps: one stall would hide any shift.
    is_slow = set(slow)
    lines = [line for place, line in enumerate(window) if place not in is_slow]
    rest = [time for place, time in enumerate(times) if place not in is_slow]
    grown, span = trend(rest), stretch_apart(rest)
    if grown is not None and (
        span is None or _fit(rest, range(len(rest))) >= _fit(rest, _inside(span, len(rest)))
    ):
        texts.append(_of_trend(rest, grown))
    elif span is not None:
        texts.append(_of_stretch(lines, rest, span, in_seconds))
    return tuple(texts)


def slow_steps(step_times: Sequence[float]) -> list[int]:
    """Return the places of steps that are far slower than the others, if they cost `WORTH` of all
    time.

    Otherwise the list is empty. A slow step is more than 6 standard deviations above the median,
    where the deviation is estimated by the median absolute deviation (F. R. Hampel, "The influence
    curve and its role in robust estimation", JASA 69, 1974), and 25 % above it. Empty for fewer
    than 4 values.

    >>> slow_steps([0.5, 0.51, 0.49, 5.0, 0.5, 0.52, 0.48])
    [3]
    """
    if len(step_times) < _FEWEST_FOR_SLOW:
        return []
    middle = median(step_times)
    deviation = _NORMAL * median([abs(time - middle) for time in step_times])
    limit = middle + max(_FAR * deviation, _SLOW * middle)
    slow = [place for place, time in enumerate(step_times) if time > limit]
    lost = math.fsum(step_times[place] - middle for place in slow)
    return slow if lost >= WORTH * math.fsum(step_times) else []


def stretch_apart(step_times: Sequence[float]) -> tuple[int, int] | None:
    """Return the bounds (first place, place after the last) of consecutive values that differ from
    the rest, else None.

    The stretch whose mean logarithm differs most from the rest's is tested (B. Levin and J. Kline,
    "The cusum test of homogeneity", Statistics in Medicine 4, 1985). Neighbouring steps are alike
    without any shift, so the series is first made independent by its correlation from step to step.
    This is estimated from differences, in which a shift occurs only once (S. Chakar et al., "A
    robust approach for estimating change-points in the mean of an AR(1) process", Bernoulli 23,
    2017). Values far from their neighbours are clipped. A difference of the medians below `WORTH`
    is ignored. The tested stretch has at least 5 points; the returned bounds fit best and may hold
    fewer. None for fewer than 20 values.

    >>> stretch_apart([0.50, 0.51] * 35 + [0.60, 0.61] * 15)
    (70, 100)
    >>> stretch_apart([0.50, 0.51] * 48 + [0.62, 0.63] * 2) is None
    True
    """
    if len(step_times) < _FEWEST_FOR_STRETCH:
        return None
    width = -(-len(step_times) // _POINTS)
    logs = [
        math.log(mean(step_times[start : start + width]))
        for start in range(0, len(step_times), width)
    ]
    _, white, noise = whiten(logs)
    beyond, start, stop = _furthest(clip(white, noise))
    if beyond <= _BEYOND_CHANCE * noise or not beyond:
        return None
    # The first point has no predecessor and therefore no white value; a stretch from the second on
    # begins with it.
    first, last = (start + 1) * width if start else 0, min(len(step_times), (stop + 1) * width)
    inside, outside = step_times[first:last], [*step_times[:first], *step_times[last:]]
    if abs(median(inside) / median(outside) - 1) >= WORTH:
        return _refine(step_times, first, last)
    return None


def trend(step_times: Sequence[float]) -> float | None:
    """Return how much longer the last fifth of a window takes than the first, as a fraction, if
    step times drift; else None.

    The window is cut into ten parts, whose medians are tested for a trend by Mann and Kendall
    ("Nonparametric tests against trend", Econometrica 13, 1945): of the 45 pairs, those with a
    slower later part must outnumber the others by 33, or vice versa, which happens in one steady
    window of 450. A trend below `WORTH` is ignored. None for fewer than 20 values.

    >>> trend([0.50 + 0.001 * number for number in range(40)])
    0.0635551142005959
    >>> trend([0.50, 0.51] * 20)
    """
    if len(step_times) < 2 * _PARTS:
        return None
    edges = [len(step_times) * part // _PARTS for part in range(_PARTS + 1)]
    parts = [median(step_times[start:stop]) for start, stop in zip(edges, edges[1:], strict=False)]
    slower = sum(
        (late > early) - (late < early)
        for index, early in enumerate(parts)
        for late in parts[index + 1 :]
    )
    fifth = _PARTS // 5
    grown = mean(parts[-fifth:]) / mean(parts[:fifth]) - 1
    if abs(slower) >= _TOO_ONE_SIDED and abs(grown) >= WORTH:
        return grown
    return None


# -- words


def _of_slow(
    window: Sequence[Stretch], times: Sequence[float], slow: Sequence[int], in_seconds: bool
) -> Note:
    usual = median(times)
    longer = median([times[place] for place in slow]) / usual
    count, total = sum(window[place].steps for place in slow), sum(line.steps for line in window)
    steps, cost = _spans(window, slow), _cost(window, times, slow, usual, in_seconds)
    return SLOW_STEPS(count=count, total=total, longer=longer, steps=steps, cost=cost)


def _of_stretch(
    window: Sequence[Stretch], times: Sequence[float], span: tuple[int, int], in_seconds: bool
) -> Note:
    slow: Sequence[int] = range(*span)
    fast: Sequence[int] = [*range(span[0]), *range(span[1], len(times))]
    if _typical(times, slow) < _typical(times, fast):
        slow, fast = fast, slow
    usual = _typical(times, fast)
    longer = _typical(times, slow) / usual - 1
    cost = _cost(window, times, slow, usual, in_seconds)
    at_the_start = slow[0] == 0 and slow[-1] == len(slow) - 1
    kind = SLOW_START if at_the_start else SLOW_STRETCH
    return kind(steps=_spans(window, slow), longer=longer, cost=cost)


def _of_trend(times: Sequence[float], grown: float) -> Note:
    fifth = len(times) // 5
    usual = median(times[:fifth] if grown > 0 else times[-fifth:])
    lost = math.fsum(time - usual for time in times) / math.fsum(times)
    if grown > 0:
        return SLOWING_DOWN(longer=grown, lost=lost)
    return SPEEDING_UP(shorter=-grown, lost=lost)


def _typical(times: Sequence[float], places: Sequence[int]) -> float:
    return median([times[place] for place in places])


def _cost(
    window: Sequence[Stretch],
    times: Sequence[float],
    slow: Sequence[int],
    usual: float,
    in_seconds: bool,
) -> str:
    """Return the time that would not have passed if the slow steps had taken as long as usual, in
    words.
    """
    lost_s = math.fsum((times[place] - usual) * window[place].steps for place in slow)
    share = f"{lost_s / math.fsum(line.seconds for line in window):.1%} of the window"
    return f"{lost_s:.3g} s, {share}" if in_seconds else share


def _spans(window: Sequence[Stretch], places: Sequence[int]) -> str:
    """Return the steps of these lines as text, consecutive lines joined: ``steps 21-30, 45 and 3
    more``.
    """
    spans: list[list[int]] = []
    for place in places:
        first, last = window[place].last - window[place].steps + 1, window[place].last
        if spans and spans[-1][1] == first - 1:
            spans[-1][1] = last
        else:
            spans.append([first, last])
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in spans[:_NAMED]]
    more = sum(last - first + 1 for first, last in spans[_NAMED:])
    word = "step" if len(spans) == 1 and spans[0][0] == spans[0][1] else "steps"
    return f"{word} {', '.join(shown)}{f' and {more} more' if more else ''}"


# -- arithmetic


def _inside(span: tuple[int, int], count: int) -> list[int]:
    return [int(span[0] <= place < span[1]) for place in range(count)]


def _fit(values: Sequence[float], by: Sequence[int]) -> float:
    """Return the share of the variance of values that a line over ``by`` explains."""
    centre, middle = mean(values), mean(by)
    across = math.fsum(
        (value - centre) * (place - middle) for value, place in zip(values, by, strict=True)
    )
    spread = math.fsum((place - middle) ** 2 for place in by)
    return across**2 / spread / (math.fsum((value - centre) ** 2 for value in values) or 1.0)


def differences(values: Sequence[float], lag: int) -> list[float]:
    """Return the difference of each value to the one ``lag`` places before."""
    return [later - earlier for earlier, later in zip(values, values[lag:], strict=False)]


def mean_square(differences: Sequence[float]) -> float:
    """Return the mean square of differences, each counted with at most 3 standard deviations."""
    limit = (_OUTLIER * _NORMAL * median([abs(value) for value in differences])) ** 2 or math.inf
    return math.fsum(min(value * value, limit) for value in differences) / len(differences)


def correlation(logs: Sequence[float]) -> float:
    """Return the correlation of neighbours, 0 to 0.9, from differences over two steps and over one."""
    near = differences(logs, 1)
    if not median(
        [abs(value) for value in near]
    ):  # mostly equal: a single shift would look like a correlation of 1
        return 0.0
    return min(
        _MOST_CORRELATED, max(0.0, mean_square(differences(logs, 2)) / mean_square(near) - 1)
    )


def whiten(logs: Sequence[float]) -> tuple[float, list[float], float]:
    """Return the correlation of neighbours, the values without it, and the noise of these."""
    correlated = correlation(logs)
    white = [later - correlated * earlier for earlier, later in zip(logs, logs[1:], strict=False)]
    return correlated, white, math.sqrt(mean_square(differences(white, 1)) / 2)


def clip(values: Sequence[float], noise: float) -> list[float]:
    """Return the values, each at most 2.5 standard deviations from the median of its neighbourhood
    of 15.
    """
    padded = [*reversed(values[:_NEAR]), *values, *reversed(values[-_NEAR:])]
    near = sorted(padded[: 2 * _NEAR + 1])
    within = []
    for place, value in enumerate(values):
        centre, limit = near[_NEAR], _CLIPPED * noise
        within.append(min(centre + limit, max(centre - limit, value)))
        if place + 2 * _NEAR + 1 < len(padded):
            near.pop(bisect_left(near, padded[place]))
            insort(near, padded[place + 2 * _NEAR + 1])
    return within


def _refine(step_times: Sequence[float], first: int, last: int) -> tuple[int, int]:
    """Return the bounds that divide values best between the levels inside and outside of a stretch,
    which may be shorter.

    That is the stretch with the largest sum of what its values are beyond the middle between the
    levels, each counted with at most half the difference, so that one value far away does not draw
    the bounds to it.
    """
    for number in range(_ROUNDS):
        # The median of a stretch of which less than half is apart is the level of the rest; its
        # mean is between the two.
        level = median if number else mean
        inside, outside = (
            math.log(level(step_times[first:last])),
            math.log(level([*step_times[:first], *step_times[last:]])),
        )
        middle, half = (inside + outside) / 2, abs(inside - outside) / 2
        sign = 1 if inside > outside else -1
        beyond = [min(half, max(-half, sign * (math.log(time) - middle))) for time in step_times]
        before, (first, last) = (first, last), _largest_sum(beyond)
        if (first, last) in (before, (0, len(step_times))):
            return before
    return first, last


def _largest_sum(values: Sequence[float]) -> tuple[int, int]:
    """Return the bounds of the consecutive values with the largest sum (J. B. Kadane's algorithm)."""
    best, bounds, running, start = -math.inf, (0, len(values)), 0.0, 0
    for place, value in enumerate(values):
        if running <= 0:
            running, start = 0.0, place
        running += value
        if running > best:
            best, bounds = running, (start, place + 1)
    return bounds


def _furthest(values: Sequence[float]) -> tuple[float, int, int]:
    """Return the largest statistic of any stretch, its first place and the place after its last."""
    count, centre = len(values), mean(values)
    sums = [0.0, *accumulate(value - centre for value in values)]
    weights = [math.sqrt(length * (count - length) / count) for length in range(count + 1)]
    worst = (0.0, 0, count)
    for start in range(count - _SHORTEST + 1):
        begun = sums[start]
        for stop in range(start + _SHORTEST, min(count, start + count - _SHORTEST) + 1):
            beyond = abs(sums[stop] - begun) / weights[stop - start]
            if beyond > worst[0]:
                worst = (beyond, start, stop)
    return worst

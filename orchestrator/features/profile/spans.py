"""Sets of moments as sorted intervals that do not touch, in any unit.

>>> unite([(4, 6), (1, 2), (5, 8)])
[(1, 2), (4, 8)]
>>> length(common([(1, 2), (4, 8)], [(0, 5)]))
2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def unite(spans: Iterable[Span]) -> list[Span]:
    """Return the moments that are in any of the intervals."""
    whole: list[Span] = []
    for begin, end in sorted(spans):
        if whole and begin <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((begin, end))
    return whole


def common(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """Return the moments that are in both sets."""
    shared, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            shared.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


def without(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """Return the moments that are in the first set and not in the second.

    >>> without([(0, 10)], [(2, 3), (8, 12)])
    [(0, 2), (3, 8)]
    """
    rest, place = [], 0
    for begin, end in first:
        while place < len(second) and second[place][1] <= begin:
            place += 1
        for number in range(place, len(second)):
            other_begin, other_end = second[number]
            if other_begin >= end:
                break
            if other_begin > begin:
                rest.append((begin, other_begin))
            begin = other_end
        if begin < end:
            rest.append((begin, end))
    return rest


def length(spans: Iterable[Span]) -> float:
    """Return for how long a set lasts."""
    return sum(end - begin for begin, end in spans)

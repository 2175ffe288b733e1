"""A small line without axes, for a page that is made again every second: a chart of matplotlib
takes 25 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT = 220, 34


def sparkline(points: Sequence[tuple[float, float]], label: str) -> str:
    """Return points (seconds, value) as an ``<svg>`` element with ``label`` for screen readers:
    from 0 to the largest value.

    >>> sparkline([(0.0, 1.0), (1.0, 2.0)], "power").count("220.0,1.0")
    1
    """
    first, last = points[0][0], points[-1][0]
    highest = max((value for _, value in points), default=0.0) or 1.0
    lowest = min(0.0, *(value for _, value in points))
    across, up = _WIDTH / ((last - first) or 1.0), (_HEIGHT - 2) / (highest - lowest)
    drawn = " ".join(
        f"{(at - first) * across:.1f},{_HEIGHT - 1 - (value - lowest) * up:.1f}"
        for at, value in points
    )
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    line = f'<polyline points="{drawn}" fill="none" stroke="var(--one)" stroke-width="1.4"/>'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{line}</svg>'


def bar(parts: Sequence[tuple[str, float]], label: str) -> str:
    """Return shares of 1, each with the name of its colour, as one bar.

    >>> bar([("one", 0.25), ("bad", 0.5)], "runs").count("<rect")
    2
    """
    rects, begin = [], 0.0
    for colour, share in parts:
        rects.append(
            f'<rect x="{100 * begin:.2f}" y="0" width="{100 * share:.2f}" height="10" fill="var(--{colour})"/>'
        )
        begin += share
    size = 'viewBox="0 0 100 10" preserveAspectRatio="none"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(rects)}</svg>'

"""The value of a metric in bench after bench, as a chart of a site: a line for each shape, with 95
% intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from orchestrator.analysis.past_cells import PastCell
from orchestrator.plural import plural
from orchestrator.report.html.axes import columns, new_axes, put_words
from orchestrator.report.html.svg import COLOURS, inline

LINES = ("one", "two", "three", "four", "five")
"""Colours of lines, in this order; no chart has more."""
_MARKERS = ("o", "s", "^", "D", "v")
SIGNS = ("●", "■", "▲", "◆", "▼")
"""The marks of these lines, as characters."""
_MANY = 60
_LEAST_DAYS = 1 / 96
"""What the x axis spans at least: a quarter of an hour."""


def over_time(lines: Sequence[Sequence[PastCell]], title: str, prefix: str) -> str:
    """Draw cells over the time when their benches were made, in UTC; every cell has a value and a
    time.

    A number in a line's place is named by its colour and its mark, in the order of `LINES`.
    """
    figure, axes = new_axes()
    for place, line in enumerate(lines):
        colour = COLOURS[LINES[place]]
        points = [(cell.days or 0.0, cell.value or 0.0) for cell in line]
        ends = [
            point
            for (at, _), cell in zip(points, line, strict=True)
            if cell.interval
            for point in ((at, cell.interval.low), (at, cell.interval.high), (at, float("nan")))
        ]
        axes.plot(*columns(ends), color=colour, linewidth=1.2, alpha=0.6)
        size = 5 if len(points) <= _MANY else 2.5
        axes.plot(
            *columns(points), color=colour, marker=_MARKERS[place], markersize=size, linewidth=1.1
        )
    locator = AutoDateLocator(minticks=2, maxticks=5)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))  # type: ignore[no-untyped-call]
    times = [cell.days or 0.0 for line in lines for cell in line]
    if max(times) - min(times) < _LEAST_DAYS:
        middle = (max(times) + min(times)) / 2
        axes.set_xlim(middle - _LEAST_DAYS / 2, middle + _LEAST_DAYS / 2)
    axes.margins(x=0.04)
    axes.set_ylim(
        bottom=0 if min(cell.value or 0.0 for line in lines for cell in line) >= 0 else None
    )
    dates = sorted({cell.created[:10] for line in lines for cell in line})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    put_words(figure, lines[0][0].unit, below=f"bench made, UTC, {span}")
    return inline(
        figure,
        f"{title} over the time of {plural(sum(map(len, lines)), 'bench', 'benches')}",
        prefix,
    )

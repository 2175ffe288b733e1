"""The charts of metrics that are no speeds, each as the text of an SVG element: over a key, and
repeat by repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import FuncFormatter

from orchestrator.grouping import group_pairs
from orchestrator.report.cells import case
from orchestrator.report.html.axes import columns, new_axes, put_words, whole_numbers
from orchestrator.report.html.svg import COLOURS, inline
from orchestrator.report.text import one_line
from orchestrator.results.entries import Row
from orchestrator.results.keys import key_number
from orchestrator.results.series import shared_choices

_LINES = ("one", "two", "three", "four", "five")
_MARKERS = ("o", "s", "^", "D", "v")
_LOGARITHMIC = 16
"""From this ratio of the largest to the smallest key on, the axis of keys is logarithmic."""
_LABELLED = 5
"""Lines that have a label each; the table has all."""


def legend(rows: Sequence[Row], key: str) -> list[tuple[str, str]]:
    """Return the lines of a chart by their colours, each with what it is of: configurations and
    keys, but for ``key``, the axis of `over_key`. Empty for a single line, and where each has its
    name in the chart. More lines than colours share them."""
    lines = list(dict.fromkeys(_lines(rows, key)))
    colours = _LINES[: len(lines)]
    named = [
        (colour, ", ".join(lines[place :: len(_LINES)])) for place, colour in enumerate(colours)
    ]
    if len(lines) > (_LABELLED if key else 1):
        return named
    return []


def _lines(rows: Sequence[Row], key: str) -> list[str]:
    """Return the name of each row's line."""
    unnamed = shared_choices(rows)
    names = []
    for row in rows:
        values = {n: v for n, v in row.options.items() if v is not None and n not in unnamed}
        values |= {name: value for name, value in row.key.items() if name != key}
        names.append(one_line(" ".join([case(row), *(f"{n}={v}" for n, v in values.items())])))
    return names


def over_key(rows: Sequence[Row], key: str, prefix: str) -> str:
    """Draw the typical values of a metric over a key, a line for each configuration and other keys,
    with intervals.
    """
    figure, axes = new_axes()
    lines = group_pairs(zip(_lines(rows, key), rows, strict=True))
    for number, (name, of_line) in enumerate(lines.items()):
        colour = COLOURS[_LINES[number % len(_LINES)]]
        for row in of_line:
            if row.interval:
                axes.plot(
                    [_place(row, key)] * 2,
                    [row.interval.low, row.interval.high],
                    color=colour,
                    linewidth=1.2,
                    alpha=0.6,
                )
        points = sorted((_place(row, key), row.value) for row in of_line if row.value is not None)
        axes.plot(
            *columns(points),
            color=colour,
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4,
            linewidth=1.4,
        )
        if 1 < len(lines) <= _LABELLED:
            axes.annotate(
                name, points[-1], (-4, 5), textcoords="offset points", fontsize=9, ha="right"
            )
    sizes = sorted({_place(row, key) for row in rows})
    if sizes[0] > 0 and sizes[-1] >= _LOGARITHMIC * sizes[0]:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _binary(size)))
        axes.minorticks_off()
    if min(row.value or 0.0 for row in rows) >= 0:
        axes.set_ylim(0, None)
    put_words(figure, f"{rows[0].title}, {rows[0].unit}", below=key)
    return inline(figure, f"{rows[0].title} over {key}", prefix)


def repeats(rows: Sequence[Row], order: Mapping[str, int], prefix: str) -> str:
    """Draw the values of a metric in execution order, a colour for each configuration, with typical
    values and intervals.

    ``order`` has the position of each run in the bench.
    """
    figure, axes = new_axes()
    for number, row in enumerate(rows):
        colour = COLOURS[_LINES[number % len(_LINES)]]
        points = sorted(
            (order[repeat.run_id], repeat.value) for repeat in row.repeats if repeat.run_id in order
        )
        axes.plot(
            *columns(points),
            color=colour,
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=5,
            linestyle="none",
        )
        if row.value is not None and points:
            ends = (points[0][0] - 0.3, points[-1][0] + 0.3)
            axes.plot(ends, (row.value, row.value), color=colour, linewidth=1.2)
            if row.interval:
                axes.fill_between(
                    ends, row.interval.low, row.interval.high, color=colour, alpha=0.15, linewidth=0
                )
    whole_numbers(axes)
    put_words(figure, f"{rows[0].title}, {rows[0].unit}", below="position in execution order")
    return inline(figure, f"{rows[0].title} of all repeats in execution order", prefix)


def _binary(size: float) -> str:
    power = min(3, max(0, int(size).bit_length() - 1) // 10)
    return f"{size / 1024**power:g}{('', ' Ki', ' Mi', ' Gi')[power]}"


def _place(row: Row, key: str) -> float:
    """Return the place of a row on the axis of a key whose values are numbers."""
    return key_number(row.key[key]) or 0.0

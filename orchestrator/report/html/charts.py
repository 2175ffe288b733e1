"""The charts of a bench, each as the text of an SVG element. They only draw; every number is
computed elsewhere.

A chart is as wide as a narrow screen, so that a page can place several side by side and none has to
shrink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.plural import plural
from orchestrator.report.cells import case
from orchestrator.report.html.axes import columns, new_axes, put_words, whole_numbers
from orchestrator.report.html.svg import COLOURS, inline
from orchestrator.report.references import ReferenceTable
from orchestrator.results import Interval, RunResult
from orchestrator.results.entries import Row
from orchestrator.results.run_history import RunHistory

PUBLISHED = ("two", "three", "four", "five")
"""Colours of published tables, in this order."""
_MARKERS = ("s", "^", "D", "v")
_LOGARITHMIC = 16
"""From this ratio of world sizes on, axes are logarithmic."""
_THIN = 24
_MOST_BOUND = 3
"""Error bounds of more than this times the largest skew are not drawn in full."""
_ROWS_HEIGHT = 400
_PHASES = (
    ("planned", "staged", "two"),
    ("staged", "armed", "three"),
    ("armed", "started", "wait"),
    ("over", "collected", "five"),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """A run and its position in the bench, counted from 1."""

    order: int
    result: RunResult
    history: RunHistory

    @property
    def speed(self) -> float | None:
        """Its speed in the unit of its row, None if the run has no number."""
        return self.result.speed if not self.result.error else None


def scaling(
    rows: Sequence[Row], published: Sequence[ReferenceTable], quantity: str, prefix: str
) -> str:
    """Draw ``value`` or ``speedup`` of a series over its ranks, with intervals, the ideal line and
    failures.
    """
    figure, axes = new_axes()
    speedup = quantity == "speedup"
    sizes = sorted({row.world_size for row in rows})
    if speed := ideal_of_one(rows, speedup):
        ends = [min(1, *sizes), max(sizes)]
        axes.plot(
            ends,
            [speed * size for size in ends],
            color=COLOURS["muted"],
            linestyle=(0, (4, 3)),
            linewidth=1.2,
        )
    for number, reference in enumerate(published):
        pairs = [
            (_ranks(pair.case), pair.published_speedup if speedup else pair.published)
            for pair in reference.pairs
        ]
        points = sorted((size, value) for size, value in pairs if value is not None)
        sizes = sorted({*sizes, *(size for size, _ in points)})
        colour, marker = COLOURS[PUBLISHED[number % 4]], _MARKERS[number % 4]
        axes.plot(
            *columns(points),
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1,
            linestyle=(0, (1, 1.5)),
        )
    points = [
        (row.world_size, value) for row in rows if (value := getattr(row, quantity)) is not None
    ]
    best: dict[int, float] = {}
    for size, value in points:
        best[size] = max(value, best.get(size, value))
    axes.plot(*columns(sorted(best.items())), color=COLOURS["one"], linewidth=1.8)
    axes.plot(*columns(points), color=COLOURS["one"], marker="o", markersize=6, linestyle="none")
    for row in rows:
        value = getattr(row, quantity)
        if value is not None and sum(size == row.world_size for size, _ in points) > 1:
            axes.annotate(
                case(row), (row.world_size, value), (7, -4), textcoords="offset points", fontsize=9
            )
        interval: Interval | None = row.speedup_interval if speedup else row.interval
        if interval:
            axes.plot(
                [row.world_size] * 2,
                [interval.low, interval.high],
                color=COLOURS["one"],
                marker="_",
                markersize=9,
                linewidth=1.4,
            )
    failed = [row.world_size for row in rows if row.value is None]
    _scale(axes, sizes)
    axes.set_ylim(bottom=None if len(axes.get_yticks()) and axes.get_yscale() == "log" else 0)
    axes.plot(failed, [0.03] * len(failed), transform=axes.get_xaxis_transform(), **_CROSS)
    put_words(
        figure,
        "speedup over the baseline" if speedup else f"throughput, {rows[0].unit}",
        below="GPUs" if rows[0].device == "cuda" else "ranks",
    )
    return inline(
        figure, f"{'Speedup' if speedup else 'Throughput'} over the number of ranks", prefix
    )


_CROSS: dict[str, Any] = {
    "color": COLOURS["bad"],
    "marker": "x",
    "markersize": 7,
    "markeredgewidth": 2,
    "linestyle": "none",
    "clip_on": False,
}


def ideal_of_one(rows: Sequence[Row], speedup: bool) -> float | None:
    """Return the ideal contribution of each rank in a series: its share of the baseline's speed.

    For speedups, it is a share of 1. None without a baseline.
    """
    base = next(
        (row for row in rows if row.speedup == 1 and row.speedup_interval is None and row.value),
        None,
    )
    if not base:
        return None
    return (1.0 if speedup else base.value or 0.0) / base.world_size


def repeats(turns: Sequence[Turn], row: Row, prefix: str) -> str:
    """Draw the speed of every run of a configuration in execution order, with the typical speed and
    its interval.
    """
    figure, axes = new_axes()
    if row.interval:
        axes.axhspan(row.interval.low, row.interval.high, color=COLOURS["band"], linewidth=0)
    if row.value:
        axes.axhline(row.value, color=COLOURS["one"], linewidth=1.2)
    points = [(turn.order, turn.speed) for turn in turns if turn.speed is not None]
    size = 6 if len(points) <= _THIN else 3.5
    axes.plot(*columns(points), color=COLOURS["one"], marker="o", markersize=size, linestyle="none")
    failed = [turn.order for turn in turns if turn.speed is None]
    axes.plot(failed, [0.03] * len(failed), transform=axes.get_xaxis_transform(), **_CROSS)
    if (
        points
        and max(value for _, value in points) - min(value for _, value in points)
        < 0.02 * points[0][1]
    ):
        middle = row.value or points[0][1]
        axes.set_ylim(0.98 * middle, 1.02 * middle)
    if not points:
        axes.set_yticks([])
    whole_numbers(axes)
    put_words(figure, f"repeats, {row.unit}", below="position in execution order")
    return inline(figure, f"Speed of {plural(len(turns), 'repeat')} in execution order", prefix)


def tempo(turns: Sequence[Turn], row: Row, prefix: str) -> str:
    """Draw the speed of each run of a configuration over time. Warm-up is shaded and left of 0."""
    figure, axes = new_axes()
    runs = [turn.result.pace for turn in turns if turn.result.tempo]
    begins = min((points[0][0] for points in runs), default=0.0)
    if begins < 0:
        axes.axvspan(begins, 0, color=COLOURS["grid"], linewidth=0)
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    stride = 1 if len(runs) <= _THIN else 2
    for points in runs:
        axes.plot(
            *columns(points[::stride]),
            color=COLOURS["one"],
            linewidth=1.1 if stride == 1 else 0.6,
            alpha=0.75,
        )
    axes.margins(x=0.01)
    axes.set_ylim(0, 1.08 * max((speed for points in runs for _, speed in points), default=1.0))
    put_words(
        figure, f"speed of each step, {row.unit}", below="seconds from the start of the window"
    )
    return inline(
        figure, f"Speed over time in {plural(len(runs), 'run')}, warm-up and window", prefix
    )


def skew(turns: Iterable[Turn], prefix: str) -> str:
    """Draw the start skew between the nodes of each run in ms, with its error bound.

    The axis belongs to the skews: a bound that is many times as large leaves the chart and is
    written below it.
    """
    figure, axes = new_axes()
    skews = [
        (turn.order, 1e3 * turn.history.skew_s, 1e3 * (turn.history.bound_s or 0.0))
        for turn in turns
        if turn.history.skew_s is not None
    ]
    bounds = [
        point
        for x, y, bound in skews
        for point in ((x, max(0.0, y - bound)), (x, y + bound), (x, float("nan")))
    ]
    axes.plot(*columns(bounds), color=COLOURS["one"], linewidth=1, alpha=0.5)
    axes.plot(
        *columns((x, y) for x, y, _ in skews),
        color=COLOURS["one"],
        marker="o",
        markersize=4,
        linestyle="none",
    )
    whole_numbers(axes)
    largest = max(y for _, y, _ in skews)
    bound = max(bound for *_, bound in skews)
    is_cut = largest > 0 and bound > _MOST_BOUND * largest
    axes.set_ylim(0, 2 * largest if is_cut else None)
    outside = f"; error bound up to {bound:.3g} ms" if is_cut else ""
    put_words(figure, "start skew between nodes, ms", below=f"position in execution order{outside}")
    return inline(figure, "Start skew of each run with its error bound", prefix)


def timeline(turns: Sequence[Turn], prefix: str) -> str:
    """Draw the phases of every run of a configuration, one row per run, with a bar per node: to its
    first step and its end.
    """
    nodes = max((len(turn.history.nodes) for turn in turns), default=1)
    row = min(11.0 + 2.5 * min(nodes, 8), _ROWS_HEIGHT / len(turns))
    figure, axes = new_axes(height=round(len(turns) * row) + 66)
    failed = [(place, turn) for place, turn in enumerate(turns) if turn.speed is None]
    bars: dict[str, list[tuple[float, float, float]]] = {}
    for place, turn in enumerate(turns):
        phases = turn.history.phases
        for first, last, name in _PHASES:
            if first in phases and last in phases:
                bars.setdefault(name, []).append((phases[first], phases[last], place))
        _nodes(turn.history, place, bars)
    _draw_bars(axes, bars, row, nodes)
    ends = {}
    for place, turn in failed:
        ends[place] = max((node.began_s + node.took_s for node in turn.history.nodes), default=0.0)
    axes.plot(list(ends.values()), list(ends), **_CROSS)
    axes.set_ylim(len(turns) - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda place, _: _order(turns, place)))
    axes.grid(False, axis="y")
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    put_words(figure, "timeline of each run, by position", below="seconds from the start signal")
    return inline(figure, f"Phases of {plural(len(turns), 'run')} and of their nodes", prefix)


def _order(turns: Sequence[Turn], place: float) -> str:
    if place not in range(len(turns)):
        return ""
    return str(turns[int(place)].order)


def _nodes(run: RunHistory, place: int, bars: dict[str, list[tuple[float, float, float]]]) -> None:
    """Add the bars of a run's nodes, one above the other within its row: until the first step, and
    from there to the end.
    """
    for index, node in enumerate(run.nodes):
        at = place + 0.72 * ((index + 0.5) / len(run.nodes) - 0.5)
        first = max(node.began_s, run.first_step_s or 0.0)
        bars.setdefault("node wait", []).append((node.began_s, first, at))
        bars.setdefault("node one", []).append((first, node.began_s + node.took_s, at))


def _draw_bars(
    axes: Axes, bars: Mapping[str, Sequence[tuple[float, float, float]]], row: float, nodes: int
) -> None:
    """Draw all bars of a kind as one broken line, so that hundreds of bars are one element of the
    page.
    """
    for name, spans in bars.items():
        kind = name.split()
        broken = [
            point
            for begin, end, at in spans
            for point in ((begin, at), (end, at), (float("nan"), at))
        ]
        thick = max(0.72 * row / nodes - 0.8, 0.8) if len(kind) > 1 else max(0.6 * row, 0.8)
        axes.plot(*columns(broken), color=COLOURS[kind[-1]], linewidth=thick, solid_capstyle="butt")


def _scale(axes: Axes, sizes: Sequence[int]) -> None:
    """Mark the measured sizes. If they are far apart, both axes are logarithmic, so that the ideal
    line is straight.
    """
    if sizes[-1] >= _LOGARITHMIC * sizes[0]:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.minorticks_off()


def _ranks(case: str) -> int:
    nodes, gpus = (int(word) for word in case.removesuffix("g").split("n"))
    return nodes * gpus

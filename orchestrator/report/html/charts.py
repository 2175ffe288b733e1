"""The pictures of a bench, each as text of an SVG element. They only draw; every number comes from below.

A picture is as wide as a narrow screen, so that a page may set several side by side and none must shrink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.analysis.explain.prediction import Explanation
from orchestrator.analysis.published.reference import Beside
from orchestrator.report.cells import case
from orchestrator.report.html.svg import COLOURS, inline
from orchestrator.results.account import RunAccount
from orchestrator.results.grids import Grid
from orchestrator.results.numbers.intervals import Interval
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Row

__all__ = ["PARTS", "PUBLISHED", "Turn", "bandwidth", "gap", "tempo", "ranks", "repeats", "scaling", "skew", "timeline"]

WIDTH, HEIGHT = 360, 236
PUBLISHED = ("two", "three", "four", "five")
"""Colours of published tables, in turn."""
PARTS = {"communication": "one", "input": "three", "straggler": "four", "contention": "two", "unexplained": "wait"}
"""Colours of the parts of a gap."""
_MARKERS = ("s", "^", "D", "v")
_LOGARITHMIC = 16
"""World sizes further apart than this share a chart better on logarithmic axes."""
_THIN = 24
_ROWS_HEIGHT = 400
_PHASES = (
    ("planned", "staged", "two"),
    ("staged", "armed", "three"),
    ("armed", "started", "wait"),
    ("over", "collected", "five"),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """A run, and the how manieth of the bench it was."""

    order: int
    result: RunResult
    account: RunAccount

    @property
    def speed(self) -> float | None:
        """Samples/s, None for a run without a number."""
        return self.result.throughput.samples_per_s if self.result.throughput and not self.result.error else None


def scaling(rows: Sequence[Row], published: Sequence[Beside], quantity: str, prefix: str) -> str:
    """Draw ``median_speed`` or ``speedup`` of a series against its ranks, with intervals, the ideal line and failures."""
    figure, axes = _axes()
    speedup = quantity == "speedup"
    sizes = sorted({row.world_size for row in rows})
    if speed := ideal_of_one(rows, speedup):
        ends = [min(1, *sizes), max(sizes)]
        axes.plot(ends, [speed * size for size in ends], color=COLOURS["muted"], linestyle=(0, (4, 3)), linewidth=1.2)
    for number, beside in enumerate(published):
        pairs = [(_ranks(pair.case), pair.published_speedup if speedup else pair.published) for pair in beside.pairs]
        points = sorted((size, value) for size, value in pairs if value is not None)
        sizes = sorted({*sizes, *(size for size, _ in points)})
        colour, marker = COLOURS[PUBLISHED[number % 4]], _MARKERS[number % 4]
        axes.plot(*_columns(points), color=colour, marker=marker, markersize=5, linewidth=1, linestyle=(0, (1, 1.5)))
    points = [(row.world_size, value) for row in rows if (value := getattr(row, quantity)) is not None]
    best = sorted({size: max(value for other, value in points if other == size) for size, _ in points}.items())
    axes.plot(*_columns(best), color=COLOURS["one"], linewidth=1.8)
    axes.plot(*_columns(points), color=COLOURS["one"], marker="o", markersize=6, linestyle="none")
    for row in rows:
        value = getattr(row, quantity)
        if value is not None and sum(size == row.world_size for size, _ in points) > 1:
            axes.annotate(case(row), (row.world_size, value), (7, -4), textcoords="offset points", fontsize=9)
        found: Interval | None = row.speedup_interval if speedup else row.speed_interval
        if found:
            axes.plot(
                [row.world_size] * 2, [found.low, found.high], color=COLOURS["one"], marker="_", markersize=9, linewidth=1.4
            )
    failed = [row.world_size for row in rows if row.median_speed is None]
    _scale(axes, sizes)
    axes.set_ylim(bottom=None if len(axes.get_yticks()) and axes.get_yscale() == "log" else 0)
    axes.plot(failed, [0.03] * len(failed), transform=axes.get_xaxis_transform(), **_CROSS)
    _words(
        figure,
        "speedup over the baseline" if speedup else "throughput, samples/s",
        below="GPUs" if rows[0].device == "cuda" else "ranks",
    )
    return inline(figure, f"{'Speedup' if speedup else 'Throughput'} against the number of ranks", prefix)


_CROSS: dict[str, Any] = {
    "color": COLOURS["bad"],
    "marker": "x",
    "markersize": 7,
    "markeredgewidth": 2,
    "linestyle": "none",
    "clip_on": False,
}


def ideal_of_one(rows: Sequence[Row], speedup: bool) -> float | None:
    """Return what each rank would add if the series scaled without loss: the baseline's speed, 1 of a speedup, else None."""
    base = next((row.median_speed for row in rows if row.world_size == 1 and row.speedup == 1), None)
    return base and (1.0 if speedup else base)


def repeats(turns: Sequence[Turn], row: Row, prefix: str) -> str:
    """Draw the speed of every run of a cell in execution order, its median and its interval."""
    figure, axes = _axes()
    if row.speed_interval:
        axes.axhspan(row.speed_interval.low, row.speed_interval.high, color=COLOURS["band"], linewidth=0)
    if row.median_speed:
        axes.axhline(row.median_speed, color=COLOURS["one"], linewidth=1.2)
    points = [(turn.order, turn.speed) for turn in turns if turn.speed is not None]
    size = 6 if len(points) <= _THIN else 3.5
    axes.plot(*_columns(points), color=COLOURS["one"], marker="o", markersize=size, linestyle="none")
    failed = [turn.order for turn in turns if turn.speed is None]
    axes.plot(failed, [0.03] * len(failed), transform=axes.get_xaxis_transform(), **_CROSS)
    if points and max(value for _, value in points) - min(value for _, value in points) < 0.02 * points[0][1]:
        middle = row.median_speed or points[0][1]
        axes.set_ylim(0.98 * middle, 1.02 * middle)
    if not points:
        axes.set_yticks([])
    _whole(axes)
    _words(figure, "repeats, samples/s", below="place in the order of execution")
    return inline(figure, f"Speed of each of {len(turns)} repeats in the order of execution", prefix)


def tempo(turns: Sequence[Turn], prefix: str) -> str:
    """Draw how fast each run of a cell was from step to step; warm-up is shaded and left of 0."""
    figure, axes = _axes()
    runs = [turn.result.tempo.points for turn in turns if turn.result.tempo]
    begins = min((points[0][0] for points in runs), default=0.0)
    if begins < 0:
        axes.axvspan(begins, 0, color=COLOURS["grid"], linewidth=0)
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    stride = 1 if len(runs) <= _THIN else 2
    for points in runs:
        axes.plot(*_columns(points[::stride]), color=COLOURS["one"], linewidth=1.1 if stride == 1 else 0.6, alpha=0.75)
    axes.margins(x=0.01)
    axes.set_ylim(0, 1.08 * max((speed for points in runs for _, speed in points), default=1.0))
    _words(figure, "speed from step to step, samples/s", below="seconds from the start of the window")
    return inline(figure, f"Samples per second over time in {len(runs)} runs, warm-up and window", prefix)


def ranks(turns: Sequence[Turn], prefix: str) -> str:
    """Draw the step times of every rank that logs them: of the middle repeat median, and tenth to ninetieth percentile."""
    figure, axes = _axes()
    logs = list(dict.fromkeys(name for turn in turns for name in turn.result.by_rank))
    for place, name in enumerate(logs):
        found = [turn.result.by_rank[name] for turn in turns if name in turn.result.by_rank]
        low, middle, high = (1e3 * sorted(values)[len(values) // 2] for values in zip(*found, strict=True))
        axes.plot([place, place], [low, high], color=COLOURS["one"], linewidth=1.2, alpha=0.6)
        axes.plot([place], [middle], color=COLOURS["one"], marker="o", markersize=5 if len(logs) <= _THIN else 2.5)
    shown = logs if len(logs) <= 8 else []
    axes.set_xticks(range(len(shown)), [name.replace("/", "\n").removesuffix(".out") for name in shown])
    axes.margins(x=0.08)
    _words(figure, "time of a step by rank, ms", below="" if shown else f"{len(logs)} logs, in order of node and rank")
    return inline(figure, f"Step time of {len(logs)} ranks", prefix)


def bandwidth(grid: Grid, prefix: str) -> str:
    """Draw the bus bandwidth of a collective over its size, a line for each form that was measured, with intervals."""
    figure, axes = _axes()
    for colour, form in (("two", "out"), ("one", "in")):
        if f"busbw {form}" not in grid.columns:
            continue
        low, high, middle = (grid.columns.index(f"busbw {name}{form}") for name in ("low ", "high ", ""))
        found = [[float(row[place] or 0.0) for place in (0, low, middle, high)] for row in grid.rows if row[middle] is not None]
        for size, least, _, most in found:
            axes.plot([size] * 2, [least or most, most], color=COLOURS[colour], linewidth=1.2, alpha=0.6)
        points = [(size, value) for size, _, value, _ in found]
        axes.plot(*_columns(points), color=COLOURS[colour], marker="o", markersize=4, linewidth=1.4)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _binary(size)))
    axes.minorticks_off()
    axes.set_ylim(0, None)
    _words(figure, "bus bandwidth, GB/s", below="bytes")
    return inline(figure, "Bus bandwidth against the size of the collective", prefix)


def _binary(size: float) -> str:
    power = min(3, max(0, int(size).bit_length() - 1) // 10)
    return f"{size / 1024**power:g}{('', ' Ki', ' Mi', ' Gi')[power]}"


def skew(turns: Iterable[Turn], prefix: str) -> str:
    """Draw how far apart the nodes of each run started, in milliseconds, with the error bound of that."""
    figure, axes = _axes()
    known = [
        (turn.order, 1e3 * turn.account.skew_s, 1e3 * (turn.account.bound_s or 0.0))
        for turn in turns
        if turn.account.skew_s is not None
    ]
    bounds = [point for x, y, bound in known for point in ((x, max(0.0, y - bound)), (x, y + bound), (x, float("nan")))]
    axes.plot(*_columns(bounds), color=COLOURS["one"], linewidth=1, alpha=0.5)
    axes.plot(*_columns((x, y) for x, y, _ in known), color=COLOURS["one"], marker="o", markersize=4, linestyle="none")
    _whole(axes)
    axes.set_ylim(bottom=0)
    _words(figure, "start skew between nodes, ms", below="place in the order of execution")
    return inline(figure, "Start skew of each run with its error bound", prefix)


def timeline(turns: Sequence[Turn], prefix: str) -> str:
    """Draw the phases of every run of a cell, a row a run, and in it a bar a node from its start to its first step and end."""
    most = max((len(turn.account.nodes) for turn in turns), default=1)
    row = min(11.0 + 2.5 * min(most, 8), _ROWS_HEIGHT / len(turns))
    figure, axes = _axes(height=round(len(turns) * row) + 66)
    failed = [(place, turn) for place, turn in enumerate(turns) if turn.speed is None]
    bars: dict[str, list[tuple[float, float, float]]] = {}
    for place, turn in enumerate(turns):
        phases = turn.account.phases
        for first, last, name in _PHASES:
            if first in phases and last in phases:
                bars.setdefault(name, []).append((phases[first], phases[last], place))
        _nodes(turn.account, place, bars)
    _draw_bars(axes, bars, row, most)
    ends = {place: max((node.began_s + node.took_s for node in turn.account.nodes), default=0.0) for place, turn in failed}
    axes.plot(list(ends.values()), list(ends), **_CROSS)
    axes.set_ylim(len(turns) - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda place, _: _order(turns, place)))
    axes.grid(False, axis="y")
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    _words(figure, "timeline of each run, by its place", below="seconds from go")
    return inline(figure, f"Phases of {len(turns)} runs, and of each node in them", prefix)


def gap(explanations: Sequence[Explanation], prefix: str) -> str:
    """Draw what a step of each shape takes beyond the ideal, part after part; parts below zero to the left."""
    figure, axes = _axes(height=24 * len(explanations) + 66)
    for place, each in enumerate(explanations):
        ends = {True: 0.0, False: 0.0}
        for part in each.parts:
            begin = ends[(part.seconds or 0.0) > 0]
            end = ends[(part.seconds or 0.0) > 0] = begin + 1e3 * (part.seconds or 0.0)
            colour = COLOURS[PARTS[part.name]]
            axes.plot([begin, end], [place, place], color=colour, linewidth=14, solid_capstyle="butt")
        axes.plot([1e3 * (each.step_s - each.ideal_s)], [place], color=COLOURS["ink"], marker="|", markersize=16)
    axes.set_yticks(range(len(explanations)), [each.case for each in explanations])
    axes.set_ylim(len(explanations) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    _words(figure, "beyond the ideal step", below="ms of a step")
    return inline(figure, f"What a step takes beyond the ideal in {len(explanations)} shapes, by part", prefix)


def _order(turns: Sequence[Turn], place: float) -> str:
    return str(turns[int(place)].order) if place in range(len(turns)) else ""


def _nodes(run: RunAccount, place: int, bars: dict[str, list[tuple[float, float, float]]]) -> None:
    """Add the bars of a run's nodes, one above the other within its row: until the first step, and from it to the end."""
    for index, node in enumerate(run.nodes):
        at = place + 0.72 * ((index + 0.5) / len(run.nodes) - 0.5)
        first = max(node.began_s, run.first_step_s or 0.0)
        bars.setdefault("node wait", []).append((node.began_s, first, at))
        bars.setdefault("node one", []).append((first, node.began_s + node.took_s, at))


def _draw_bars(axes: Axes, bars: Mapping[str, Sequence[tuple[float, float, float]]], row: float, nodes: int) -> None:
    """Draw all bars of a kind as one broken line: hundreds of them are one element of the page."""
    for name, spans in bars.items():
        kind = name.split()
        broken = [point for begin, end, at in spans for point in ((begin, at), (end, at), (float("nan"), at))]
        thick = max(0.72 * row / nodes - 0.8, 0.8) if len(kind) > 1 else max(0.6 * row, 0.8)
        axes.plot(*_columns(broken), color=COLOURS[kind[-1]], linewidth=thick, solid_capstyle="butt")


def _axes(height: int = HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor="none")
    box = (58 / WIDTH, 40 / height, (WIDTH - 58 - 10) / WIDTH, (height - 40 - 26) / height)
    axes = figure.add_axes(box, facecolor="none")
    axes.tick_params(length=3, width=0.8)
    axes.set_title("", y=1)  # of a given place, it is not laid out by the ticks either
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    return figure, axes


def _words(figure: Figure, title: str, below: str) -> None:
    """Say what is shown above a chart, and of what below it. Labels of an axis are laid out by its ticks, which is slow."""
    height = 72 * figure.get_figheight()
    figure.text(0, 1 - 5 / height, title, va="top", fontsize=12)
    figure.text((58 + WIDTH - 10) / 2 / WIDTH, 5 / height, below, ha="center", color=COLOURS["muted"])


def _scale(axes: Axes, sizes: Sequence[int]) -> None:
    """Mark the sizes that were measured; where they are far apart, both axes are logarithmic, so the ideal line is straight."""
    if sizes[-1] >= _LOGARITHMIC * sizes[0]:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.minorticks_off()


def _whole(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))


def _columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    pairs = list(points)
    return [x for x, _ in pairs], [y for _, y in pairs]


def _ranks(case: str) -> int:
    nodes, gpus = (int(word) for word in case.removesuffix("g").split("n"))
    return nodes * gpus

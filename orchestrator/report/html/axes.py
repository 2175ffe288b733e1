"""Axes that all charts of a page share: size, ticks, and places of labels."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.report.html.svg import COLOURS

WIDTH, HEIGHT = 360, 236


def new_axes(height: int = HEIGHT) -> tuple[Figure, Axes]:
    """Return a figure of the width of every chart, with its axes."""
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor="none")
    return figure, _axes(figure, 40, height - 40 - 26)


def new_panels(count: int, height: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with several axes over one x axis, each of this height with its title, the
    first one at the top.
    """
    whole = 40 + count * height
    figure = Figure(figsize=(WIDTH / 72, whole / 72), dpi=72, facecolor="none")
    panels = [
        _axes(figure, 40 + (count - 1 - place) * height, height - 30) for place in range(count)
    ]
    for panel in panels:
        panel.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
    for panel in panels[:-1]:
        panel.tick_params(axis="x", labelbottom=False)
    return figure, panels


def _axes(figure: Figure, bottom: float, height: float) -> Axes:
    whole = 72 * figure.get_figheight()
    axes = figure.add_axes(
        (58 / WIDTH, bottom / whole, (WIDTH - 58 - 10) / WIDTH, height / whole), facecolor="none"
    )
    axes.tick_params(length=3, width=0.8)
    axes.set_title(
        "", y=1
    )  # with a fixed position matplotlib need not lay it out around the ticks, which is slow
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    return axes


def put_words(figure: Figure, title: str, below: str) -> None:
    """Write the title above a chart and the x label below it. Axis labels would be laid out around
    the ticks, which is slow.
    """
    height = 72 * figure.get_figheight()
    figure.text(0, 1 - 5 / height, title, va="top", fontsize=12)
    figure.text(
        (58 + WIDTH - 10) / 2 / WIDTH, 5 / height, below, ha="center", color=COLOURS["muted"]
    )


def whole_numbers(axes: Axes) -> None:
    """Mark whole numbers only on the x axis."""
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))


def columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return the x and the y values of points."""
    pairs = list(points)
    return [x for x, _ in pairs], [y for _, y in pairs]

"""Charts of the use of nodes and GPUs during a run's steps, stacked over one axis of time.

They only draw; every number is computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from orchestrator.plural import plural
from orchestrator.report.html.axes import WIDTH, columns, new_panels, put_words
from orchestrator.report.html.charts import Turn
from orchestrator.report.html.svg import COLOURS, inline
from orchestrator.report.text import one_line
from orchestrator.results.telemetry.utilization import CLOCK, HOTTEST

_PANEL = 96
_OF_NODES = ("one", "two", "three", "four")
"""Colours of nodes; of more than these, all have the first."""


def use(turns: Sequence[Turn], unit: str, prefix: str) -> str:
    """Draw what was sampled of each node over time, all repeats on top of each other, below the
    speed of their steps in
    ``unit``."""
    sampled = [turn.result for turn in turns if turn.result.use]
    hosts = list(dict.fromkeys(node.host for run in sampled if run.use for node in run.use.nodes))
    colours = {
        host: _OF_NODES[place] if len(hosts) <= len(_OF_NODES) else _OF_NODES[0]
        for place, host in enumerate(hosts)
    }
    lines: dict[str, list[tuple[str, Sequence[tuple[float, float]]]]] = {
        f"speed of each step, {unit}": [("ink", run.pace) for run in sampled if run.tempo]
    }
    for run in sampled:
        for node in run.use.nodes if run.use else ():
            for line in node.lines:
                lines.setdefault(line.quantity, []).append((colours[node.host], line.points))
    shown = {quantity: of_quantity for quantity, of_quantity in lines.items() if of_quantity}
    begin = min(
        (points[0][0] for of_quantity in shown.values() for _, points in of_quantity), default=0.0
    )
    end = max(
        (points[-1][0] for of_quantity in shown.values() for _, points in of_quantity), default=1.0
    )
    figure, panels = new_panels(len(shown), _PANEL)
    thin = 1.1 if len(sampled) * len(hosts) <= 24 else 0.6
    for panel, (quantity, of_quantity) in zip(panels, shown.items(), strict=True):
        if begin < 0:
            panel.axvspan(begin, 0, color=COLOURS["grid"], linewidth=0)
        panel.axvline(0, color=COLOURS["muted"], linewidth=0.8)
        for colour, points in of_quantity:
            panel.plot(*columns(points), color=COLOURS[colour], linewidth=thin, alpha=0.8)
        panel.set_xlim(begin - 0.01 * (end - begin), end + 0.01 * (end - begin))
        panel.set_ylim(*_limits(quantity, [points for _, points in of_quantity]))
        box = panel.get_position()
        figure.text(
            0, box.y1 + 4 / (72 * figure.get_figheight()), quantity, va="bottom", fontsize=11
        )
    put_words(figure, "", below="seconds from the start of the window")
    _name_nodes(figure, hosts, colours)
    where = f"{plural(len(hosts), 'node')} over time in {plural(len(sampled), 'run')}"
    return inline(figure, f"Use of {where}: {', '.join(shown)}", prefix)


def _limits(quantity: str, lines: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Return the ends of the y axis: from 0, except for quantities far above it that change little."""
    all_points = [point for points in lines for point in points]
    values = [value for at, value in all_points if at >= 0] or [value for _, value in all_points]
    low, high = min(values), max(values)
    if quantity in (CLOCK, HOTTEST) and high > low > 0.5 * high:
        return low - 0.15 * (high - low), high + 0.15 * (high - low)
    return 0, 1.1 * max(value for _, value in all_points) or 1.0


def _name_nodes(figure: Figure, hosts: Sequence[str], colours: dict[str, str]) -> None:
    """Write the names of the nodes in their colours into the top right corner, if each has a colour
    of its own.
    """
    if not 1 < len(hosts) <= len(_OF_NODES):
        return
    height, right = 72 * figure.get_figheight(), WIDTH - 10.0
    for host in reversed(hosts):
        name = one_line(host)[:12]
        figure.text(
            right / WIDTH,
            1 - 5 / height,
            name,
            va="top",
            ha="right",
            fontsize=10,
            color=COLOURS[colours[host]],
        )
        right -= 7 * len(name) + 8

"""Speeds over time as a chart: a line per spec, a point per bench with its 95 % interval."""

from __future__ import annotations

import io
from collections.abc import Sequence

from orchestrator.analysis.past_cells import PastCell
from orchestrator.report.text import one_line

_ONE_SCALE = 10.0


def svg(cells: Sequence[PastCell]) -> bytes:
    """Return one SVG document: metrics over the time when benches were made, in UTC; equal cells
    give equal bytes.

    Lines whose speeds differ by more than a factor of `_ONE_SCALE` have axes of their own, one
    below the other.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text stays text, so that a browser can search it; ids depend only on the chart.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "orch", "text.parse_math": False}):
        panels = _panels(_lines(cells))
        figure = Figure(figsize=(10, 2 + 4 * len(panels)), layout="constrained")
        all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        lines = [
            (axes, line) for axes, panel in zip(all_axes, panels, strict=True) for line in panel
        ]
        for number, (axes, line) in enumerate(lines):
            times = [cell.days for cell, _ in line]
            speeds = [speed for _, speed in line]
            low = [speed - cell.interval.low if cell.interval else 0.0 for cell, speed in line]
            high = [cell.interval.high - speed if cell.interval else 0.0 for cell, speed in line]
            name = one_line(f"{line[0][0].shape} {line[0][0].series}")
            ends = ([max(0.0, value) for value in low], [max(0.0, value) for value in high])
            marker = "os^vDP*X"[number % 8]  # printed charts may have no colours
            axes.errorbar(
                times,
                speeds,
                yerr=ends,
                label=name,
                marker=marker,
                markersize=4,
                linewidth=1,
                capsize=3,
            )
        for axes, panel in zip(all_axes, panels, strict=True):
            axes.xaxis_date()
            axes.set_ylim(bottom=0)
            axes.set_ylabel(f"{_unit(panel)}, with 95 % interval")
            axes.grid(alpha=0.3)
        all_axes[-1].set_xlabel("bench made, UTC")
        figure.autofmt_xdate()
        if lines:
            figure.legend(loc="outside lower center", fontsize="small")
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _panels(
    lines: Sequence[list[tuple[PastCell, float]]],
) -> list[list[list[tuple[PastCell, float]]]]:
    """Return the lines grouped by unit and scale, the fastest group first; a single empty group
    without lines.
    """
    panels: list[list[list[tuple[PastCell, float]]]] = []
    for line in sorted(lines, key=lambda line: (_unit([line]), _highest(line)), reverse=True):
        if (
            panels
            and _unit(panels[-1]) == _unit([line])
            and _highest(panels[-1][0]) <= _ONE_SCALE * _highest(line)
        ):
            panels[-1].append(line)
        else:
            panels.append([line])
    return panels or [[]]


def _unit(panel: Sequence[Sequence[tuple[PastCell, float]]]) -> str:
    return panel[0][0][0].unit if panel else "samples/s"


def _highest(line: Sequence[tuple[PastCell, float]]) -> float:
    return max(speed for _, speed in line)


def _lines(cells: Sequence[PastCell]) -> list[list[tuple[PastCell, float]]]:
    """Return the cells that have a number and a time, grouped by spec, each group oldest first."""
    by_spec: dict[str, list[tuple[PastCell, float]]] = {}
    for cell in cells:
        if cell.value is not None and cell.days is not None:
            by_spec.setdefault(cell.spec, []).append((cell, cell.value))
    return list(by_spec.values())

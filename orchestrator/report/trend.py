"""Speeds over time as a chart: a line per spec, a point per bench with its 95 % interval."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime, timezone

from orchestrator.analysis.history import PastCell
from orchestrator.report.text import one_line

__all__ = ["svg"]

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def svg(cells: Sequence[PastCell]) -> bytes:
    """Return one SVG document: samples/s over the time when benches were made, in UTC; equal cells give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text stays text, so that a browser can search it; ids depend only on the chart.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "orch", "text.parse_math": False}):
        figure = Figure(figsize=(10, 6), layout="constrained")
        axes = figure.subplots()
        for number, line in enumerate(_lines(cells)):
            times = [_days(cell.created) for cell, _ in line]
            speeds = [speed for _, speed in line]
            low = [speed - cell.interval.low if cell.interval else 0.0 for cell, speed in line]
            high = [cell.interval.high - speed if cell.interval else 0.0 for cell, speed in line]
            name = one_line(f"{line[0][0].shape} {line[0][0].series}")
            ends = ([max(0.0, value) for value in low], [max(0.0, value) for value in high])
            marker = "os^vDP*X"[number % 8]  # printed charts may have no colours
            axes.errorbar(times, speeds, yerr=ends, label=name, marker=marker, markersize=4, linewidth=1, capsize=3)
        axes.xaxis_date()
        axes.set_ylim(bottom=0)
        axes.set_ylabel("samples/s, median and 95 % interval")
        axes.set_xlabel("bench made, UTC")
        axes.grid(alpha=0.3)
        figure.autofmt_xdate()
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", fontsize="small")
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _lines(cells: Sequence[PastCell]) -> list[list[tuple[PastCell, float]]]:
    """Return the cells that have a number and a time, grouped by spec, each group oldest first."""
    by_spec: dict[str, list[tuple[PastCell, float]]] = {}
    for cell in cells:
        if cell.median_speed is not None and _is_time(cell.created):
            by_spec.setdefault(cell.spec, []).append((cell, cell.median_speed))
    return list(by_spec.values())


def _days(text: str) -> float:
    """Return a time as matplotlib counts it: days since 1970."""
    return datetime.strptime(text, _FORMAT).replace(tzinfo=timezone.utc).timestamp() / 86400


def _is_time(text: str) -> bool:
    try:
        _days(text)
    except ValueError:
        return False
    return True

"""The gap of each shape to its ideal step, as a chart of the page of a bench."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.features.explain.prediction import Explanation
from orchestrator.report.html.axes import new_axes, put_words
from orchestrator.report.html.svg import COLOURS, inline

PARTS = {
    "communication": "one",
    "input": "three",
    "straggler": "four",
    "contention": "two",
    "unexplained": "wait",
}
"""Colours of the parts of a gap."""


def draw_gap(explanations: Sequence[Explanation], prefix: str) -> str:
    """Draw the time that a step of each shape takes beyond the ideal, part after part; negative
    parts extend to the left.
    """
    figure, axes = new_axes(height=24 * len(explanations) + 66)
    for place, explanation in enumerate(explanations):
        ends = {True: 0.0, False: 0.0}
        for part in explanation.parts:
            begin = ends[(part.seconds or 0.0) > 0]
            end = ends[(part.seconds or 0.0) > 0] = begin + 1e3 * (part.seconds or 0.0)
            colour = COLOURS[PARTS[part.name]]
            axes.plot(
                [begin, end], [place, place], color=colour, linewidth=14, solid_capstyle="butt"
            )
        axes.plot(
            [1e3 * (explanation.step_s - explanation.ideal_s)],
            [place],
            color=COLOURS["ink"],
            marker="|",
            markersize=16,
        )
    axes.set_yticks(range(len(explanations)), [explanation.case for explanation in explanations])
    axes.set_ylim(len(explanations) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    put_words(figure, "beyond the ideal step", below="ms of a step")
    return inline(
        figure, f"Step time beyond the ideal of {len(explanations)} shapes, by part", prefix
    )

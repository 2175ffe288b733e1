"""The explanation of a bench as a section of its summary and its page, if it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.features.explain.bench import explain_bench
from orchestrator.report.sections import Asked, Page, PredictedStep, Section

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.features.explain.prediction import Explanation

ORDER = 20
_TERMS = """<dt>predicted</dt><dd>from the step of 1n1g, measured all-reduces, gradient sizes, and the time of steps without \
communication on this shape; never from the measured speed of the shape itself.</dd>
"""


def section_of(asked: Asked) -> ExplainSection | None:
    """Return the explanation of a bench; None unless it is asked for."""
    from orchestrator.results.run_history import history_of

    if "explain" not in asked.options:
        return None
    history = history_of(asked.bench, asked.results)
    explanations = explain_bench(asked.bench, asked.summary, asked.results, history)
    return ExplainSection(
        explanations, tuple(dict.fromkeys(row.series for row in asked.summary.speeds()))
    )


@dataclass(frozen=True, slots=True)
class ExplainSection(Section):
    """Explanations of the shapes of a bench. ``series`` are all that have speeds, some of which may
    have no explanation.
    """

    explanations: tuple[Explanation, ...]
    series: tuple[str, ...]

    @property
    def predicted(self) -> Mapping[tuple[str, str], PredictedStep]:
        """The predicted steps, by series and shape."""
        return {
            (own.series, own.case): PredictedStep(own.step_s, _communication(own))
            for own in self.explanations
        }

    def documents(self) -> Mapping[str, Any]:
        """Return the key ``explained``."""
        from orchestrator.features.explain.report import documents

        return {"explained": documents(self.explanations)}

    def render(self, console: Console) -> None:
        """Print a table for each series."""
        from orchestrator.features.explain.report import render

        render(self.explanations, console, self.series)

    def page(self) -> Page:
        """Return a table and a chart for each series."""
        from orchestrator.features.explain.charts import PARTS, draw_gap
        from orchestrator.features.explain.report import by_series, tables
        from orchestrator.report.html.svg import drawing
        from orchestrator.report.html.template import fill_section

        with drawing():
            groups = by_series(self.explanations).values()
            drawn = [draw_gap(rows, f"e{number}-") for number, rows in enumerate(groups, start=1)]
        explained = list(zip(tables(self.explanations), drawn, strict=True))
        return Page(
            last=fill_section(__package__, explained=explained, parts=PARTS),
            terms=_TERMS if explained else "",
        )


def _communication(explanation: Explanation) -> float | None:
    """Return the share of a step that communication adds to it; None if it is not known."""
    seconds = next(part.seconds for part in explanation.parts if part.name == "communication")
    if seconds is None:
        return None
    return seconds / explanation.step_s

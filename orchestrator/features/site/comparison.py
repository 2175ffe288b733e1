"""A bench beside earlier ones that measured the same, as a page: `orch compare` with the one
before, numbers of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.compare.cells import CellPair
from orchestrator.features.site.catalogue import BenchEntry
from orchestrator.features.site.template import fill
from orchestrator.report.compare import COLUMNS, change, notes, row
from orchestrator.report.html.navigation import Link


@dataclass(frozen=True, slots=True)
class Beside:
    """An earlier bench, and its configurations beside the later one's."""

    entry: BenchEntry
    pairs: tuple[CellPair, ...]


def comparison_page(
    entry: BenchEntry,
    detail: Comparison | None,
    why: str,
    beside: Sequence[Beside],
    links: Sequence[Link],
) -> str:
    """Return the page of a bench beside earlier ones, the newest first; ``detail`` is the
    comparison with the first of them, None if there is none, and ``why``."""
    by_case = {(pair.case, pair.metric): pair for pair in (detail.pairs if detail else ())}
    suspects = [
        (by_case[cell.case, cell.metric], cell) for cell in (detail.suspects if detail else ())
    ]
    return fill(
        "comparison.html.j2",
        here="",
        links=links,
        entry=entry,
        detail=detail,
        why=why,
        beside=beside,
        differing=_differing,
        columns=COLUMNS,
        row=row,
        change=change,
        notes=notes(detail) if detail else [],
        suspects=suspects,
    )


def _differing(beside: Beside) -> str:
    """Return the fields in which configurations differ from an earlier bench's; empty if they are
    equal.
    """
    return ", ".join(
        dict.fromkeys(
            name.removeprefix("options.") for pair in beside.pairs for name in pair.differing
        )
    )

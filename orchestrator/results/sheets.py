"""Tables of what is measured beside training: each kind of measurement fills them its own way, all outputs draw them alike.

A sheet is one cell, all repeats of one spec. What it shows is computed from the readings of its good runs by the function that
stands for its kind in `_CONTENT`; whatever qualifies it comes from `orchestrator.results.summary`, as for training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from orchestrator.results.grids import Content, Grid, Repeats
from orchestrator.results.links import collectives, pair_tables

if TYPE_CHECKING:
    from orchestrator.plan import RunSpec
    from orchestrator.results.cells import Cell

__all__ = ["content_of"]


def content_of(cell: Cell) -> Content:
    """Return what the readings of the good runs of a cell amount to."""
    repeats = [(run.repeat, run.readings) for run in cell.good]
    return _CONTENT.get(cell.measure.name, _as_read)(cell.spec, repeats) if repeats else Content()


def _as_read(spec: RunSpec, repeats: Repeats) -> Content:
    """Return the lines of all repeats as they are."""
    columns = tuple(repeats[0][1][0])
    rows = tuple((repeat, *(line.get(name) for name in columns)) for repeat, lines in repeats for line in lines)
    return Content((Grid(f"{spec.model} {spec.shape}", ("repeat", *columns), rows),))


_CONTENT: Mapping[str, Callable[[RunSpec, Repeats], Content]] = {
    "collectives": collectives.content,
    "pairs": pair_tables.content,
}
"""By kind of measurement: what makes its tables."""

"""Tables of measurements other than training: each kind of measurement fills them its own way, all outputs draw them equally.

A sheet is one cell: all repeats of one spec. Its content is computed from the readings of its good runs by the function that
`_CONTENT` lists for its kind; the notes that qualify it come from `orchestrator.results.summary`, as for training.
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
    """Return the tables of a cell, computed from the readings of its good runs."""
    repeats = [(run.repeat, run.readings) for run in cell.good]
    return _CONTENT.get(cell.measure.name, _as_read)(cell.spec, repeats) if repeats else Content()


def _as_read(spec: RunSpec, repeats: Repeats) -> Content:
    """Return the lines of all repeats unchanged."""
    columns = tuple(repeats[0][1][0])
    rows = tuple((repeat, *(line.get(name) for name in columns)) for repeat, lines in repeats for line in lines)
    return Content((Grid(f"{spec.model} {spec.shape}", ("repeat", *columns), rows),))


_CONTENT: Mapping[str, Callable[[RunSpec, Repeats], Content]] = {
    "collectives": collectives.content,
    "pairs": pair_tables.content,
}
"""The function that makes the tables, by kind of measurement."""

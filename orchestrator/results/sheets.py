"""What a kind of measurement makes of its readings besides values: tables of a diagnosis, and
doubts about single values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from orchestrator.notes import Note
from orchestrator.results.grids import Content, Repeats
from orchestrator.results.links import collectives, pair_tables
from orchestrator.results.values import Key

if TYPE_CHECKING:
    from orchestrator.plan import RunSpec
    from orchestrator.results.cells import Cell

__all__ = ["content_of", "doubts_at"]


def content_of(cell: Cell) -> Content:
    """Return the tables of a cell, computed from the readings of its good runs."""
    repeats = _repeats(cell)
    return _CONTENT[cell.measure.name](cell.spec, repeats) if repeats else Content()


def doubts_at(cell: Cell) -> list[Note]:
    """Return the doubts about the values of a cell that follow from the readings of its good runs."""
    doubts = _DOUBTS.get(cell.measure.name)
    return doubts(_repeats(cell), cell.metric_key) if doubts else []


def _repeats(cell: Cell) -> Repeats:
    return [(run.repeat, run.readings) for run in cell.good]


_CONTENT: Mapping[str, Callable[[RunSpec, Repeats], Content]] = {"pairs": pair_tables.content}
"""The function that makes the tables, by kind of measurement."""
_DOUBTS: Mapping[str, Callable[[Repeats, Key], list[Note]]] = {"collectives": collectives.doubts}
"""The function that finds doubts about the values of a key, by kind of measurement."""

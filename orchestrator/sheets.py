"""Tables of what is measured beside training: each kind of measurement fills them its own way, all outputs draw them alike.

A sheet is one cell, all repeats of one spec. What it shows is computed from the readings of its good runs by the function that
stands for its kind in `_CONTENT`; whatever qualifies it comes from `orchestrator.summary`, as for training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import collectives, pairsheet
from orchestrator.grids import Content, Grid, Repeats

if TYPE_CHECKING:
    from orchestrator.spec import RunSpec
    from orchestrator.summary import Cell

__all__ = ["Entry", "Sheet", "content_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell as every output tells it, whatever it measures. ``n`` counts its good repeats, ``failed`` the others;
    ``options`` holds what else of the spec differs between the cells of the bench."""

    series: str
    framework: str
    model: str
    dtype: str
    device: str
    shape: str
    nodes: int
    gpus: int
    world_size: int
    options: Mapping[str, Any]
    simulated: bool
    n: int
    failed: int
    qualifications: tuple[str, ...]
    failures: tuple[str, ...]
    run_ids: tuple[str, ...]
    hardware: str


@dataclass(frozen=True, slots=True)
class Sheet(Entry):
    """One cell of a bench that trains nothing."""

    measures: str
    grids: tuple[Grid, ...]
    said: tuple[str, ...]
    culprits: tuple[str, ...]


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
    "pairs": pairsheet.content,
}
"""By kind of measurement: what makes its tables."""

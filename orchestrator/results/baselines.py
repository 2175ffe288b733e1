"""The cell of the baseline shape, with which the speed of a cell is compared; they differ only in
shape and length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.grouping import group_pairs
from orchestrator.notes import Note
from orchestrator.plan.baselines import baseline_of, is_baseline
from orchestrator.plan.spec import Skipped
from orchestrator.results.cells import LENGTH, SHAPE, Cell, order
from orchestrator.results.notes import (
    BASELINE_IMPOSSIBLE,
    BASELINE_RUNNING,
    BATCH_SIZE_NOT_FOUND,
    NO_BASELINE,
)
from orchestrator.results.run import REREAD, RUNNING


def families_of(cells: Sequence[Cell]) -> dict[int, list[Cell]]:
    """Return, by ``id`` of each cell, all cells that differ from it only in shape and length,
    including the cell itself.
    """
    keys = {id(cell): cell.key(*SHAPE, *LENGTH) for cell in cells}
    families = group_pairs((keys[id(cell)], cell) for cell in cells)
    return {id(cell): families[keys[id(cell)]] for cell in cells}


def baseline_in(cell: Cell, family: Sequence[Cell]) -> Cell | None:
    """Return the family's baseline cell with good runs, 1n1g or a requested shape.

    If there are several, a requested one of equal length is preferred, else the longest. None for a
    metric that is not compared with other shapes.
    """
    if not cell.metric.speedup:
        return None
    candidates = [other for other in family if is_baseline(other.spec) and other.values]

    def fitness(other: Cell) -> tuple[Any, ...]:
        return (
            other.spec.origins.get("nodes", "").endswith("baseline"),
            other.key(*SHAPE) == cell.key(*SHAPE),
            order(other),
        )

    return max(candidates, key=fitness, default=None)


def no_baseline(
    series: str, family: Sequence[Cell], cells: Sequence[Cell], skipped: Sequence[Skipped]
) -> Note:
    """Return a note that there is no speedup and how to get one; another bench's runs count only if
    this bench borrows them.

    ``family``: the cells of one series; ``cells``: all of a table; ``skipped``: configurations that
    were impossible.
    """
    bases = [cell for cell in family if is_baseline(cell.spec)]
    if not bases and any(cell.spec.step.batch_size_up_to for cell in family):
        alike = family[0].key(*SHAPE, *LENGTH, "batch_size")
        bases = [
            cell
            for cell in cells
            if is_baseline(cell.spec) and cell.key(*SHAPE, *LENGTH, "batch_size") == alike
        ]
        if any(cell.values for cell in bases):
            shape = bases[0].spec.shape
            return BATCH_SIZE_NOT_FOUND(series=series, shape=shape)
    tried = [run for cell in bases for run in cell.runs]
    shape = (bases[0].spec if bases else baseline_of(family[0].spec)).shape
    spec = family[0].spec
    of_shape = spec.framework, spec.model, shape, spec.dtype
    impossible = {
        (other.framework, other.model, other.shape, other.choices.get("dtype", spec.dtype))
        for other in skipped
    }
    if not tried and of_shape in impossible:
        return BASELINE_IMPOSSIBLE(series=series, shape=shape)
    other = "; if no node has so many devices, --baseline-shape chooses another one"
    if shape == "1n1g":
        other = ""
    rerun = f"orch bench without --no-baseline measures one, or borrows a good run of the same spec{other}"
    again = sorted({run.repeated_by for run in tried} - {"", REREAD})
    retry = f"{' or '.join(again)} repeats it" if again else "a new orch bench measures a new one"
    if any(run.state == RUNNING for run in tried):
        return BASELINE_RUNNING(series=series, shape=shape)
    return NO_BASELINE(series=series, shape=shape, how=retry if tried else rerun)

"""Qualifications of a cell's numbers: few or scattered repeats, unlike conditions, and
contradicting cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.grouping import group_pairs
from orchestrator.notes import Note, as_note, merge_notes
from orchestrator.plural import plural
from orchestrator.results.cells import LENGTH, SHAPE, Cell
from orchestrator.results.hardware import (
    conditions_of,
    differing_facts,
    hardware,
    infiniband_bytes_per_s,
    load_notes,
    slowdown_notes,
    unsteady_in,
)
from orchestrator.results.notes import (
    BASELINE_LENGTH,
    COARSE,
    COARSE_ALONE,
    COARSE_AND_EQUAL,
    FEW_REPEATS,
    ON_CPUS,
    SIMULATED,
    UNEVEN_REPEATS,
    WIDE_SPREAD,
)
from orchestrator.results.numbers.drift import Estimate, typical_value
from orchestrator.results.numbers.intervals import plain_interval
from orchestrator.results.numbers.physics import Measured, findings
from orchestrator.results.numbers.throughput import mean, spread
from orchestrator.results.repeats import (
    equal_repeats,
    on_other_hosts,
    over_other_interfaces,
    repeats_apart,
    slower_than_wider,
)
from orchestrator.results.reported_figures import doubts_about
from orchestrator.results.telemetry.doubts import doubts_from

ENOUGH_REPEATS = 3
_WIDE = 0.05
_FEW_DIGITS = 0.1
_COARSE = 0.5
"""Share of an interval's width from which on the resolution of a log is too coarse for it."""


def qualifications_of(
    cell: Cell, base: Cell | None, doubts: Sequence[Note], typical: int
) -> tuple[Note, ...]:
    """Return the notes on the numbers of a cell.

    ``base`` is its baseline, ``doubts`` are known doubts about it, and ``typical`` is the number of
    repeats that most cells have.
    """
    notes = []
    if cell.simulated:
        notes.append(SIMULATED())
    if cell.spec.device == "cpu":
        notes.append(ON_CPUS())
    values, n = cell.values if cell.is_positive else [], measured_count(cell)
    if n:
        too_few = n < ENOUGH_REPEATS and not cell.measure.repeats_within
        if too_few:
            notes.append(FEW_REPEATS(repeats=plural(n, "good repeat"), enough=ENOUGH_REPEATS))
        if n != typical:
            notes.append(UNEVEN_REPEATS(repeats=plural(n, "repeat"), typical=typical))
    if values and not cell.metric.key_columns:
        if spread(values) > _WIDE:
            notes.append(WIDE_SPREAD(more="", spread=f"{spread(values):.1%}"))
        notes += repeats_apart(cell)
    elif values and spread(values) > _WIDE:
        notes.append(WIDE_SPREAD(more="more than ", spread=f"{_WIDE:.0%}"))
    notes += equal_repeats(cell.good)
    notes += [*on_other_hosts(cell.good), *over_other_interfaces(cell.good)]
    notes += doubts
    notes += doubts_about(
        [
            figure
            for run in cell.with_number
            for figure in run.said
            if figure.metric == cell.metric.name
        ]
    )
    if base and base.key(*SHAPE) != cell.key(*SHAPE):
        notes.append(BASELINE_LENGTH(steps=base.spec.steps, warmup_steps=base.spec.warmup_steps))
    if cell.spec.device == "cuda":
        notes += conditions_of(cell.good)
    notes += [
        *slowdown_notes(cell.good),
        *load_notes(cell.good),
        *doubts_from([run.use for run in cell.good]),
    ]
    notes += unsteady_in(cell.good)
    notes += differing_facts(
        cell.good or cell.runs, (base.good or base.runs) if base and base is not cell else ()
    )
    of_runs = [as_note(text) for run in cell.good for text in run.qualifications]
    return tuple(dict.fromkeys([*notes, *merge_notes(of_runs)]))


def coarse(cell: Cell, typical: Estimate | None) -> list[Note]:
    """Return a note if the digits that a log prints are too few for the interval around the typical
    value of a cell; none on what a program says of itself, which is judged by its digits anyway."""
    resolutions = [
        finest for run_id in cell.numbers if (finest := cell.resolutions.get(run_id, 0.0))
    ]
    if not cell.values or not resolutions or cell.metric.says:
        return []
    step = f"{float(f'{max(resolutions):.2g}'):g} {cell.metric.unit}"
    if len(cell.values) == 1:
        too_few = max(resolutions) >= _FEW_DIGITS * abs(cell.values[0])
        return [COARSE_ALONE(step=step)] if too_few else []
    if len(set(cell.values)) == 1:
        return [COARSE_AND_EQUAL(count=len(cell.values), step=step)]
    interval = typical.interval if typical else None
    if interval and max(resolutions) > _COARSE * (interval.high - interval.low):
        return [COARSE(step=step)]
    return []


def _doubts(cells: Sequence[Cell], of_medians: bool) -> list[tuple[Cell, list[Note]]]:
    """Return the doubts about each cell; the cells differ only in size, length and batch size.

    They are about the speeds that the table shows, without the drift, or about medians.
    """
    speeds = [None if of_medians else typical_of(cell) for cell in cells]
    measured = [
        _measured_cell(cell, speed.value if speed else None)
        for cell, speed in zip(cells, speeds, strict=True)
    ]
    found = [findings(this, measured) for this in measured]
    noted = []
    for cell, of_cell in zip(cells, found, strict=True):
        noted.append((cell, [as_note(each.text) for each in of_cell]))
    return noted


def _measured_cell(cell: Cell, typical: float | None) -> Measured:
    spec = cell.spec
    size = (spec.nodes, spec.gpus, spec.batch_size)
    per_rank = spec.global_batch * spec.items / spec.world_size
    words = (spec.model, spec.dtype, tuple(cell.values))
    measured = Measured(
        *size, *words, typical=typical, unit=cell.metric.unit, work_per_rank=per_rank
    )
    # The bounds on speed hold for images of 224 x 224 and 1000 classes, on real devices.
    usual = (spec.options.get("image_size", 224), spec.options.get("num_classes", 1000)) == (
        224,
        1000,
    )
    hardware_texts = {hardware([run], spec) for run in cell.good}
    if not usual or spec.device == "cpu" or cell.simulated or len(hardware_texts) != 1:
        return measured
    return replace(
        measured, devices=hardware_texts.pop(), link_bytes_per_s=infiniband_bytes_per_s(cell.good)
    )


def doubts_of(cells: Sequence[Cell], *, of_medians: bool) -> dict[int, list[Note]]:
    """Return the doubts about speeds of training that follow from each other, by ``id`` of each
    cell, about medians if the table shows those."""
    programs = group_pairs((cell.key(*SHAPE, *LENGTH, "batch_size"), cell) for cell in cells)
    return {
        id(cell): [*texts, *slower_than_wider(cell, cells)]
        for alike in programs.values()
        for cell, texts in _doubts(alike, of_medians)
    }


def typical_of(cell: Cell) -> Estimate | None:
    """Return the typical value of a cell without the drift of its bench: a geometric mean, or the
    mean if there are values that are not above 0."""
    if not cell.values:
        return None
    if not cell.is_positive:
        return Estimate(mean(cell.values), plain_interval(cell.values))
    return typical_value(cell.placed, cell.drift)


def measured_count(cell: Cell) -> int:
    """Return how many of its runs have a number."""
    if cell.measure.is_diagnosis:
        return len(cell.good)
    return len(cell.numbers)

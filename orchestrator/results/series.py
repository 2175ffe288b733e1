"""Series of a bench: the tables in which its cells are shown, and the choices that tell them apart."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.grouping import group_pairs
from orchestrator.plan import RunSpec
from orchestrator.plan.option_values import as_written
from orchestrator.plan.spec import EXTRA_CHOICES
from orchestrator.results.cells import LENGTH, Cell
from orchestrator.results.entries import Row

NONE = "none"
"""The dtype of a program that has none, and the loader of one that loads no samples."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are shown in one table: all of a framework, model, dtype, device and kind of
    scaling.

    The ``title`` names these.

    ``columns`` are the names of the other values that differ between them, as `column` returns
    them.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def column(self, row: Row, name: str) -> str:
        """Return the value of a row in one of ``columns`` as text, empty for a variable that it
        does not set.
        """
        value = _value(row, name)
        return "" if value is None else as_written(value)


def differing_names(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the names of settings and lengths that differ between cells, and of those that were
    set explicitly.
    """
    values: dict[str, set[str]] = {}
    names = {name for cell in cells for name in cell.spec.settings}
    for cell in cells:
        for name in (*names, *LENGTH):
            values.setdefault(name, set()).add(repr(choice(cell.spec, name)))
    chosen: set[str] = set()
    for cell in cells:
        chosen.update(cell.spec.env)
        for name in cell.spec.options:
            if " default" not in cell.spec.origins.get(f"options.{name}", " default"):
                chosen.add(name)
    return tuple(sorted(chosen | {name for name, seen in values.items() if len(seen) > 1}))


def choice(spec: RunSpec, name: str) -> Any:
    """Return the value of a setting or length; None for a variable that the spec does not set."""
    if name in LENGTH:
        return getattr(spec, name)
    return spec.settings.get(name)


def options_of(cell: Cell, differing: Sequence[str]) -> dict[str, Any]:
    """Return the settings and lengths that differ between cells, and what somebody chose for all."""
    chosen = {name: cell.spec.chosen(name) for name in EXTRA_CHOICES}
    return {
        **{name: value for name, value in chosen.items() if value is not None},
        **{name: choice(cell.spec, name) for name in differing},
    }


def shared_choices(rows: Sequence[Row]) -> set[str]:
    """Return the choices in which all rows are equal, so that no name of a row has them."""
    return {
        name for name in EXTRA_CHOICES if len({repr(row.options.get(name)) for row in rows}) == 1
    }


def program_of(cell: Cell, differing: Sequence[str]) -> str:
    """Return a description of the program of a cell and its settings: ``pytorch resnet50 fp16 b128
    synthetic``.
    """
    spec = cell.spec
    with_samples: dict[str, Any] = (
        {"batch_size": spec.batch_size, "loader": spec.loader} if cell.measure.has_samples else {}
    )
    settings = {name: spec.settings[name] for name in differing if name in spec.settings}
    if spec.follows:
        settings = {"global_batch": spec.global_batch, **settings}
        settings.pop(spec.follows.removeprefix("options."), None)
        with_samples = {name: value for name, value in with_samples.items() if name != spec.follows}
    return _describe(
        (spec.framework, spec.model, spec.dtype),
        with_samples,
        spec.device,
        settings,
        cell.simulated,
    )


def series_of(cell: Cell, differing: Sequence[str]) -> str:
    """Return a description of what a cell shares with its baseline: its program, and the metric and
    key if it is not a speed of training: ``fio randread cpu read_iops bs=4k``."""
    program = program_of(cell, differing)
    if cell.is_speed_of_training or cell.measure.is_diagnosis:
        return program
    return " ".join(
        [program, cell.metric.name, *(f"{name}={value}" for name, value in cell.key_values.items())]
    )


def group_rows(rows: Sequence[Row]) -> tuple[Group, ...]:
    """Return the tables of these rows, in order of their first rows; within a table, rows of equal
    values are together.
    """
    tables = group_pairs(
        ((row.framework, row.model, row.dtype, row.device, row.simulated, row.scaling), row)
        for row in rows
    )
    unnamed = {*LENGTH, *shared_choices(rows)}
    return tuple(_group(table, unnamed) for table in tables.values())


def _group(rows: list[Row], unnamed: Collection[str]) -> Group:
    first = rows[0]
    samples_names = [] if all(row.loader == NONE for row in rows) else ["batch_size", "loader"]
    names = [
        *samples_names,
        *dict.fromkeys(name for row in rows for name in row.options if name not in unnamed),
    ]
    columns = []
    for name in names:
        if len({repr(_value(row, name)) for row in rows}) > 1:
            columns.append(name)
    common = {name: _value(first, name) for name in names if name not in columns}
    samples: dict[str, Any] = {
        name: common.pop(name) for name in ("batch_size", "loader") if name in common
    }
    settings = {name: value for name, value in common.items() if value is not None}
    title = _describe(
        (first.framework, first.model, first.dtype),
        samples,
        first.device,
        settings,
        first.simulated,
    )
    # With strong scaling, one of the columns follows from the shape: rows come by program and then
    # by size.
    ordered = rows
    if first.scaling != "strong":
        ordered = sorted(rows, key=lambda row: [_rank(_value(row, n)) for n in columns])
    return Group(title, tuple(columns), tuple(ordered))


def _value(row: Row, name: str) -> Any:
    if name in ("batch_size", "loader"):
        return getattr(row, name)
    return row.options.get(name)


def _rank(value: Any) -> tuple[int, float, str]:
    """Return a key that sorts missing values first, then numbers by size, then texts; numbers in
    texts count as numbers.
    """
    if value is None:
        return 0, 0.0, ""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return (1, number, "")
    return (2, 0.0, str(value))


def _describe(
    words: Sequence[str],
    samples: Mapping[str, Any],
    device: str,
    settings: Mapping[str, Any],
    simulated: bool,
) -> str:
    described = [word for word in words if word != NONE]
    if "batch_size" in samples:
        described.append(f"b{samples['batch_size']}")
    if "loader" in samples:
        described.append(samples["loader"])
    if device != "cuda":
        described.append(device)
    described += [f"{name}={as_written(value)}" for name, value in settings.items()]
    if simulated:
        described.append("simulated")
    return " ".join(described)

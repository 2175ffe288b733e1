"""The schema of ``published.json``, the file with published tables in a framework folder or
anywhere else.

A case has the printed ``speed`` and, if they were printed, ``speedup``, ``average``, ``median`` and
``runs``; the runs are speeds, or pairs of run id and speed, in the order in which they were read.
Speeds are in samples/s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from orchestrator.errors import ConfigError, Faults, nearest
from orchestrator.features.published.language_schema import (
    LanguageModels,
    language_entry,
    language_inconsistencies,
    language_tables,
)
from orchestrator.features.published.tables import (
    BASELINE,
    CENTRES,
    LATCH,
    PLACES,
    PublishedCell,
    PublishedFile,
    PublishedTable,
)
from orchestrator.inventory.fields import Filled, Setting, Strict, Text, takes, whole
from orchestrator.inventory.values import KeyPath, show_key, show_value
from orchestrator.plan.schema_faults import describe_fault, key_path

KIND = "published"
"""The name of the file for `orch schema`."""
SCHEMA = 1
"""1: first version."""

_MOST = 1e15
_CASE = "[1-9][0-9]{0,4}n[1-9][0-9]{0,4}g"


def _is_speed(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < _MOST


def _is_run(value: Any) -> bool:
    return _is_speed(value) or (
        isinstance(value, list)
        and len(value) == 2
        and type(value[0]) is int
        and value[0] >= 0
        and _is_speed(value[1])
    )


_Speed = Annotated[
    int | float,
    takes("a number above 0", _is_speed, "without quotes, unit and thousands separator"),
]
_Run = Annotated[
    int | float | list[int | float],
    takes("a speed above 0, or a run id and a speed", _is_run, "such as 2617.84 or [3, 2617.84]"),
]
_Case = Annotated[
    str,
    takes(
        "a case such as 1n1g or 4n8g",
        lambda value: bool(re.fullmatch(_CASE, str(value))),
        "nodes, n, devices per node, g",
    ),
]
_Places = Annotated[int, whole(0, 12)]


class _Cell(Strict):
    speed: _Speed = Field(description="the printed speed, in samples/s")
    speedup: _Speed | None = Field(None, description="the printed speedup")
    average: _Speed | None = Field(None, description="the printed mean of the runs")
    median: _Speed | None = Field(None, description="the printed median of the runs")
    runs: list[_Run] = Field(
        [],
        description="the printed speeds of single runs, as speeds or [id, speed], in reading order",
    )


class _Decimals(Strict):
    speed: _Places = Field(default=2, description="decimal places of printed speeds")
    average: _Places = Field(default=2, description="decimal places of printed means")
    median: _Places = Field(default=2, description="decimal places of printed medians")
    speedup: _Places = Field(default=2, description="decimal places of printed speedups")


class _Table(Strict):
    title: Text = Field("", description="the table's title")
    model: Filled = Field(description="the model, such as resnet50")
    dtype: Filled = Field(description="the type, such as fp32")
    batch_size: Annotated[int, whole(1)] = Field(description="samples per device and step")
    loader: Text = Field("not stated", description="where the samples came from")
    version: Text = Field("not stated", description="the version of the program")
    hardware: Text = Field("not stated", description="nodes, devices and network, as text")
    statistic: Literal["median", "mean", "min", "max", "single", "unstated"] = Field(
        description="what the printed speed is of the runs: median, mean, min, max, single or unstated"
    )
    divisor: Literal[
        "median/median", "mean/mean", "min/min", "max/max", "value/value", "mean/latch", "none"
    ] = Field(
        description="how the printed speedups were computed, such as median/median; none if none are printed"
    )
    baseline: _Case = Field(BASELINE, description="the case that speedups are relative to")
    places: _Decimals = Field(
        _Decimals(), description="the rounding of printed numbers, by kind: {speed: 2, speedup: 2}"
    )
    runs: Annotated[int, whole(1)] | None = Field(
        None, description="the stated number of runs of each case"
    )
    order: list[_Case] = Field(
        [], description="the order in which the cases were read; mean/latch needs it"
    )
    variant: dict[str, Setting] = Field({}, description="further settings of the program")
    known: list[Text] = Field(
        [], description="differences that are known, as orch published prints them"
    )
    notes: list[Text] = Field([], description="remarks that are printed below the table")
    cases: Annotated[dict[_Case, _Cell], Field(min_length=1)] = Field(
        description='the rows by case, such as {"1n1g": {"speed": 352.5}}',
        json_schema_extra={"propertyNames": {"pattern": f"^{_CASE}$"}},
    )


class PublishedTables(Strict):
    """Published tables: numbers as they were printed, and how they were computed."""

    schema_number: Annotated[
        int,
        takes(
            f"{SCHEMA}",
            lambda value: type(value) is int and value == SCHEMA,
            "a later orch may read a file of a later schema",
        ),
    ] = Field(alias="schema", description=f"{SCHEMA}, the version of this format")
    source: Filled = Field(description="the document that printed the tables")
    like: list[Text] = Field(
        [], description="further frameworks whose runs may be compared with these tables"
    )
    models: dict[str, Text] = Field({}, description="names of models in logs, and in these tables")
    images: Annotated[int, whole(0)] = Field(0, description="samples in the data set; 0: not known")
    inconsistencies: list[Text] = Field([], description="known errors of the document")
    tables: dict[str, _Table] = Field({}, description="the tables by name")
    language_models: LanguageModels | None = Field(
        None, description="tables of language models, in tokens/s"
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``published.json``."""
    return PublishedTables.model_json_schema(by_alias=True)


def parse(
    value: Any, framework: str, where: str, line_of: Callable[[KeyPath], int] = lambda path: 0
) -> PublishedFile:
    """Return the tables of one file.

    Raises Faults of ConfigError, each with the file, its line and key, and the fault. ``line_of``
    returns the line of the value at a path of keys, 0 if it is not known.
    """

    def place(path: KeyPath) -> str:
        line = line_of(path)
        key = ".".join(map(show_key, path))
        return ": ".join(part for part in (f"{where}:{line}" if line else where, key) if part)

    if not isinstance(value, dict):
        message = f"expected a mapping with schema, source and tables, got {show_value(value)}"
        raise Faults([ConfigError(message, where=place(()))])
    try:
        file = PublishedTables.model_validate(value)
    except ValidationError as error:
        details = [detail for detail in error.errors(include_url=False) if detail["loc"]]
        described_faults = [
            (key_path(detail), describe_fault(detail, place, _model_at)) for detail in details
        ]
        raise Faults(_in_order(described_faults, line_of)) from None
    faults = [
        (path, ConfigError(message, where=place(path), hint=hint))
        for name, table in file.tables.items()
        for path, message, hint in _inconsistent(name, table)
    ]
    if file.language_models:
        found_there = language_inconsistencies(file.language_models)
        faults += [
            (path, ConfigError(message, where=place(path), hint=hint))
            for path, message, hint in found_there
        ]
    if not file.tables and not file.language_models:
        hint = "tables: the tables by name, in samples/s; language_models: those of language models"
        faults.append(
            (
                ("tables",),
                ConfigError(
                    "expected tables: or language_models:, got neither", where=place(()), hint=hint
                ),
            )
        )
    if faults:
        raise Faults(_in_order(faults, line_of))
    return PublishedFile(
        framework=framework,
        source=file.source,
        like=tuple(file.like),
        models=file.models,
        images=file.images,
        inconsistencies=tuple(file.inconsistencies),
        tables=tuple(_table(name, table) for name, table in file.tables.items()),
        language=language_tables(file.language_models, file.source),
        where=where,
    )


def _in_order(
    faults: Iterable[tuple[KeyPath, ConfigError]], line_of: Callable[[KeyPath], int]
) -> list[ConfigError]:
    """Return one fault of each place, in the order of their lines."""
    by_place: dict[str, tuple[int, ConfigError]] = {}
    for path, fault in faults:
        by_place.setdefault(fault.where, (line_of(path), fault))
    return [fault for _, fault in sorted(by_place.values(), key=lambda item: item[0])]


def _model_at(path: KeyPath) -> type[BaseModel]:
    """Return the model of the mapping at a path of keys."""
    if path[:1] == ("language_models",):
        return language_entry(path)
    if path[:1] != ("tables",) or len(path) < 2:
        return PublishedTables
    inner: Mapping[Any, type[BaseModel]] = {"cases": _Cell, "places": _Decimals}
    if len(path) > 2:
        return inner.get(path[2], _Table)
    return _Table


def _inconsistent(name: str, table: _Table) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield inconsistencies between the keys of a table."""
    at: KeyPath = ("tables", name)
    cases = ", ".join(table.cases)
    if table.divisor == LATCH and sorted(table.order) != sorted(table.cases):
        hint = "the divisor changes while the cases are read, so their order is needed"
        yield (
            (*at, "order"),
            f"expected each of {cases} once with {LATCH}, got {', '.join(table.order) or 'none'}",
            hint,
        )
    printed = [case for case, cell in table.cases.items() if cell.speedup is not None]
    if printed and table.divisor == "none":
        divisors = [name for name in CENTRES if name != "none"]
        hint = f"write how they were computed: {', '.join((*divisors, LATCH))}"
        yield (
            (*at, "divisor"),
            f"expected a divisor for the speedups that are printed, such as of {printed[0]}, got none",
            hint,
        )
    if table.baseline not in table.cases and (printed or table.divisor == LATCH):
        hint = f"speedups are relative to it{nearest(table.baseline, table.cases)}"
        yield (*at, "baseline"), f"expected one of cases, {cases}, got {table.baseline!r}", hint
    for case, cell in table.cases.items():
        for kind in ("average", "median"):
            if getattr(cell, kind) is not None and not cell.runs:
                hint = "without printed runs it cannot be computed again; leave it out"
                yield (*at, "cases", case, kind), f"expected runs beside {kind}, got none", hint


def _table(name: str, table: _Table) -> PublishedTable:
    return PublishedTable(
        name=name,
        title=table.title or name,
        model=table.model,
        dtype=table.dtype,
        batch_size=table.batch_size,
        loader=table.loader,
        version=table.version,
        hardware=table.hardware,
        statistic=table.statistic,
        divisor=table.divisor,
        runs=table.runs,
        order=tuple(table.order),
        variant=table.variant,
        known=tuple(table.known),
        notes=tuple(table.notes),
        cells=tuple(_cell(case, cell) for case, cell in table.cases.items()),
        baseline=table.baseline,
        places={kind: getattr(table.places, kind) for kind in PLACES},
    )


def _cell(case: str, cell: _Cell) -> PublishedCell:
    speedup, average, median = (
        None if value is None else float(value)
        for value in (cell.speedup, cell.average, cell.median)
    )
    runs = tuple(_run(number, run) for number, run in enumerate(cell.runs, start=1))
    return PublishedCell(case, float(cell.speed), speedup, average, median, runs)


def _run(number: int, run: float | list[int | float]) -> tuple[int, float]:
    if isinstance(run, list):
        return (int(run[0]), float(run[1]))
    return (number, float(run))

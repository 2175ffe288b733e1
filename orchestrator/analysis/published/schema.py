"""The schema of ``published.json``, the file with published tables in a framework folder.

A case has the printed ``speed`` and, if they were printed, ``speedup``, ``average``, ``median`` and ``runs``; the runs are
pairs of run id and speed in the order in which they were read. Speeds are in samples/s.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.analysis.published.tables import PublishedCell, PublishedFile, PublishedTable
from orchestrator.errors import DataError

__all__ = ["SCHEMA", "parse"]

SCHEMA = 1
"""1: first version."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
CaseName = Annotated[str, Field(pattern=r"^[1-9][0-9]*n[1-9][0-9]*g$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Cell(_Strict):
    speed: Positive
    speedup: Positive | None = None
    average: Positive | None = None
    median: Positive | None = None
    runs: list[tuple[int, Positive]] = []


class _Table(_Strict):
    title: str
    model: str
    dtype: Literal["fp32", "fp16", "amp", "auto"]
    batch_size: Annotated[int, Field(ge=1)]
    loader: str
    version: str
    hardware: str
    statistic: Literal["median", "mean", "single", "unstated"]
    divisor: Literal["median/median", "mean/mean", "value/value", "mean/latch", "none"]
    runs: Annotated[int, Field(ge=1)] | None = None
    order: list[CaseName] = []
    variant: dict[str, str | int | bool] = {}
    known: list[str] = []
    notes: list[str] = []
    cases: Annotated[dict[CaseName, _Cell], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_an_order(self) -> _Table:
        if self.divisor == "mean/latch" and (sorted(self.order) != sorted(self.cases) or "1n1g" not in self.cases):
            raise ValueError("mean/latch needs the order in which all cases were read, 1n1g among them")
        return self


class _File(_Strict):
    schema_number: Annotated[int, Field(alias="schema", ge=SCHEMA, le=SCHEMA)]
    source: str
    like: list[str] = []
    models: dict[str, str] = {}
    images: Annotated[int, Field(ge=0)] = 0
    inconsistencies: list[str] = []
    tables: dict[str, _Table]


def parse(value: Any, framework: str, where: str) -> PublishedFile:
    """Return the tables of one file. Raise DataError (state_damaged) with the key and what is wrong with it."""
    try:
        file = _File.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "the file"
        raise DataError(f"{key}: {fault['msg'].lower()}", kind="state_damaged", where=where) from None
    return PublishedFile(
        framework=framework,
        source=file.source,
        like=tuple(file.like),
        models=file.models,
        images=file.images,
        inconsistencies=tuple(file.inconsistencies),
        tables=tuple(_table(name, table) for name, table in file.tables.items()),
    )


def _table(name: str, table: _Table) -> PublishedTable:
    values = table.model_dump(exclude={"cases", "order", "known", "notes"})
    cells = tuple(
        PublishedCell(case, cell.speed, cell.speedup, cell.average, cell.median, tuple(cell.runs))
        for case, cell in table.cases.items()
    )
    return PublishedTable(
        name=name, cells=cells, order=tuple(table.order), known=tuple(table.known), notes=tuple(table.notes), **values
    )

"""Check published tables by `orchestrator.results.numbers.physics`."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.features.published.tables import PublishedCell, PublishedFile, PublishedTable
from orchestrator.results.numbers.peaks import link_in
from orchestrator.results.numbers.physics import Finding, Measured, findings


def find_doubts(file: PublishedFile) -> dict[str, dict[str, tuple[Finding, ...]]]:
    """Return the findings of each table by case, without cases that have none. Tables that differ
    only in batch size are judged together."""
    cells: dict[str, dict[str, Measured]] = {}
    for table in file.tables:
        cells[table.name] = {cell.case: _measured_cell(table, cell) for cell in table.cells}
    return {table.name: _of_table(table, file, cells) for table in file.tables}


def _of_table(
    table: PublishedTable, file: PublishedFile, cells: Mapping[str, Mapping[str, Measured]]
) -> dict[str, tuple[Finding, ...]]:
    peers: list[Measured] = []
    for other in file.tables:
        if _program(other) == _program(table):
            peers += cells[other.name].values()
    by_case = {case: findings(cell, peers) for case, cell in cells[table.name].items()}
    return {case: doubtful for case, doubtful in by_case.items() if doubtful}


def _program(table: PublishedTable) -> tuple[object, ...]:
    return (
        table.model,
        table.dtype,
        table.loader,
        table.version,
        table.hardware,
        tuple(sorted(table.variant.items())),
    )


def _measured_cell(table: PublishedTable, cell: PublishedCell) -> Measured:
    nodes, gpus = (int(number) for number in cell.case[:-1].split("n"))
    hardware = ", ".join((table.hardware, *map(str, table.variant.values())))
    return Measured(
        nodes,
        gpus,
        table.batch_size,
        table.model,
        table.dtype,
        cell.speeds,
        hardware,
        link_in(table.hardware),
    )

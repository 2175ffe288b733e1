"""A bench as one page of HTML: no script, nothing fetched, and nothing of a node's text can become markup.

The template escapes every value; texts from nodes are made harmless before that. The page depends on the evidence alone, so the
same bench gives the same bytes.
"""

from __future__ import annotations

import hashlib
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

from jinja2 import Environment, StrictUndefined

from orchestrator.analysis.explain.prediction import Explanation
from orchestrator.analysis.published.reference import Beside
from orchestrator.inventory.hostset import fold
from orchestrator.pool import shared_out
from orchestrator.report import explain as explanations
from orchestrator.report.cells import COLUMNS, Table, case, cells_by_name, sheet_tables, tables
from orchestrator.report.html import charts
from orchestrator.report.html.charts import Turn
from orchestrator.report.html.svg import drawing
from orchestrator.report.text import one_line, visible
from orchestrator.results.account import BenchAccount, Placed
from orchestrator.results.numbers.throughput import published as rounded
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Row, Summary

__all__ = ["render"]

_Job = tuple[Callable[..., str], tuple[Any, ...]]
"""A function of `charts`, and what to call it with."""
_MANY_CHARTS = 150
"""A chart takes 25 ms; a process that draws some, a second to begin."""
_PROCESSES = 2
"""Each takes 80 MiB."""
_VARIANTS = 8
"""Of a rendered file; further hosts are named, and what they differ in is of the same kind."""


@dataclass(frozen=True, slots=True)
class _Cell:
    row: Row
    case: str
    cells: Mapping[str, str]
    charts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Series:
    table: Table
    cells: tuple[_Cell, ...]
    charts: tuple[str, ...]
    is_ideal: bool
    beside: tuple[Beside, ...]


def render(
    summary: Summary,
    results: Sequence[RunResult],
    account: BenchAccount,
    beside: Sequence[Beside] = (),
    beside_notes: Sequence[str] = (),
    explained: Sequence[Explanation] = (),
) -> str:
    """Return the page. ``results`` are all runs in execution order, ``beside`` and ``explained`` what to show as well."""
    turns = {result.run_id: Turn(order, result, account.runs[result.run_id]) for order, result in enumerate(results, start=1)}
    series = tuple(_series(summary, turns, beside))
    css = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return (
        _environment()
        .from_string(files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8"))
        .render(
            css=css,
            style_hash=b64encode(hashlib.sha256(css.encode()).digest()).decode(),
            account=account,
            columns=COLUMNS,
            series=series,
            sheets=tuple(_sheets(summary)),
            notes=(*summary.notes, *account.notes, *beside_notes),
            failed=_failed(turns.values()),
            count=len(turns),
            simulated=any(result.simulated for result in results),
            published=charts.PUBLISHED,
            explained=_explained(explained),
            parts=charts.PARTS,
            placed=_placements(account.placed),
            variants=_VARIANTS,
        )
    )


def _sheets(summary: Summary) -> Iterator[tuple[tuple[Table, ...], tuple[str, ...]]]:
    """Yield the tables of each sheet, and its charts."""
    with drawing():
        for number, sheet in enumerate(summary.sheets, start=1):
            drawn = sheet.grids if sheet.measures == "collectives" else ()
            yield sheet_tables(sheet), tuple(charts.bandwidth(grid, f"m{number}g{i}-") for i, grid in enumerate(drawn))


def _failed(turns: Iterable[Turn]) -> list[tuple[RunResult, list[str]]]:
    """Return the first run without a number of each cause, and all runs that have the same."""
    found: dict[tuple[str, str], tuple[RunResult, list[str]]] = {}
    for result in (turn.result for turn in turns if not turn.result.is_good):
        found.setdefault((result.state, repr(result.error and result.error.as_dict())), (result, []))[1].append(result.run_id)
    return list(found.values())


def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "line": one_line,
        "text": visible,
        "fold": fold,
        "number": lambda value: "–" if value is None else f"{rounded(value):,.2f}",
        "command": lambda words: one_line(shlex.join(words)),
    }
    return environment


def _series(summary: Summary, turns: Mapping[str, Turn], beside: Sequence[Beside]) -> Iterator[_Series]:
    parts = []
    for number, (table, (name, rows)) in enumerate(zip(tables(summary), summary.by_series().items(), strict=True), start=1):
        near = tuple(each for each in beside if each.series == name)
        of_cells = [_of_cell(row, [turns[one] for one in row.run_ids], f"s{number}c{i}") for i, row in enumerate(rows)]
        of_all = _of_series(rows, near, [turns[run_id] for row in rows for run_id in row.run_ids], f"s{number}")
        parts.append((table, rows, near, of_cells, of_all))
    jobs = [job for *_, of_cells, of_all in parts for some in (*of_cells, of_all) for job in some]
    drawn = (chart for share in shared_out(_drawn, jobs, worth=len(jobs) > _MANY_CHARTS, most=_PROCESSES) for chart in share)
    for table, rows, near, of_cells, of_all in parts:
        cells = tuple(
            _Cell(row, case(row), cells_by_name(row), tuple(islice(drawn, len(some))))
            for row, some in zip(rows, of_cells, strict=True)
        )
        yield _Series(table, cells, tuple(islice(drawn, len(of_all))), charts.ideal_of_one(rows, False) is not None, near)


def _of_series(rows: Sequence[Row], near: Sequence[Beside], turns: Sequence[Turn], prefix: str) -> list[_Job]:
    """Return the charts of a series, to be drawn."""
    several = [turn for turn in turns if turn.account.skew_s is not None and len(turn.account.nodes) > 1]
    wanted: list[tuple[bool, _Job]] = [
        (True, (charts.scaling, (rows, near, "median_speed", f"{prefix}a-"))),
        (any(row.speedup is not None for row in rows), (charts.scaling, (rows, near, "speedup", f"{prefix}b-"))),
        (bool(several), (charts.skew, (several, f"{prefix}d-"))),
    ]
    return [job for is_wanted, job in wanted if is_wanted]


def _of_cell(row: Row, turns: Sequence[Turn], prefix: str) -> list[_Job]:
    """Return the charts of a cell, to be drawn."""
    turns = sorted(turns, key=lambda turn: turn.order)
    wanted: list[tuple[bool, _Job]] = [
        (True, (charts.repeats, (turns, row, f"{prefix}a-"))),
        (any(turn.result.tempo for turn in turns), (charts.tempo, (turns, f"{prefix}b-"))),
        (any(turn.result.by_rank for turn in turns), (charts.ranks, (turns, f"{prefix}c-"))),
        (any(turn.account.phases or turn.account.nodes for turn in turns), (charts.timeline, (turns, f"{prefix}d-"))),
    ]
    return [job for is_wanted, job in wanted if is_wanted]


def _drawn(jobs: Sequence[_Job]) -> list[str]:
    with drawing():
        return [draw(*about) for draw, about in jobs]


def _explained(found: Sequence[Explanation]) -> list[tuple[Table, str]]:
    """Return the table of each series that is explained, and the picture of it."""
    series = [[each for each in found if each.series == name] for name in dict.fromkeys(each.series for each in found)]
    drawn = _drawn([(charts.gap, (some, f"e{number}-")) for number, some in enumerate(series, start=1)])
    return list(zip(explanations.tables(found), drawn, strict=True))


def _placements(placed: Sequence[Placed]) -> list[tuple[str, Placed, str]]:
    """Return each distinct placement with the shape, and its hosts folded."""
    return [(each.shape, each, fold(host for host, *_ in each.slots)) for each in placed]

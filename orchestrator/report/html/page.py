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

from jinja2 import Environment, StrictUndefined

from orchestrator.account import BenchAccount, Placed
from orchestrator.beside import Beside
from orchestrator.hostset import fold
from orchestrator.report.cells import COLUMNS, Table, case, cells_by_name, tables
from orchestrator.report.html import charts
from orchestrator.report.html.charts import Turn
from orchestrator.report.html.svg import drawing
from orchestrator.report.text import one_line, visible
from orchestrator.stats import published as rounded
from orchestrator.summary import Row, RunResult, Summary

__all__ = ["render"]

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
) -> str:
    """Return the page. ``results`` are all runs in execution order, ``beside`` published tables to draw as well."""
    turns = {result.run_id: Turn(order, result, account.runs[result.run_id]) for order, result in enumerate(results, start=1)}
    with drawing():
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
            notes=(*summary.notes, *account.notes, *beside_notes),
            failed=_failed(turns.values()),
            count=len(turns),
            simulated=any(result.simulated for result in results),
            published=charts.PUBLISHED,
            placed=_placements(account.placed),
            variants=_VARIANTS,
        )
    )


def _failed(turns: Iterable[Turn]) -> list[tuple[RunResult, list[str]]]:
    """Return the first run without a number of each cause, and all runs that have the same."""
    found: dict[tuple[str, str], tuple[RunResult, list[str]]] = {}
    for result in (turn.result for turn in turns if turn.speed is None):
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
    for number, (table, (name, rows)) in enumerate(zip(tables(summary), summary.by_series().items(), strict=True), start=1):
        near = tuple(each for each in beside if each.series == name)
        own = [turns[run_id] for row in rows for run_id in row.run_ids]
        cells = tuple(_cell(row, [turns[run_id] for run_id in row.run_ids], f"s{number}c{i}") for i, row in enumerate(rows))
        drawn = [charts.scaling(rows, near, "median_speed", f"s{number}a-")]
        if any(row.speedup is not None for row in rows):
            drawn.append(charts.scaling(rows, near, "speedup", f"s{number}b-"))
        if any(turn.account.skew_s is not None and len(turn.account.nodes) > 1 for turn in own):
            several = [turn for turn in own if len(turn.account.nodes) > 1]
            drawn.append(charts.skew(several, f"s{number}d-"))
        yield _Series(table, cells, tuple(drawn), charts.ideal_of_one(rows, False) is not None, near)


def _cell(row: Row, turns: Sequence[Turn], prefix: str) -> _Cell:
    turns = sorted(turns, key=lambda turn: turn.order)
    drawn: list[tuple[bool, Callable[[], str]]] = [
        (True, lambda: charts.repeats(turns, row, f"{prefix}a-")),
        (any(turn.result.tempo for turn in turns), lambda: charts.tempo(turns, f"{prefix}b-")),
        (any(turn.result.by_rank for turn in turns), lambda: charts.ranks(turns, f"{prefix}c-")),
        (any(turn.account.phases or turn.account.nodes for turn in turns), lambda: charts.timeline(turns, f"{prefix}d-")),
    ]
    return _Cell(row, case(row), cells_by_name(row), tuple(draw() for wanted, draw in drawn if wanted))


def _placements(placed: Sequence[Placed]) -> list[tuple[str, Placed, str]]:
    """Return each distinct placement with the shape, and its hosts folded."""
    return [(each.shape, each, fold(host for host, *_ in each.slots)) for each in placed]

"""A bench as one HTML page without scripts or external resources, in which text from nodes cannot
become markup.

Control characters in texts from nodes are escaped first, then the template escapes every value. The
page depends only on the evidence, so the same bench gives the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import islice
from typing import Any, NamedTuple

from orchestrator.inventory import fold
from orchestrator.pool import share_out
from orchestrator.report.cells import (
    COLUMNS,
    OF_REPEATS,
    Table,
    case,
    cells_by_name,
    details,
    series_tables,
    sheet_tables,
)
from orchestrator.report.html import charts, metric_charts, use_charts
from orchestrator.report.html.charts import Turn
from orchestrator.report.html.navigation import Link
from orchestrator.report.html.svg import drawing
from orchestrator.report.html.template import environment
from orchestrator.report.references import ReferenceTable
from orchestrator.report.sections import Section
from orchestrator.report.tables import of_metrics, tables
from orchestrator.results import RUNNING, RunResult
from orchestrator.results.entries import Row
from orchestrator.results.run_history import BenchHistory, ShapePlacement
from orchestrator.results.summary import Summary

_Job = tuple[Callable[..., str], tuple[Any, ...]]
"""A function of `charts` and its arguments."""
_MANY_CHARTS = 150
"""From this number on, charts are drawn in processes: a chart takes 25 ms, the start of a process 1
s.
"""
_PROCESSES = 2
"""Each process needs 80 MiB."""
_SHAPES = 6
"""Shapes that the title lists."""
_VARIANTS = 8
"""Variants of a rendered file that are shown; further hosts are only named, their differences are
of the same kind.
"""


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
    references: tuple[ReferenceTable, ...]

    @property
    def unit(self) -> str:
        """The unit of its speeds."""
        return self.cells[0].row.unit


def render(
    summary: Summary,
    results: Sequence[RunResult],
    history: BenchHistory,
    references: Sequence[ReferenceTable] = (),
    reference_notes: Sequence[str] = (),
    sections: Sequence[Section] = (),
    links: Sequence[Link] = (),
) -> str:
    """Return the page. ``results`` are all runs in execution order; ``references`` and ``sections``
    are shown if given, and so are ``links`` to other pages of a site."""
    turns = {
        result.run_id: Turn(order, result, history.runs[result.run_id])
        for order, result in enumerate(results, start=1)
    }
    series = tuple(_series(summary, turns, references))
    css = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            css=css,
            style_hash=b64encode(hashlib.sha256(css.encode()).digest()).decode(),
            links=links,
            history=history,
            title=summary.label or subject(summary) or history.bench_id,
            subject=subject(summary) if summary.label else "",
            overview=_overview(summary),
            arranged=_arrange,
            series=series,
            sheets=tuple(map(sheet_tables, summary.sheets)),
            metrics=tuple(_metrics(summary, turns)),
            notes=(*summary.notes, *history.notes, *reference_notes),
            failed=_first_failures(turns.values()),
            sections=[section.page() for section in sections],
            count=summary.runs.planned if summary.runs else len(turns),
            missing=summary.runs.words() if summary.runs else (),
            simulated=any(result.simulated for result in results),
            published=charts.PUBLISHED,
            facts=_facts(history.facts),
            counted=" or ".join(dict.fromkeys(of_one.unit.removesuffix("/s") for of_one in series))
            or "samples",
            placed=_placements(history.placed),
            variants=_VARIANTS,
            details=details,
        )
    )


def subject(summary: Summary) -> str:
    """Return the subject of a bench: models, frameworks, dtypes and shapes of all cells, each once;
    empty without cells.
    """
    entries = (*summary.rows, *summary.sheets)
    words = []
    for name in ("model", "dtype", "framework"):
        words.append(", ".join(dict.fromkeys(getattr(entry, name) for entry in entries)))
    shapes = list(dict.fromkeys(entry.shape for entry in entries))
    shown = ", ".join(
        shapes if len(shapes) <= _SHAPES else [*shapes[: _SHAPES - 1], "…", shapes[-1]]
    )
    if not entries:
        return ""
    return f"{words[0]} {words[1]} with {words[2]} on {shown}"


class _Arranged(NamedTuple):
    """A table as the page shows it: a row has a text and what stands below it for each column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]


def _arrange(table: Table) -> _Arranged:
    """Return a table with each interval below its value, and with what describes the repeats at the
    right end, where a narrow window cuts it off; a table without footnotes has no notes."""
    keys = [(place, name) for place, name in enumerate(table.columns) if place < table.keys]
    numbers = [(place, name) for place, name in enumerate(table.columns) if place >= table.keys]
    below = {place - 1: place for place, name in numbers if name.endswith("95%")}
    if not table.footnotes:
        numbers = [(place, name) for place, name in numbers if name != "notes"]
    shown = [*keys, *((place, name) for place, name in numbers if place - 1 not in below)]
    shown.sort(key=lambda column: column in numbers and column[1] in OF_REPEATS)
    names = (OF_REPEATS.get(name, name) if column >= table.keys else name for column, name in shown)
    rows = []
    for row in table.rows:
        lower = {place: row[of_below] for place, of_below in below.items()}
        rows.append(tuple((row[place], lower.get(place, "")) for place, _ in shown))
    return _Arranged(tuple(names), tuple(rows))


def _overview(summary: Summary) -> tuple[Table, ...]:
    """Return the tables of speeds that show several series next to each other, without notes: each
    series has its own.
    """
    speeds = summary.of_training()
    return tuple(
        replace(table, footnotes=())
        for table in tables(speeds)
        if len(table.columns) > len(COLUMNS)
    )


_Legend = list[tuple[str, str]]
"""Colours, and what has them."""


def _metrics(
    summary: Summary, turns: Mapping[str, Turn]
) -> Iterator[tuple[Table, tuple[tuple[str, _Legend], ...]]]:
    """Yield each table of metrics that are no speeds, with a chart of each metric, over its key or
    of its repeats, and its legend."""
    with drawing():
        for number, entry in enumerate(of_metrics(summary), start=1):
            names = list(dict.fromkeys(row.metric for row in entry.rows))
            of_name = []
            for name in names:
                of_name.append(
                    [row for row in entry.rows if row.metric == name and row.value is not None]
                )
            order = {run_id: turn.order for run_id, turn in turns.items()}
            drawn = []
            for i, rows in enumerate(of_name):
                prefix = f"m{number}k{i}-"
                if rows and entry.over:
                    drawn.append(
                        (
                            metric_charts.over_key(rows, entry.over, prefix),
                            metric_charts.legend(rows, entry.over),
                        )
                    )
                elif rows:
                    drawn.append(
                        (metric_charts.repeats(rows, order, prefix), metric_charts.legend(rows, ""))
                    )
            yield entry.table, tuple(drawn)


def _first_failures(turns: Iterable[Turn]) -> list[tuple[RunResult, list[str]]]:
    """Return the first run without a number for each cause, and the ids of all runs with the same
    cause.
    """
    by_cause: dict[tuple[str, str], tuple[RunResult, list[str]]] = {}
    for result in (
        turn.result for turn in turns if not turn.result.is_good and turn.result.state != RUNNING
    ):
        cause = result.state, repr(result.error and result.error.as_dict())
        by_cause.setdefault(cause, (result, []))[1].append(result.run_id)
    return list(by_cause.values())


def _series(
    summary: Summary, turns: Mapping[str, Turn], references: Sequence[ReferenceTable]
) -> Iterator[_Series]:
    parts = []
    for number, (table, (name, rows)) in enumerate(
        zip(series_tables(summary), summary.of_training().by_series().items(), strict=True), start=1
    ):
        matching = tuple(reference for reference in references if reference.series == name)
        of_cells = []
        for i, row in enumerate(rows):
            of_cells.append(
                _of_cell(row, [turns[run_id] for run_id in row.run_ids], f"s{number}c{i}")
            )
        of_all = _of_series(
            rows, matching, [turns[run_id] for row in rows for run_id in row.run_ids], f"s{number}"
        )
        parts.append((table, rows, matching, of_cells, of_all))
    jobs = [
        job
        for *_, of_cells, of_all in parts
        for jobs_of_part in (*of_cells, of_all)
        for job in jobs_of_part
    ]
    drawn = (
        chart
        for share in share_out(_draw_all, jobs, worth=len(jobs) > _MANY_CHARTS, most=_PROCESSES)
        for chart in share
    )
    for table, rows, matching, of_cells, of_all in parts:
        cells = tuple(
            _Cell(row, case(row), cells_by_name(row), tuple(islice(drawn, len(jobs_of_cell))))
            for row, jobs_of_cell in zip(rows, of_cells, strict=True)
        )
        is_ideal = charts.ideal_of_one(rows, False) is not None
        yield _Series(table, cells, tuple(islice(drawn, len(of_all))), is_ideal, matching)


def _of_series(
    rows: Sequence[Row], references: Sequence[ReferenceTable], turns: Sequence[Turn], prefix: str
) -> list[_Job]:
    """Return the charts to draw of a series."""
    with_skew = [
        turn for turn in turns if turn.history.skew_s is not None and len(turn.history.nodes) > 1
    ]
    candidates: list[tuple[bool, _Job]] = [
        (True, (charts.scaling, (rows, references, "value", f"{prefix}a-"))),
        (
            any(row.speedup is not None for row in rows),
            (charts.scaling, (rows, references, "speedup", f"{prefix}b-")),
        ),
        (bool(with_skew), (charts.skew, (with_skew, f"{prefix}d-"))),
    ]
    return [job for applies, job in candidates if applies]


def _of_cell(row: Row, turns: Sequence[Turn], prefix: str) -> list[_Job]:
    """Return the charts to draw of a configuration."""
    turns = sorted(
        (turn for turn in turns if turn.result.state != RUNNING), key=lambda turn: turn.order
    )
    candidates: list[tuple[bool, _Job]] = [
        (bool(turns), (charts.repeats, (turns, row, f"{prefix}a-"))),
        (any(turn.result.tempo for turn in turns), (charts.tempo, (turns, row, f"{prefix}b-"))),
        (
            any(turn.result.use for turn in turns),
            (use_charts.use, (turns, row.unit, f"{prefix}e-")),
        ),
        (
            any(turn.history.phases or turn.history.nodes for turn in turns),
            (charts.timeline, (turns, f"{prefix}d-")),
        ),
    ]
    return [job for applies, job in candidates if applies]


def _draw_all(jobs: Sequence[_Job]) -> list[str]:
    with drawing():
        return [draw(*arguments) for draw, arguments in jobs]


_UNITS = {
    "bytes": (1 << 30, "GiB"), "mib": (1 << 10, "GiB"), "mhz": (1, "MHz"), "khz": (1000, "MHz"), "w": (1, "W"), "s": (1, "s"),
    "mbit": (1000, "Gbit/s"), "gbit": (1, "Gbit/s"),
}  # fmt: skip
"""Units that end the name of a fact, each with the divisor and the name of that which is shown."""
_NAME = re.compile(r"[a-z0-9_.]+")
_VALUES = {"''": "none", "null": "none", "[]": "none", "true": "yes", "false": "no"}


def _facts(facts: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, dict[str, list[str]]]:
    """Return the hosts by value of every fact with names in words, and values with their units."""
    shown: dict[str, dict[str, list[str]]] = {}
    for fact, by_value in facts.items():
        name, _, unit = fact.rpartition("_")
        divisor, unit_shown = _UNITS.get(unit, (0, ""))
        for value, hosts in by_value.items():
            words, text = fact, _VALUES.get(value, value)
            if name and divisor and value.replace(".", "", 1).isdecimal():
                words, text = name, f"{float(value) / divisor:.4g} {unit_shown}"
            if _NAME.fullmatch(words):  # a key that a node made up stays as it is
                words = words.replace("_", " ").replace(".", ": ")
            of_fact = shown.setdefault(words, {})
            of_fact.setdefault(text, []).extend(hosts)
    return shown


def _placements(placed: Sequence[ShapePlacement]) -> list[tuple[str, ShapePlacement, str]]:
    """Return each distinct placement with its shape and its hosts, folded."""
    found = []
    for placement in placed:
        found.append((placement.shape, placement, fold(host for host, *_ in placement.slots)))
    return found

"""The columns of a scaling table and the texts of its cells, the same in every output for people."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.analysis.past_cells import PastCell
from orchestrator.grouping import group_pairs
from orchestrator.report.text import one_line
from orchestrator.results import Interval
from orchestrator.results.diagnosis_tables import Grid
from orchestrator.results.entries import Entry, Row, Sheet
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.planned import Counts
from orchestrator.results.series import Group
from orchestrator.results.summary import Summary

NOTHING = "–"
_WIDEST = 17
"""Columns of the widest grid that is printed: all pairs of 16 nodes."""
WRAPPED = {"notes", "hardware"}
_NUMBER = re.compile(r"[^\w\s]*(?:\d[\d.,/–]*(?:e[-+]?\d+)?\W*(?:x|\s.*)?)?")
"""A cell without words: a number, with a unit or a remark behind it, or a sign for none."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a scaling table, with the text of a row in it.

    ``of_any`` is its name in a table of another metric, None for one about steps, which such a
    table lacks. A narrow terminal leaves out the columns with the lowest number of ``leaves``
    first, and those without one never. ``of_repeats``: it describes the repeats as they are; the
    page has it at the right end.
    """

    name: str
    text: Callable[[Row], str]
    of_any: str | None
    leaves: int = 0
    of_repeats: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in one table, or one grid of a sheet, ready to be printed. Every text is on one line and
    without control characters.

    The first ``keys`` columns tell its rows apart; 0 if that is not known. ``dropped`` are groups
    of columns that a narrow terminal leaves out, in this order, after those that all tables may
    lack.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...]
    simulated: bool
    columns: tuple[str, ...]
    keys: int = 0
    dropped: tuple[tuple[str, ...], ...] = ()


def has_words(title: str, cells: Iterable[str]) -> bool:
    """Return True for a column of words, which is at the left, not of numbers."""
    return title in WRAPPED or not all(map(_NUMBER.fullmatch, cells))


class Footnotes:
    """The notes of a table, each with its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def marks(self, rows: Iterable[Row]) -> str:
        """Return the numbers of the notes on some rows."""
        texts = [one_line(text) for row in rows for text in (*row.qualifications, *row.failures)]
        return " ".join(
            str(self.numbers.setdefault(text, len(self.numbers) + 1))
            for text in dict.fromkeys(texts)
        )


def series_tables(summary: Summary) -> tuple[Table, ...]:
    """Return one table per series of speeds of training, in the summary's order."""
    groups = (Group(name, (), rows) for name, rows in summary.of_training().by_series().items())
    return tuple(scaling_table(group, summary) for group in groups)


def sheet_tables(sheet: Sheet) -> tuple[Table, ...]:
    """Return a table per grid of a sheet: the first has the lines about the whole sheet, the last
    its qualifications.

    A grid that is too wide to read becomes a line of the first table that names the formats with
    the full grid.
    """
    wide = [grid for grid in sheet.grids if len(grid.columns) > _WIDEST]
    head = [", ".join([f"n={sheet.n}", *lacking(sheet)])]
    if not sheet.n:
        head.append("no good run, so there is no number; the causes are below")
    head += sheet.said
    if sheet.hardware:
        head.append(sheet.hardware)
    head += [
        f"{grid.title}: {len(grid.columns)} columns, only in --format csv and json" for grid in wide
    ]
    name = f"{title(sheet.series, sheet.simulated)} {sheet.shape}"
    grids = tuple(grid for grid in sheet.grids if grid not in wide) or (Grid("", (), ()),)
    footnotes = tuple(map(one_line, (*sheet.qualifications, *sheet.failures)))
    shown = []
    for grid in grids:
        shown.append(
            Table(
                title=one_line(f"{name}: {grid.title}" if grid.title else name),
                head=tuple(map(one_line, head)) if grid is grids[0] else (),
                rows=tuple(tuple(map(_format_value, row)) for row in grid.rows),
                footnotes=footnotes if grid is grids[-1] else (),
                simulated=sheet.simulated,
                columns=tuple(map(one_line, grid.columns)),
            )
        )
    return tuple(shown)


def _format_value(value: str | int | float | None) -> str:
    """Return a value of a grid as text: three significant digits below 10, two decimals from 10."""
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"
    return one_line(str(value))


def scaling_table(group: Group, summary: Summary) -> Table:
    """Return the table of the speeds of training of a group; values that differ are columns after
    the case.
    """
    footnotes = Footnotes()
    lines = []
    for row in group.rows:
        name, *numbers = cells(row)
        settings = (one_line(group.column(row, column)) for column in group.columns)
        lines.append((name, *settings, *numbers, footnotes.marks([row])))
    head = (_baseline_line(group, summary), *_work_lines(group.rows), *hardware_lines(group.rows))
    columns = [
        one_line(name if name not in COLUMNS else f"option {name}") for name in group.columns
    ]
    return Table(
        title=title(group.title, group.rows[0].simulated),
        head=head,
        rows=tuple(lines),
        footnotes=tuple(footnotes.numbers),
        simulated=any(row.simulated for row in group.rows),
        columns=(COLUMNS[0], *columns, *COLUMNS[1:]),
        keys=1 + len(columns),
    )


def title(series: str, simulated: bool) -> str:
    """Return the title of a series on one line, without its last word if that repeats the badge
    next to it.
    """
    return one_line(series.removesuffix(" simulated") if simulated else series)


def cells(row: Row) -> tuple[str, ...]:
    """Return a row's cells for `COLUMNS`, without the notes. A row without a good run has dashes,
    never zeros.
    """
    return tuple(column.text(row) for column in _COLUMNS)


def comparison(row: Row) -> tuple[str, str, str]:
    """Return the speedup of a row, its interval and its efficiency."""
    return number(row.speedup), reach(row.speedup_interval), share(row.efficiency)


def count(row: Row) -> str:
    """Return the number of repeats with a number, and of those without: ``3 (1 failed)``."""
    if lacking(row):
        return f"{row.n} ({', '.join(lacking(row))})"
    return str(row.n)


def cells_by_name(row: Row) -> dict[str, str]:
    """Return a row's cells by column, without the notes; each on one line and without control
    characters.

    For a metric that is no speed, the columns of speeds have the names of any value, and those
    about steps are left out.
    """
    names = {column: column.name if row.is_speed else column.of_any for column in _COLUMNS}
    return {name: one_line(column.text(row)) for column, name in names.items() if name}


def details(row: Row) -> str:
    """Return details beyond the table: the deviation of the repeats, step times and the speed of a
    rank.
    """
    words = []
    if row.deviation is not None:
        words.append(f"standard deviation {number(row.deviation)} {row.unit}")
    if row.step_percentiles:
        p50, p90, p99 = (number(1e3 * seconds) for seconds in row.step_percentiles)
        words.append(f"step time in ms p50 {p50}, p90 {p90}, p99 {p99}")
    words += _steady_words(row)
    if row.per_rank is not None and row.world_size > 1:
        words.append(f"{number(row.per_rank)} {row.unit} per rank")
    return "; ".join(words)


def _steady_words(row: Row) -> list[str]:
    """Return the begin of the repeats' steady state: ``steady from step 3 to 11``; empty if
    unknown.
    """
    starts = [repeat.steady.first_step for repeat in row.repeats if repeat.steady]
    firsts = sorted(start for start in starts if start is not None)
    words = []
    if firsts:
        ends = dict.fromkeys((firsts[0], firsts[-1]))
        words.append(f"steady from step {' to '.join(map(str, ends))}")
    if missing := len(starts) - len(firsts):
        words.append(f"no steady state in {missing} of {len(starts)} runs")
    return words


def case(row: Row) -> str:
    """Return the name of a row in its series: the shape, and the run length if rows differ in it."""
    lengths = [
        f"{name}={row.options[name]}"
        for name in ("steps", "warmup_steps", "timeout_s")
        if name in row.options
    ]
    return " ".join([row.shape, *lengths])


def lacking(entry: Entry) -> list[str]:
    """Return the counts of a cell's runs without a number, each with its name: ``2 never run``."""
    return Counts(
        entry.planned, entry.n, entry.failed, entry.interrupted, entry.running, entry.never_run
    ).words()


def repeats(good: int, failed: int) -> str:
    """Return the number of good runs, and of failed ones if there are any."""
    return f"{good} ({failed} failed)" if failed else str(good)


def number(value: float | None) -> str:
    """Return a number with two decimals, below 1 with three significant digits, a dash for None."""
    return NOTHING if value is None else format_number(value)


def share(value: float | None) -> str:
    """Return a share of 1 in percent, a dash for None."""
    return NOTHING if value is None else f"{value:.1%}"


def reach(interval: Interval | None) -> str:
    """Return both ends of an interval, a dash for None."""
    if interval is None:
        return NOTHING
    return f"{number(interval.low)} to {number(interval.high)}"


def result(cell: PastCell | None) -> str:
    """Return the value of a bench in a list, with the case and the key of its metric, such as
    ``4n8g: 23774.32 samples/s``; empty for None.
    """
    if cell is None:
        return ""
    key = json.loads(cell.spec).get("key", {})
    place = ", ".join([cell.shape, *(f"{name} {part}" for name, part in key.items())])
    return f"{place}: {number(cell.value)} {cell.unit}"


_COLUMNS = (
    Column("case", case, "case"),
    Column("n", count, "n"),
    Column("average_speed", lambda row: number(row.average), "average", leaves=2, of_repeats=True),
    Column("median_speed", lambda row: number(row.median), "median", leaves=3, of_repeats=True),
    Column("min", lambda row: number(row.minimum), "min", leaves=1, of_repeats=True),
    Column("max", lambda row: number(row.maximum), "max", leaves=1, of_repeats=True),
    # What the speedup and both intervals belong to.
    Column("speed", lambda row: number(row.value), "value"),
    Column("speed 95%", lambda row: reach(row.interval), "95%", leaves=7),
    # The time of a step at that speed, and the speed over the ranks.
    Column(
        "ms/step",
        lambda row: number(None if row.step_s is None else 1e3 * row.step_s),
        None,
        leaves=5,
    ),
    Column("per rank", lambda row: number(row.per_rank), None, leaves=4),
    Column("speedup", lambda row: number(row.speedup), "speedup"),
    Column("speedup 95%", lambda row: reach(row.speedup_interval), "speedup 95%", leaves=6),
    Column("efficiency", lambda row: share(row.efficiency), "efficiency", leaves=8),
)
"""The columns of every scaling table, in order; speeds are in the unit of the table.

A narrow terminal leaves out first what others imply. Every row has a speed, so that its interval
stays longer than that of the speedup; efficiency goes last.
"""
COLUMNS = (*(column.name for column in _COLUMNS), "notes")
"""Their names. ``notes`` has the numbers of footnotes."""
LEAVING = tuple(
    tuple(column.name for column in _COLUMNS if column.leaves == turn)
    for turn in sorted({column.leaves for column in _COLUMNS if column.leaves})
)
"""The groups of columns that a narrow terminal leaves out, in this order."""
OF_REPEATS = {
    name: column.of_any or column.name
    for column in _COLUMNS
    if column.of_repeats
    for name in (column.name, column.of_any)
    if name
}
"""The columns that describe the repeats as they are, under both names, each with its shorter one:
``average`` for ``average_speed``. One that tables of other metrics lack keeps its name.
"""


def _baseline_line(group: Group, summary: Summary) -> str:
    series = dict.fromkeys(row.series for row in group.rows)
    measured = [name for name in series if summary.divisor(name) is not None]
    if not measured:
        return "no baseline: no speedup"
    base = summary.baseline[measured[0]]
    if len(series) == 1:
        statistic = " (median)" if summary.of_medians else ""
        return f"baseline {base.shape}: {number(summary.divisor(measured[0]))} {base.unit}{statistic}, n={base.n}"
    shapes = dict.fromkeys(summary.baseline[name].shape for name in measured)
    # With strong scaling, a column may follow from the shape.
    alike = []
    for column in group.columns:
        values = {(row.series, group.column(row, column)) for row in group.rows}
        if len(values) == len(series):
            alike.append(column)
    of_same = f" of the same {', '.join(map(one_line, alike))}" if alike else ""
    same = f"baseline {' or '.join(shapes)}{of_same}"
    if len(measured) == len(series):
        return same
    return f"{same}; without one, no speedup"


def _work_lines(rows: Sequence[Row]) -> list[str]:
    """Return the line that says what speeds of a language model count, and how its work grows with
    the shape. A program without tokens has it only with strong scaling."""
    lengths = ", ".join(map(str, sorted({row.tokens for row in rows} - {0})))
    batches = ", ".join(map(str, sorted({row.global_batch for row in rows})))
    strong = f"strong scaling: a global batch of {batches} in every shape"
    scaling = "weak scaling: each rank computes as much in every shape"
    if rows[0].scaling == "strong":
        scaling = strong
    words = [f"speeds in {rows[0].unit}, of sequences of {lengths} tokens"] if lengths else []
    if lengths or rows[0].scaling == "strong":
        return ["; ".join([*words, scaling])]
    return []


def hardware_lines(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return devices and versions: one line if all rows agree, else one line for each distinct
    text.
    """
    shapes = group_pairs((one_line(row.hardware), row.shape) for row in rows if row.hardware)
    if len(shapes) == 1:
        return tuple(shapes)
    return tuple(f"{', '.join(names)}: {hardware}" for hardware, names in shapes.items())

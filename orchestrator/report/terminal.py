"""A summary for a terminal, with rich. Nothing from a node is read as markup, and no control character of it is sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.report.cells import Table, sheet_tables, tables
from orchestrator.report.text import one_line
from orchestrator.summary import Summary

__all__ = ["fitting", "render"]

# What a narrow terminal can do without, first things first. Median, speedup and notes always stay.
_DROPPED = (("min", "max"), ("average_speed",), ("efficiency",), ("speed 95%",), ("speedup 95%",))
_DROPPED_OF_SHEETS = (
    tuple(f"busbw {end} {form}" for end in ("low", "high") for form in ("out", "in")),
    ("n out", "n in"),
    ("algbw out", "algbw in"),
)

_WORDS = {"case", "notes", "when", "bench", "hardware"}
_WRAPPED = {"notes", "hardware"}
_UNBOUNDED = 10_000


def render(summary: Summary, console: Console) -> None:
    """Print one table per series and per grid of a sheet, its footnotes, and the summary's notes, within the console."""
    for table in (*tables(summary), *(table for sheet in summary.sheets for table in sheet_tables(sheet))):
        console.print(_drawn(table, console), soft_wrap=False)
        for number, footnote in enumerate(table.footnotes, start=1):
            console.print(_hanging(f"{number}", footnote))
        console.print()
    for note in summary.notes:
        console.print(_hanging("·", one_line(note)))
    if not (summary.rows or summary.sheets or summary.notes):
        console.print(Text("no runs"))


def _drawn(table: Table, console: Console) -> Group:
    title = Text(table.title, style="bold")
    if table.simulated:
        title.append("  ").append(" SIMULATED ", style="reverse")
    drawn = fitting(table.columns, table.rows, (*_DROPPED, *_DROPPED_OF_SHEETS), console)
    return Group(title, *(Text(line, style="dim") for line in table.head), drawn)


def fitting(
    titles: Sequence[str], rows: Sequence[Sequence[str]], dropped: Sequence[Collection[str]], console: Console
) -> RichTable:
    """Return a table as wide as the console allows: without the columns ``dropped`` names, group by group, until it fits."""
    columns = list(titles)
    drawn = _columns(titles, rows, columns)
    for names in dropped:
        if console.measure(drawn, options=console.options.update(width=_UNBOUNDED)).maximum <= console.width:
            break
        columns = [name for name in columns if name not in names]
        drawn = _columns(titles, rows, columns)
    return drawn


def _columns(titles: Sequence[str], rows: Sequence[Sequence[str]], columns: list[str]) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    wanted = [titles.index(name) for name in columns]
    for name in columns:
        drawn.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=name not in _WRAPPED)
    for row in rows:
        drawn.add_row(*(Text(row[index]) for index in wanted))
    return drawn


def _hanging(mark: str, text: str) -> Padding | RichTable:
    """Return a mark and a text whose further lines are indented."""
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(justify="right", width=2)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style="dim"), Text(text))
    return grid

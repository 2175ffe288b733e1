"""A summary for a terminal, with rich. Nothing from a node is read as markup, and no control character of it is sent."""

from __future__ import annotations

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.report.cells import COLUMNS, Table, tables
from orchestrator.report.text import one_line
from orchestrator.summary import Summary

__all__ = ["render"]

# What a narrow terminal can do without, first things first. Median, speedup and notes always stay.
_DROPPED = (("min", "max"), ("average_speed",), ("efficiency",), ("speed 95%",), ("speedup 95%",))

_UNBOUNDED = 10_000


def render(summary: Summary, console: Console) -> None:
    """Print one table per series, its footnotes, and the summary's notes, at most as wide as the console."""
    for table in tables(summary):
        console.print(_drawn(table, console), soft_wrap=False)
        for number, footnote in enumerate(table.footnotes, start=1):
            console.print(_hanging(f"{number}", footnote))
        console.print()
    for note in summary.notes:
        console.print(_hanging("·", one_line(note)))
    if not summary.rows and not summary.notes:
        console.print(Text("no runs"))


def _drawn(table: Table, console: Console) -> Group:
    title = Text(table.title, style="bold")
    if table.simulated:
        title.append("  ").append(" SIMULATED ", style="reverse")
    columns = list(COLUMNS)
    drawn = _columns(table, columns)
    for names in _DROPPED:
        if console.measure(drawn, options=console.options.update(width=_UNBOUNDED)).maximum <= console.width:
            break
        columns = [name for name in columns if name not in names]
        drawn = _columns(table, columns)
    return Group(title, *(Text(line, style="dim") for line in table.head), drawn)


def _columns(table: Table, columns: list[str]) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    wanted = [COLUMNS.index(name) for name in columns]
    for name in columns:
        drawn.add_column(name, justify="left" if name in ("case", "notes") else "right", no_wrap=name != "notes")
    for row in table.rows:
        drawn.add_row(*(Text(row[index]) for index in wanted))
    return drawn


def _hanging(mark: str, text: str) -> Padding | RichTable:
    """Return a mark and a text whose further lines are indented."""
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(justify="right", width=2)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style="dim"), Text(text))
    return grid

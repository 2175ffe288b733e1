"""A summary for a terminal, with rich. Nothing from a node is read as markup, and no control character of it is sent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.report.cells import Table, sheet_tables, tables
from orchestrator.report.text import one_line
from orchestrator.results.summary import Summary

__all__ = ["fitting", "render"]

# What a narrow terminal can do without, first things first. Median, speedup and notes always stay; efficiency while it can,
# since it tells at a glance what the others make one count up.
_DROPPED = (("min", "max"), ("average_speed",), ("speed 95%",), ("speedup 95%",), ("efficiency",))
_DROPPED_OF_SHEETS = (
    tuple(f"busbw {end} {form}" for end in ("low", "high") for form in ("out", "in")),
    ("n out", "n in"),
    ("algbw out", "algbw in"),
)

_WORDS = {"case", "notes", "when", "bench", "hardware", "table"}
_WRAPPED = {"notes", "hardware"}
_GAP = 2


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
    elsewhere = "orch summarize --format markdown, csv or json"
    drawn = fitting(table.columns, table.rows, (*_DROPPED, *_DROPPED_OF_SHEETS), console, elsewhere)
    return Group(title, *(Text(line, style="dim") for line in table.head), drawn)


def fitting(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    dropped: Sequence[Collection[str]],
    console: Console,
    elsewhere: str,
) -> Group:
    """Return a table as wide as the console allows: without the columns ``dropped`` names, group by group, until it fits.

    Below it stands which ones these are, and that ``elsewhere`` has them. What is too wide all the same goes on in a further
    table with the first column once more: no number is ever cut.
    """
    columns = {title: [title, *(row[place] for row in rows)] for place, title in enumerate(titles)}
    needed, kept = _width(columns.values()), dict(columns)
    for names in dropped:
        if _width(kept.values()) <= console.width:
            break
        kept = {name: cells for name, cells in kept.items() if name not in names}
    missing = ", ".join(name for name in columns if name not in kept)
    said = f"hidden at {console.width} columns: {missing}; COLUMNS={needed} shows them, or {elsewhere}"
    return Group(*(_columns(some) for some in _stacked(kept, console.width)), *[Text(said, style="dim")] * bool(missing))


def _stacked(columns: Mapping[str, list[str]], width: int) -> Iterator[dict[str, list[str]]]:
    """Yield the columns, as many at a time as fit, each time with the first. What may wrap needs room for its longest word."""
    first, *rest = columns
    while True:
        taken = [first]
        while rest:
            some = [columns[name] if name not in _WRAPPED else _split(columns[name]) for name in (*taken, rest[0])]
            if len(taken) > 1 and _width(some) > width:
                break
            taken.append(rest.pop(0))
        yield {name: columns[name] for name in taken}
        if not rest:
            return


def _split(cells: Sequence[str]) -> list[str]:
    return [word for cell in cells for word in cell.split()]


def _width(columns: Collection[Sequence[str]]) -> int:
    return sum(max(map(cell_len, cells), default=0) for cells in columns) + _GAP * (len(columns) - 1)


def _columns(columns: Mapping[str, Sequence[str]]) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        drawn.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=name not in _WRAPPED)
    for row in list(zip(*columns.values(), strict=True))[1:]:
        drawn.add_row(*map(Text, row))
    return drawn


def _hanging(mark: str, text: str) -> Padding | RichTable:
    """Return a mark and a text whose further lines are indented."""
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(justify="right", width=2)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style="dim"), Text(text))
    return grid

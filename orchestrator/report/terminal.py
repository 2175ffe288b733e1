"""A summary for a terminal, with rich. Text from nodes is never read as markup, and its control
characters are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.report.cells import LEAVING, NOTHING, WRAPPED, Table, has_words, sheet_tables
from orchestrator.report.tables import tables
from orchestrator.report.text import one_line
from orchestrator.results.summary import Summary

_GAP = 2


def say(console: Console, text: str, style: str = "") -> None:
    """Print one line, which the terminal wraps."""
    console.print(Text(one_line(text), style=style), soft_wrap=True)


def render(summary: Summary, console: Console) -> None:
    """Print the label, the tables with their footnotes, then the notes, as wide as the console."""
    if summary.label:
        console.print(Text(one_line(summary.label), style="bold underline"))
    for table in (
        *tables(summary),
        *(table for sheet in summary.sheets for table in sheet_tables(sheet)),
    ):
        console.print(_draw_table(table, console), soft_wrap=False)
        for number, footnote in enumerate(table.footnotes, start=1):
            console.print(_hanging(f"{number}", footnote))
        console.print()
    for note in summary.notes:
        console.print(_hanging("·", one_line(note)))
    if not (summary.rows or summary.sheets or summary.notes):
        console.print(Text("no runs"))


def _draw_table(table: Table, console: Console) -> Group:
    title = Text(table.title, style="bold")
    if table.simulated:
        title.append("  ").append(" SIMULATED ", style="reverse")
    elsewhere = "orch summarize --format markdown, csv or json"
    drawn = fitting(
        table.columns, table.rows, (*LEAVING, *table.dropped), console, elsewhere, table.keys
    )
    return Group(title, *(Text(line, style="dim") for line in table.head), drawn)


def fitting(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    dropped: Sequence[Collection[str]],
    console: Console,
    elsewhere: str,
    keys: int = 0,
) -> Group:
    """Return a table as wide as the console allows: columns without any value, then the groups of
    columns in ``dropped``, are left out one by one until it fits.

    A line below lists the hidden columns and ``elsewhere``, a command or option that shows them. If
    the rest is still too wide, it continues in further tables that repeat the columns that tell the
    rows apart, the first ``keys`` if that is known: no number is ever cut.
    """
    if not titles:
        return Group()
    columns = {}
    for place, title in enumerate(titles):
        columns[title] = [title, *(row[place] for row in rows)]
    needed, kept = _width(columns.values()), dict(columns)
    empty = [name for name, (_, *cells) in columns.items() if set(cells) == {NOTHING}]
    for names in (empty, *dropped):
        if _width(kept.values()) <= console.width:
            break
        kept = {name: cells for name, cells in kept.items() if name not in names}
    stacked: list[RichTable | Text] = [
        _columns(part, console.width)
        for part in _stack_columns(kept, keys or _keys(rows), console.width)
    ]
    hidden = ", ".join(name for name in columns if name not in kept)
    if hidden:
        wider = (
            "" if console.is_dumb_terminal else f"COLUMNS={needed} shows them, or "
        )  # which is always 80 wide for rich
        note = f"hidden at {console.width} columns: {hidden}; {wider}{elsewhere}{'' if wider else ' shows them'}"
        stacked.append(Text(note, style="dim"))
    return Group(*stacked)


def _keys(rows: Sequence[Sequence[str]]) -> int:
    """Return how many of the first columns tell all rows apart; 1 if three of them do not."""
    for count in range(1, 4):
        if len({tuple(row[:count]) for row in rows}) == len(rows):
            return count
    return 1


def _stack_columns(
    columns: Mapping[str, list[str]], keys: int, width: int
) -> Iterator[dict[str, list[str]]]:
    """Yield as many columns at a time as fit, always with the first ``keys``. Columns that wrap
    need the width of their longest word."""
    first, rest = list(columns)[:keys], list(columns)[keys:]
    while True:
        names = list(first)
        while rest:
            cells = [
                columns[name] if name not in WRAPPED else _split(columns[name])
                for name in (*names, rest[0])
            ]
            if len(names) > len(first) and _width(cells) > width:
                break
            names.append(rest.pop(0))
        yield {name: columns[name] for name in names}
        if not rest:
            return


def _split(cells: Sequence[str]) -> list[str]:
    return [word for cell in cells for word in cell.split()]


def _width(columns: Collection[Sequence[str]]) -> int:
    return sum(max(map(cell_len, cells), default=0) for cells in columns) + _GAP * (
        len(columns) - 1
    )


def _columns(columns: Mapping[str, Sequence[str]], width: int) -> RichTable:
    """Return a table; if it is still wider than ``width``, break its titles."""
    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    is_wide = (
        _width([_split(cells) if name in WRAPPED else cells for name, cells in columns.items()])
        > width
    )
    for name, cells in columns.items():
        title = _broken(name, max(map(cell_len, cells[1:]), default=0)) if is_wide else name
        is_text = has_words(name, cells[1:])
        drawn.add_column(title, justify="left" if is_text else "right", no_wrap=name not in WRAPPED)
    for row in list(zip(*columns.values(), strict=True))[1:]:
        drawn.add_row(*map(Text, row))
    return drawn


def _broken(title: str, width: int) -> str:
    """Return a title broken at spaces and after ``_``, into lines of this width or of its longest
    part.
    """
    parts = re.findall("[^_ ]*_|[^_ ]+ ?", title)
    most, lines = max(width, *(cell_len(part.rstrip()) for part in parts)), [""]
    for part in parts:
        if lines[-1] and cell_len((lines[-1] + part).rstrip()) > most:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _hanging(mark: str, text: str) -> Padding | RichTable:
    """Return a mark and a text with a hanging indent."""
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(justify="right", width=2)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style="dim"), Text(text))
    return grid

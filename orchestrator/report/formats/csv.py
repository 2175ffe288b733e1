"""A summary as CSV for spreadsheets: one line per configuration, numbers as in the tables, and no
text that a spreadsheet would execute as a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from orchestrator.report.text import one_line
from orchestrator.results.diagnosis_tables import Grid
from orchestrator.results.entries import Entry, Percentiles, Row, Sheet
from orchestrator.results.numbers.intervals import Interval
from orchestrator.results.summary import Summary

_TEXTS = ("hardware", "qualifications", "failures", "run_ids")
"""The last columns of every line; a sheet's columns follow its table."""
_AFTER = {"loader": "dtype", "batch_size": "device"}
_SHOWN = {
    declared.name: declared.metadata["csv"]
    for declared in (*fields(Row), *fields(Sheet))
    if declared.metadata["csv"]
}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NO_GRID = Grid("", (), ((),))


def render(summary: Summary) -> str:
    """Return a header and one line per row. Values are in the unit of their metric; an empty field
    is a number that does not exist. Intervals are there as text, and their ends as numbers in
    ``…_low`` and ``…_high``.

    Each setting that differs between configurations has a column ``options.<name>`` too, and each
    key ``key.<name>``.

    Rows of sheets follow after an empty line, below their own header; their numbers are unrounded.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if summary.rows or not summary.sheets:
        columns = [*_columns(Row, summary.rows), *map(_Column, _TEXTS, _TEXTS)]
        writer.writerow(_text(column.name) for column in columns)
        for row in summary.rows:
            writer.writerow([column.of(row) for column in columns])
    facts = list(_columns(Entry, summary.sheets))
    names = [_text(column.name) for column in facts]
    grids = [grid for sheet in summary.sheets for grid in sheet.grids or [_NO_GRID]]
    for head in dict.fromkeys(grid.columns for grid in grids):
        if out.tell():
            out.write("\n")
        writer.writerow([*names, "table", *map(_text, head), "said", *_TEXTS])
        writer.writerows(line for sheet in summary.sheets for line in _sheet(sheet, facts, head))
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: a field of an entry, or a ``part`` of it, such as an end of an interval."""

    name: str
    field: str
    part: str = ""

    def of(self, entry: Entry) -> str:
        """Return its text of an entry, empty for None."""
        value = getattr(entry, self.field)
        show_value = _SHOWN.get(self.field, _SHOWN["step_s"])
        if isinstance(value, Mapping) and self.part:
            value, show_value = value.get(self.part), str
        elif value is not None and self.part:
            value = getattr(value, self.part)
        if value is None:
            return ""
        if isinstance(value, Interval):
            return f"{show_value(value.low)} to {show_value(value.high)}"
        return _text(show_value(value))


def _columns(kind: type[Entry], entries: Sequence[Entry]) -> Iterator[_Column]:
    """Yield the columns of a kind of entry, except `_TEXTS`; columns of parts follow their field."""
    names = [declared.name for declared in fields(kind)]
    for name, before in _AFTER.items() if kind is Row else ():
        names.remove(name)
        names.insert(names.index(before) + 1, name)
    for name in names:
        if name not in _SHOWN or name in _TEXTS:
            continue
        yield _Column(name, name)
        if name == "options":
            yield from (
                _Column(f"options.{option}", name, option) for option in _differing(entries)
            )
        elif name == "key":
            keys = dict.fromkeys(key for row in entries if isinstance(row, Row) for key in row.key)
            yield from (_Column(f"key.{key}", name, key) for key in keys)
        elif name.endswith("interval"):
            yield from (_Column(f"{name}_{end}", name, end) for end in ("low", "high"))
        elif name == "step_s":
            for part in Percentiles._fields:
                yield _Column(f"step_{part}", "step_percentiles", part)


def _differing(entries: Sequence[Entry]) -> list[str]:
    """Return the settings whose values differ."""
    settings = dict.fromkeys(name for entry in entries for name in entry.options)
    differing = []
    for name in settings:
        if len({repr(entry.options.get(name)) for entry in entries}) > 1:
            differing.append(name)
    return differing


def _sheet(sheet: Sheet, facts: Sequence[_Column], columns: tuple[str, ...]) -> Iterator[list[str]]:
    before = [column.of(sheet) for column in facts]
    after = [_Column(name, name).of(sheet) for name in ("said", *_TEXTS)]
    for grid in sheet.grids or [_NO_GRID]:
        for row in grid.rows if grid.columns == columns else ():
            yield [*before, _text(grid.title), *map(_plain, row), *after]


def _plain(value: str | int | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _text(value)
    return repr(value)


def _text(text: str) -> str:
    """Return a text that no spreadsheet treats as a formula: a leading apostrophe, which is not
    shown, makes it text.

    A number, such as -1 in a reading, is data and stays as it is.
    """
    shown = one_line(text)
    if _NUMBER.fullmatch(shown):
        return shown
    is_formula = text.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{shown}" if is_formula else shown

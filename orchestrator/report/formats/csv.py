"""A summary as CSV for spreadsheets: one line per configuration, numbers as in the tables, and no
text that a spreadsheet would execute as a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields

from orchestrator.report.cells import step_percentiles
from orchestrator.report.text import one_line
from orchestrator.results import Interval
from orchestrator.results.diagnosis_tables import Grid
from orchestrator.results.entries import Entry, Row, Sheet
from orchestrator.results.numbers.rounding import written
from orchestrator.results.numbers.throughput import published
from orchestrator.results.summary import Summary

__all__ = ["render"]

_FIELDS = (
    "framework", "model", "dtype", "loader", "device", "batch_size", "nodes", "gpus", "world_size", "options", "simulated",
    "n", "planned", "failed", "interrupted", "running", "never_run",
    "metric", "unit", "better", "primary", "says", "key", "average", "median", "minimum", "maximum", "deviation",
    "value", "interval", "interval_low", "interval_high",
    "speedup", "speedup_interval", "speedup_interval_low", "speedup_interval_high",
    "efficiency", "efficiency_interval", "efficiency_interval_low", "efficiency_interval_high", "step_s",
    "step_p50_s", "step_p90_s", "step_p99_s", "per_rank", "repeats",
    "hardware", "qualifications", "failures", "run_ids",
)  # fmt: skip
_TEXTS = ("hardware", "qualifications", "failures", "run_ids")
_FACTS = tuple(
    name for name in _FIELDS if name in {field.name for field in fields(Entry)}.difference(_TEXTS)
)
"""The first columns of a line of a sheet; the last ones are ``said`` and the texts of a row."""


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
        names = _with_keys(_with_options(_FIELDS, summary.rows), summary.rows)
        writer.writerow(map(_text, names))
        writer.writerows([_field(row, name) for name in names] for row in summary.rows)
    facts = _with_options(_FACTS, summary.sheets)
    for columns in dict.fromkeys(
        grid.columns for sheet in summary.sheets for grid in sheet.grids or [_NO_GRID]
    ):
        if out.tell():
            out.write("\n")
        writer.writerow([*map(_text, facts), "table", *map(_text, columns), "said", *_TEXTS])
        writer.writerows(line for sheet in summary.sheets for line in _sheet(sheet, facts, columns))
    return out.getvalue()


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NO_GRID = Grid("", (), ((),))
_OPTION = "options."
_KEY = "key."
_ENDS = ("low", "high")
_PERCENTILES = ("step_p50_s", "step_p90_s", "step_p99_s")


def _with_options(names: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    """Return the names of columns with one for each setting whose values differ, after ``options``."""
    settings = dict.fromkeys(name for entry in entries for name in entry.options)
    differing = [
        name for name in settings if len({repr(entry.options.get(name)) for entry in entries}) > 1
    ]
    place = names.index("options") + 1
    return [*names[:place], *(f"{_OPTION}{name}" for name in differing), *names[place:]]


def _with_keys(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return the names of columns with one for each key of a metric, after ``key``."""
    place = names.index("key") + 1
    return [
        *names[:place],
        *dict.fromkeys(f"{_KEY}{name}" for row in rows for name in row.key),
        *names[place:],
    ]


def _sheet(sheet: Sheet, names: Sequence[str], columns: tuple[str, ...]) -> Iterator[list[str]]:
    facts = [_field(sheet, name) for name in names]
    texts = [_field(sheet, name) for name in ("said", *_TEXTS)]
    for grid in sheet.grids or [_NO_GRID]:
        for row in grid.rows if grid.columns == columns else ():
            yield [*facts, _text(grid.title), *(_plain(value) for value in row), *texts]


def _plain(value: str | int | float | None) -> str:
    if value is None:
        return ""
    return _text(value) if isinstance(value, str) else repr(value)


def _field(row: Entry, name: str) -> str:
    if name.startswith(_OPTION):
        option = row.options.get(name.removeprefix(_OPTION))
        return "" if option is None else _text(str(option))
    if name in _PERCENTILES:
        percentiles = step_percentiles(row) if isinstance(row, Row) else None
        return f"{percentiles[_PERCENTILES.index(name)]:.6g}" if percentiles else ""
    if name == "repeats" and isinstance(row, Row):
        return _text("; ".join(f"{repeat.value:.6g}" for repeat in row.repeats))
    if name.startswith(_KEY):
        return _text(str(row.key.get(name.removeprefix(_KEY), ""))) if isinstance(row, Row) else ""
    interval, _, end = name.rpartition("_")
    value = getattr(row, interval if end in _ENDS else name)
    if end in _ENDS and isinstance(value, Interval):
        value = getattr(value, end)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if name == "step_s":
        return f"{value:.6g}"
    shown = _share if name.startswith("efficiency") else written
    if isinstance(value, float):
        return shown(value)
    if isinstance(value, Interval):
        return f"{shown(value.low)} to {shown(value.high)}"
    if name in ("options", "key"):
        value = tuple(f"{key}={option}" for key, option in value.items() if option is not None)
    return _text("; ".join(value) if isinstance(value, tuple) else str(value))


def _share(value: float) -> str:
    return f"{published(value, 4):.4f}"


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

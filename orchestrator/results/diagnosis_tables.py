"""Tables of measurements that are not speeds, with their notes: what each kind of measurement makes
of its readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: column names with units, and rows of unrounded numbers, texts, or None for a missing
    value.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Content:
    """The results of the good runs of a cell: tables, lines to show above them (``said``), and a
    line for each slow node or link (``culprits``)."""

    grids: tuple[Grid, ...] = ()
    said: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()


Repeats = Sequence[tuple[int, Sequence[Any]]]
"""The number and the readings of each good repeat."""

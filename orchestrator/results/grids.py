"""Tables of numbers that are no speeds, and what is said of them: what a kind of measurement makes of its readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Content", "Grid", "Repeats"]

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: names of columns with their units, and rows of numbers, unrounded, of texts, or of None where there is none."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Content:
    """What the good runs of a cell amount to: tables, lines that are said above them, what qualifies them, and a line for each
    node or link that is unfit."""

    grids: tuple[Grid, ...] = ()
    said: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()


Repeats = Sequence[tuple[int, Sequence[Any]]]
"""The number and the readings of each good repeat."""

"""What a store has, for a terminal: one line per archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from orchestrator.report.terminal import fitting
from orchestrator.report.text import one_line

__all__ = ["render"]

_COLUMNS = ("when", "bench", "label", "runs", "measures", "MB", "signed", "seal")
_DROPPED = (("MB",), ("when",), ("signed",), ("label",))
_SHOWN_DIGITS = 12


def render(rows: Sequence[Mapping[str, Any]], console: Console, elsewhere: str) -> None:
    """Print a table as wide as the console; ``elsewhere`` is the command that shows what it leaves
    out.
    """
    console.print(
        fitting(_COLUMNS, list(map(_texts, rows)), _DROPPED, console, elsewhere, keys=2),
        soft_wrap=False,
    )


def _texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    when, counts = row["created"][:16].replace("T", " "), f"{row['measured']} of {row['runs']}"
    size = f"{row['size_bytes'] / 1e6:.1f}"
    measures, seal = ", ".join(row["measures"]), row["seal"][:_SHOWN_DIGITS]
    texts = (when, row["id"], row["label"], counts, measures, size, row["signed"], seal)
    return tuple(map(one_line, texts))

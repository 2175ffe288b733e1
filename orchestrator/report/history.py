"""The history of a project for a terminal and for programs: one line per configuration and bench, equal specs together."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from orchestrator.analysis.history import History, PastCell
from orchestrator.report.cells import number, reach, repeats
from orchestrator.report.terminal import fitting
from orchestrator.report.text import one_line
from orchestrator.results.entries import SPEED

__all__ = ["document", "render"]

SCHEMA = 4
"""1: first version. 2: benches without speeds. 3: labels. 4: metrics, each cell with its unit."""
_COLUMNS = ("when", "bench", "case", "n", "value", "95%", "notes", "hardware")
_NOTES = "notes: how many a number has; orch summarize BENCH and orch history --json show them"
_DROPPED = (("hardware",), ("when",), ("95%",))


def render(cells: Sequence[PastCell], console: Console) -> None:
    """Print a table per series, as wide as the console; ``notes`` is the number of qualifications.

    Cells of equal specs are in one table: that of the newest one, because a series names only what differs within its bench.
    Cells with other units have a table of their own.
    """
    newest = {cell.spec: _title(cell) for cell in cells}
    for title in sorted(set(newest.values()), key=_in_order):
        rows = sorted((cell for cell in cells if newest[cell.spec] == title), key=lambda cell: (len(cell.shape), cell.shape))
        console.print(Text(one_line(title), style="bold"))
        console.print(
            fitting(_COLUMNS, [_row(cell) for cell in rows], _DROPPED, console, "orch history --json"), soft_wrap=False
        )
        console.print()
    if any(cell.qualifications for cell in cells):
        console.print(Text(_NOTES, style="dim"))


def _title(cell: PastCell) -> str:
    return cell.series if cell.metric == SPEED else f"{cell.series}, {cell.unit}"


def _in_order(series: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts series with the numbers in them by size."""
    words = re.split("([0-9]+)", series)
    return [(word.isdecimal(), int(word) if word.isdecimal() else 0, word) for word in words]


def document(cells: Sequence[PastCell], whole: History) -> str:
    """Return one JSON document, ASCII only: cells oldest first, numbers unrounded, damage by bench or run, and what benches
    without speeds have measured."""
    value = {"schema": SCHEMA, "cells": [asdict(cell) for cell in cells], "damaged": dict(whole.damaged)}
    value |= {"speedless": dict(whole.speedless)}
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _row(cell: PastCell) -> tuple[str, ...]:
    when = cell.created[:16].replace("T", " ")
    numbers = (repeats(cell.n, cell.failed), number(cell.value), reach(cell.interval))
    bench = f"{cell.bench_id} {cell.label}" if cell.label else cell.bench_id
    texts = (when, bench, cell.shape, *numbers, str(len(cell.qualifications)), cell.hardware)
    return tuple(map(one_line, texts))

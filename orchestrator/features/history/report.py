"""The history of a project for a terminal and for programs: one line per configuration and bench,
equal specs together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from orchestrator.analysis.past_cells import History, PastCell, in_title_order, title_of
from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold
from orchestrator.record.past_acceptance import PastAcceptance
from orchestrator.report.cells import number, reach, repeats
from orchestrator.report.terminal import fitting, say
from orchestrator.report.text import one_line
from orchestrator.results.entries import SPEED

SCHEMA = 6
"""1: first version. 2: benches without speeds. 3: labels. 4: metrics, each cell with its unit. 5:
seals of the benches of a store. 6: acceptances."""
_COLUMNS = ("when", "bench", "case", "n", "value", "95%", "notes", "hardware")
_NOTES = "notes: how many a number has; orch summarize BENCH and orch history --json show them"
_DROPPED = (("hardware",), ("notes",), ("when",), ("95%",))
_SHOWN_FAILED = 3
"""Nodes, links and clusters that failed an acceptance that a terminal names, with the reason of
each.
"""


def render(cells: Sequence[PastCell], console: Console) -> None:
    """Print a table per series, as wide as the console; the column ``notes`` counts qualifications.

    Cells of equal specs share the newest cell's table, because a series names only the differences
    within its bench. Cells with other units have a table of their own.
    """
    newest = {cell.spec: cell for cell in cells}
    titles = {spec: title_of(cell) for spec, cell in newest.items()}
    for title in in_title_order(tuple(newest.values())):
        rows = sorted(
            (cell for cell in cells if titles[cell.spec] == title),
            key=lambda cell: (len(cell.shape), cell.shape),
        )
        # The title of a table of another metric ends in its unit.
        value = rows[0].unit if rows[0].metric == SPEED else "value"
        columns = [value if name == "value" else name for name in _COLUMNS]
        console.print(Text(one_line(title), style="bold"))
        console.print(
            fitting(columns, list(map(_row, rows)), _DROPPED, console, "orch history --json"),
            soft_wrap=False,
        )
        console.print()
    if any(cell.qualifications for cell in cells):
        console.print(Text(_NOTES, style="dim"))


def render_acceptances(accepted: Sequence[PastAcceptance], console: Console) -> None:
    """Print a list of acceptances for each set of hosts, oldest first, with failed and open
    verdicts.
    """
    by_hosts = group_pairs((fold(sorted(past.hosts)), past) for past in accepted)
    for hosts, of_hosts in by_hosts.items():
        console.print(Text(one_line(f"acceptances of {hosts or 'no host'}"), style="bold"))
        for past in of_hosts:
            when = past.created[:16].replace("T", " ")
            say(console, f"{when}  {past.verdict:<9}  {past.suite}  {past.acceptance_id}")
            lines = [f"{subject}: {why}" for subject, why in past.failed[:_SHOWN_FAILED]]
            if more := len(past.failed) - len(lines):
                lines.append(f"and {more} more that failed: orch history --json")
            if past.undecided:
                lines.append(f"undecided: {fold(past.undecided)}")
            for line in lines:
                say(console, f"    {line}")
        console.print()


def document(cells: Sequence[PastCell], accepted: Sequence[PastAcceptance], whole: History) -> str:
    """Return one JSON document, ASCII only: cells and acceptances oldest first, numbers unrounded,
    damage by bench, run or acceptance, what benches without speeds have measured, and by bench or
    acceptance the seals of archives of a store."""
    value = {
        "schema": SCHEMA,
        "cells": [asdict(cell) for cell in cells],
        "damaged": dict(whole.damaged),
    }
    value |= {"speedless": dict(whole.speedless), "seals": dict(whole.seals)}
    value["acceptances"] = [asdict(past) for past in accepted]
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _row(cell: PastCell) -> tuple[str, ...]:
    numbers = (repeats(cell.n, cell.failed), number(cell.value), reach(cell.interval))
    bench = f"{cell.bench_id} {cell.label}" if cell.label else cell.bench_id
    texts = (
        cell.created[:10],
        bench,
        cell.shape,
        *numbers,
        str(len(cell.qualifications)),
        cell.hardware,
    )
    return tuple(map(one_line, texts))

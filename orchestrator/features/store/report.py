"""A store in a terminal: its list, one line per archive, and what was done with an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.report.cells import reach
from orchestrator.report.text import one_line
from orchestrator.results import Interval

if TYPE_CHECKING:
    from orchestrator.record.archive import Archive

_COLUMNS = (
    "when", "bench", "label", "runs", "measures", "result", "95%", "MB", "signed", "seal",
)  # fmt: skip
_DROPPED = (("MB",), ("when",), ("signed",), ("95%",), ("label",), ("measures",))
_SHOWN_DIGITS = 12


def print_list(rows: Sequence[Mapping[str, Any]], elsewhere: str) -> None:
    """Print a table as wide as the terminal; ``elsewhere`` is the command that shows what it leaves
    out.
    """
    from orchestrator.report.terminal import fitting
    from orchestrator.report.text import stdout_console

    console, texts = stdout_console(), [_texts(row) for row in rows]
    console.print(fitting(_COLUMNS, texts, _DROPPED, console, elsewhere, keys=2), soft_wrap=False)


def _texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    when, counts = row["created"][:16].replace("T", " "), f"{row['measured']} of {row['runs']}"
    size = f"{row['size_bytes'] / 1e6:.1f}"
    measures, seal = ", ".join(row["measures"]), row["seal"][:_SHOWN_DIGITS]
    result = (row["result"], reach(Interval(**row["interval"])) if row["interval"] else "")
    texts = (when, row["id"], row["label"], counts, measures, *result, size, row["signed"], seal)
    return tuple(map(one_line, texts))


def say(
    archive: Archive, outcome: str, measured: int, signed_by: str = "", result: str = ""
) -> None:
    """Print the outcome for an archive, how many of its runs have a number, its result and seal."""
    typer.echo(
        one_line(f"{archive.bench_id}: {outcome}; {measured} of {archive.runs} runs have a number")
    )
    if result:
        typer.echo(one_line(f"result {result}"))
    typer.echo(f"seal {archive.seal}")
    if signed_by:
        typer.echo(one_line(f"signed by {signed_by}"))

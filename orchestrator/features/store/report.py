"""A store in a terminal: its list, one line per archive, and what was done with an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.report.text import one_line

if TYPE_CHECKING:
    from orchestrator.features.store.archives import Listing
    from orchestrator.record.archive import Archive

__all__ = ["print_list", "say", "warn_of_index"]

_COLUMNS = ("when", "bench", "label", "runs", "measures", "MB", "signed", "seal")
_DROPPED = (("MB",), ("when",), ("signed",), ("label",))
_SHOWN_DIGITS = 12


def print_list(rows: Sequence[Mapping[str, Any]], elsewhere: str) -> None:
    """Print a table as wide as the terminal; ``elsewhere`` is the command that shows what it leaves
    out.
    """
    from rich.console import Console

    from orchestrator.report.terminal import fitting

    console = Console()
    texts = [_texts(row) for row in rows]
    console.print(fitting(_COLUMNS, texts, _DROPPED, console, elsewhere, keys=2), soft_wrap=False)


def _texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    when, counts = row["created"][:16].replace("T", " "), f"{row['measured']} of {row['runs']}"
    size = f"{row['size_bytes'] / 1e6:.1f}"
    measures, seal = ", ".join(row["measures"]), row["seal"][:_SHOWN_DIGITS]
    texts = (when, row["id"], row["label"], counts, measures, size, row["signed"], seal)
    return tuple(map(one_line, texts))


def warn_of_index(listing: Listing) -> None:
    """Say on stderr that the index cannot be read, if so."""
    if listing.index:
        text = f"orch: {listing.index}: read from the archives instead; the next orch push writes it anew"
        typer.echo(one_line(text), err=True)


def say(archive: Archive, outcome: str, measured: int, signed_by: str = "") -> None:
    """Print what was done with an archive, how many of its runs have a number, and its seal."""
    typer.echo(
        one_line(f"{archive.bench_id}: {outcome}; {measured} of {archive.runs} runs have a number")
    )
    typer.echo(f"seal {archive.seal}")
    if signed_by:
        typer.echo(one_line(f"signed by {signed_by}"))

"""The hangs of a bench: the verdict on each, what every rank did then, and what was said before;
for people and as JSON.

Control characters in texts from nodes are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.features.hang.bench import Hang, RankAccount
from orchestrator.report.cells import NOTHING
from orchestrator.report.text import one_line

COLUMNS = ("rank", "node", "step", "phase", "state", "processor", "system call", "what it did")
_SHOWN = 16
"""Ranks that a terminal shows of a hang, those that are named first."""
_UNTOLD = "it is not known which rank was the cause: no controller compared the nodes"


@dataclass(frozen=True, slots=True)
class HangTable:
    """A hang as the page shows it: every text is on one line. ``stacks`` are the named ranks' and
    the others', each with its title; ranks without one are left out."""

    run_id: str
    verdict: str
    rows: tuple[tuple[str, ...], ...]
    named: frozenset[str]
    notes: tuple[str, ...]
    stacks: tuple[tuple[str, tuple[str, ...]], ...]


def table(hang: Hang) -> HangTable:
    """Return the texts of a hang."""
    said = [f"{_after(suspicion.after_s)}: {suspicion.words}" for suspicion in hang.suspicions]
    ordered = _in_order(hang)
    return HangTable(
        run_id=one_line(hang.run_id),
        verdict=one_line(hang.sentence or _UNTOLD),
        rows=tuple(map(_row, hang.seen)),
        named=frozenset(map(str, hang.ranks)),
        notes=tuple(map(one_line, (*said, *(f"no report from {text}" for text in hang.missing)))),
        stacks=tuple(
            (one_line(f"rank {own.rank} on {own.host}"), tuple(map(one_line, own.stack)))
            for own in ordered
            if own.stack
        ),
    )


def render(hangs: Sequence[Hang], console: Console) -> None:
    """Print the verdict on each hang, and a line for each rank."""
    for hang in hangs:
        console.print(Text(one_line(f"hang of {hang.run_id}: {hang.sentence or _UNTOLD}")))
        for own in _in_order(hang)[:_SHOWN]:
            where = f" in {own.call}" if own.call else ""
            words = f"rank {own.rank} on {own.host}: {own.does}; state {own.state}{where}, {own.processor:.0%} of a processor"
            console.print(Text(one_line(f"  {words}"), style="dim"))
        if len(hang.seen) > _SHOWN:
            console.print(
                Text(
                    f"  {len(hang.seen) - _SHOWN} more ranks in --format html and json", style="dim"
                )
            )


def documents(hangs: Sequence[Hang]) -> list[dict[str, Any]]:
    """Return the hangs for JSON."""
    return [asdict(hang) for hang in hangs]


def _in_order(hang: Hang) -> list[RankAccount]:
    """Return the ranks, those that are named first."""
    return sorted(hang.seen, key=lambda own: (own.rank not in hang.ranks, own.rank))


def _row(own: RankAccount) -> tuple[str, ...]:
    call = f"{own.call} ({own.channel})" if own.call and own.channel else own.call or own.channel
    step = NOTHING if own.step is None else str(own.step)
    share = f"{own.processor:.0%}"
    texts = (
        str(own.rank),
        own.host,
        step,
        own.phase or NOTHING,
        own.state or NOTHING,
        share,
        call or NOTHING,
        own.does,
    )
    return tuple(map(one_line, texts))


def _after(seconds: float | None) -> str:
    if seconds is None:
        return "while it ran"
    return f"{seconds:.1f} s after the start"

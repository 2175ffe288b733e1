"""The table of preflight checks, folded: hosts that say the same share a row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.hostset import fold
from orchestrator.preflight import Check
from orchestrator.report.text import visible

__all__ = ["table"]

_STYLE = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def table(checks: Sequence[Check]) -> None:
    """Print the checks on standard output."""
    rows: dict[tuple[str, str, str, str, str], list[str]] = {}
    for check in checks:
        key = (check.name, check.verdict, check.found, check.expected, check.hint)
        rows.setdefault(key, []).append(check.host)
    grid = Table(box=None, pad_edge=False)
    for title in ("check", "hosts", "verdict", "found"):
        grid.add_column(title, overflow="fold")
    for (name, verdict, found, expected, hint), hosts in rows.items():
        text = visible(found)
        if verdict != "ok":
            text += f"; expected {visible(expected)}. {visible(hint)}"
        grid.add_row(name, fold(hosts), Text(verdict, style=_STYLE[verdict]), Text(text))
    Console().print(grid)

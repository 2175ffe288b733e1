"""The table of checks, folded: hosts with equal results share a row; and the list of all checks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from orchestrator.checks import Check
from orchestrator.checks.catalogue import Entry
from orchestrator.checks.check import fold_checks
from orchestrator.inventory import fold
from orchestrator.report.text import one_line, stdout_console

_STYLE = {"ok": "green", "warning": "yellow", "failed": "bold red", "unknown": "cyan"}


def table(checks: Sequence[Check]) -> None:
    """Print the checks on standard output."""
    grid = Table(box=None, pad_edge=False)
    for title in ("check", "hosts", "verdict", "found"):
        grid.add_column(title, overflow="fold")
    for check, hosts in fold_checks(checks).items():
        text = one_line(check.found)
        if check.verdict != "ok":
            text += f"; expected {one_line(check.expected)}. {one_line(check.hint)}"
        grid.add_row(
            check.name, fold(hosts), Text(check.verdict, style=_STYLE[check.verdict]), Text(text)
        )
    stdout_console().print(grid)


def print_catalogue(entries: Sequence[Entry]) -> None:
    """Print what is checked on standard output."""
    grid = Table(box=None, pad_edge=False)
    for title in ("id", "severity", "check"):
        grid.add_column(title, overflow="fold")
    for entry in entries:
        lines = (
            ("", f"{entry.title}: {entry.reads}"),
            ("fails unless: ", entry.must),
            ("warns unless: ", entry.should),
            ("cure: ", entry.cure),
        )
        text = "\n".join(head + line for head, line in lines if line)
        grid.add_row(entry.name, entry.severity, Text(text))
    stdout_console().print(grid)

"""A summary as a terminal of some width prints it."""

from __future__ import annotations

import io

from rich.console import Console

from orchestrator.report import terminal
from orchestrator.results.summary import Summary


def shown(summary: Summary, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    terminal.render(summary, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

"""A bench that is running, on standard error: a line for each thing that happens, and at a terminal
a block that changes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from orchestrator.api.progress import Progress, write
from orchestrator.controller.events import Observer, ProgressEvent
from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold


@contextmanager
def progress(log: TextIO) -> Iterator[Observer]:
    """Yield the observer that shows a bench; its lines are also written to ``log``, for `orch
    attach`.
    """
    console = Console(stderr=True)
    view = _View()
    if not console.is_terminal:

        def plain(event: ProgressEvent) -> None:
            lines = view.take(event)
            write(log, lines)
            write(sys.stderr, lines)

        yield plain
        return
    live = Live(view, console=console, refresh_per_second=4, transient=True)

    def observe(event: ProgressEvent) -> None:
        lines = view.take(event)
        write(log, lines)
        # The terminal may be gone; that must not affect the bench.
        with suppress(OSError):
            for line in lines:
                live.console.print(line, markup=False, highlight=False)

    live.start()
    try:
        yield observe
    finally:
        with suppress(OSError):
            live.stop()


class _View(Progress):
    """The current state of a bench as the block at a terminal."""

    def __rich__(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        left = len(self.planned) - self.done
        eta = (time.monotonic() - self.began) / self.done * left if self.done else None
        clock = f"about {eta:.0f} s left" if eta is not None else ""
        grid.add_row("runs", f"{self.done} done, {left} left", clock)
        if self.run:
            spec = self.run.spec
            grid.add_row(
                "now",
                f"{spec.framework} {spec.model} {spec.shape} {spec.dtype} repeat {self.run.repeat}",
                "",
            )
            grid.add_row(
                "step",
                f"{self.step} of {spec.steps}" if self.step else "none in the log so far",
                f"{self.speed:.1f} {self.unit}" if self.speed else "",
            )
            grid.add_row(
                "nodes",
                ", ".join(f"{fold(names)} {state}" for state, names in self._by_state().items()),
                "",
            )
        return grid

    def _by_state(self) -> dict[str, list[str]]:
        return group_pairs((state, host) for host, state in self.states.items())

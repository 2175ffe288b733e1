"""Progress of a long transfer, on stderr: one updated line on a terminal, otherwise a new line
every few seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import (
    FileSizeColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)


@contextmanager
def transfer(title: str, every_s: float = 10.0) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with each number of bytes received, from any thread. ``every_s``:
    seconds between lines.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(title, every_s).count
        return
    columns = (
        TextColumn("{task.description}"),
        FileSizeColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(title, total=None)
    with suppress(OSError):  # the terminal may be gone; that must not affect the transfer
        bar.start()
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        with suppress(OSError):
            bar.stop()


class _Lines:
    """Progress for a log file: at most one line every ``every_s`` seconds, so a short transfer
    prints nothing.
    """

    def __init__(self, title: str, every_s: float) -> None:
        self._title = title
        self._every_s = every_s
        self._lock = threading.Lock()
        self._began = self._printed = time.monotonic()
        self._bytes = 0

    def count(self, count: int) -> None:
        """Count ``count`` more bytes; print a line if it is time."""
        with self._lock:
            self._bytes += count
            now = time.monotonic()
            if now - self._printed < self._every_s:
                return
            self._printed = now
            mib = self._bytes / 2**20
            text = f"{self._title}: {mib:.1f} MiB in {now - self._began:.0f} s, {mib / max(1e-3, now - self._began):.1f} MiB/s"
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)

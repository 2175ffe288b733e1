"""The signals that ask a command to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["handled"]


@contextmanager
def handled(act: Callable[[int, object], None]) -> Iterator[None]:
    """Have ``act`` called with the number of each SIGINT, SIGTERM and SIGHUP."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, act) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

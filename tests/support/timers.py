"""Calls that fakes make later, none of which outlives the test that asked for it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

__all__ = ["call_later", "end_all"]

_TIMERS: list[threading.Timer] = []


def call_later(wait_s: float, call: Callable[[], object]) -> None:
    """Call something in a thread of its own after ``wait_s`` seconds, never if that is infinite."""
    if math.isfinite(wait_s):
        timer = threading.Timer(max(0.0, wait_s), call)
        timer.daemon = True
        _TIMERS.append(timer)
        timer.start()


def end_all() -> None:
    """Cancel what has not begun, and wait for what has: its folder goes with the test, and its
    error would fail the next.
    """
    while _TIMERS:
        timer = _TIMERS.pop()
        timer.cancel()
        timer.join()

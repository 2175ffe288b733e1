"""The signals that ask a command to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.errors import Interrupted


@contextmanager
def handle_signals(act: Callable[[int, object], None]) -> Iterator[None]:
    """Have ``act`` called with the number of each SIGINT, SIGTERM and SIGHUP.

    A SIGHUP that whoever started this process has it ignore, as nohup does, stays ignored.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, act) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_on_signal(state: str) -> Iterator[None]:
    """Raise Interrupted at a signal, so that the command cleans up; ``state`` describes its
    remains.
    """

    def stop(number: int, _: object) -> None:
        raise Interrupted(number, f"interrupted; {state}")

    with handle_signals(stop):
        yield

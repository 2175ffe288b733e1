"""One call on many hosts at once, every result and every error kept.

On up to 128 hosts each call has a thread of its own; on more, a call begins when one before it is done. What has to happen on
all nodes together, the start of a run, is no call in this sense: it is ordered over lines that are open already.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from orchestrator.errors import Faults, OrchError

__all__ = ["each", "each_or_raise"]

WIDTH = 128
"""Calls at a time: with a thread for each connection, under two threads for each host of a cluster that is wide."""

Key = TypeVar("Key")
Value = TypeVar("Value")


def each(
    keys: Iterable[Key], call: Callable[[Key], Value], width: int = WIDTH
) -> tuple[dict[Key, Value], dict[Key, OrchError]]:
    """Return (results, errors) of ``call`` on every key, ``width`` at a time.

    Only `OrchError` is an answer; all else is a bug, and raised.
    """
    keys = list(keys)
    results: dict[Key, Value] = {}
    errors: dict[Key, OrchError] = {}
    if not keys:
        return results, errors
    answers: queue.SimpleQueue[tuple[Key, Value | None, BaseException | None]] = queue.SimpleQueue()
    waiting = iter(keys)

    def work() -> None:
        for key in waiting:  # all threads take from one iterator, which is safe under the interpreter's lock
            try:
                answers.put((key, call(key), None))
            except BaseException as error:
                answers.put((key, None, error))

    # Threads that do not keep the program alive: who interrupts it must not wait for the slowest host.
    for number in range(min(width, len(keys))):
        threading.Thread(target=work, name=f"fanout-{number}", daemon=True).start()
    try:
        for _ in keys:
            key, value, error = answers.get()
            if error is None:
                results[key] = value  # type: ignore[assignment]
            elif isinstance(error, OrchError):
                errors[key] = error
            else:
                raise error
    finally:
        deque(waiting, maxlen=0)  # who is interrupted begins nothing more
    order = {key: index for index, key in enumerate(keys)}
    return dict(sorted(results.items(), key=lambda item: order[item[0]])), dict(
        sorted(errors.items(), key=lambda item: order[item[0]])
    )


def each_or_raise(keys: Iterable[Key], call: Callable[[Key], Value], width: int = WIDTH) -> dict[Key, Value]:
    """Return the results in the order of the keys. Raises `Faults` with all errors where there is any."""
    results, errors = each(keys, call, width)
    if errors:
        raise Faults(list(errors.values()))
    return results

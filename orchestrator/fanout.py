"""One call on many hosts at once: as many threads as hosts, every result and every error kept.

A start in waves would hang a collective job, so the width is the number of hosts, always.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from orchestrator.errors import Faults, OrchError

__all__ = ["each", "each_or_raise"]

Key = TypeVar("Key")
Value = TypeVar("Value")


def each(keys: Iterable[Key], call: Callable[[Key], Value]) -> tuple[dict[Key, Value], dict[Key, OrchError]]:
    """Return (results, errors) of ``call`` on every key. Only `OrchError` is an answer; all else is a bug, and raised."""
    keys = list(keys)
    results: dict[Key, Value] = {}
    errors: dict[Key, OrchError] = {}
    if not keys:
        return results, errors
    answers: queue.SimpleQueue[tuple[Key, Value | None, BaseException | None]] = queue.SimpleQueue()

    def work(key: Key) -> None:
        try:
            answers.put((key, call(key), None))
        except BaseException as error:
            answers.put((key, None, error))

    # Threads that do not keep the program alive: who interrupts it must not wait for the slowest host.
    for key in keys:
        threading.Thread(target=work, args=(key,), name=f"fanout-{key}", daemon=True).start()
    for _ in keys:
        key, value, error = answers.get()
        if error is None:
            results[key] = value  # type: ignore[assignment]
        elif isinstance(error, OrchError):
            errors[key] = error
        else:
            raise error
    order = {key: index for index, key in enumerate(keys)}
    return dict(sorted(results.items(), key=lambda item: order[item[0]])), dict(
        sorted(errors.items(), key=lambda item: order[item[0]])
    )


def each_or_raise(keys: Iterable[Key], call: Callable[[Key], Value]) -> dict[Key, Value]:
    """Return the results in the order of the keys. Raises `Faults` with all errors where there is any."""
    results, errors = each(keys, call)
    if errors:
        raise Faults(list(errors.values()))
    return results

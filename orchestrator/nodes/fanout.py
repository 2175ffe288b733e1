"""Run one call on many hosts at the same time, and keep every result and every error.

Up to 128 calls run at a time, each in its own thread; with more hosts a call starts when an earlier
one is done. The start of a run, which must happen on all nodes together, does not use this: it is
ordered over connections that are already open.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from orchestrator.errors import Faults, OrchError

WIDTH = 128
"""Calls at a time. With one more thread per connection, a large cluster needs fewer than two
threads per host.
"""

Key = TypeVar("Key")
Value = TypeVar("Value")


def each(
    keys: Iterable[Key], call: Callable[[Key], Value], width: int = WIDTH
) -> tuple[dict[Key, Value], dict[Key, OrchError]]:
    """Return (results, errors) of ``call`` on every key, ``width`` at a time.

    Only `OrchError` is returned as an error; any other exception is a bug and raised.
    """
    keys = list(keys)
    results: dict[Key, Value] = {}
    errors: dict[Key, OrchError] = {}
    if not keys:
        return results, errors
    answers: queue.SimpleQueue[tuple[Key, Value | None, BaseException | None]] = queue.SimpleQueue()
    waiting = iter(keys)

    def work() -> None:
        # All threads take from one iterator, which is safe under the interpreter's lock.
        for key in waiting:
            try:
                answers.put((key, call(key), None))
            except OrchError as error:
                answers.put((key, None, error))
            except BaseException as error:
                answers.put((key, None, error))
                # By the thread that met the bug: the caller may be a while away on a busy machine.
                deque(waiting, maxlen=0)

    # Daemon threads, so that an interrupt does not wait for the slowest host.
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
        deque(waiting, maxlen=0)  # after an interrupt nothing new is started
    order = {key: index for index, key in enumerate(keys)}
    return dict(sorted(results.items(), key=lambda item: order[item[0]])), dict(
        sorted(errors.items(), key=lambda item: order[item[0]])
    )


def each_or_raise(
    keys: Iterable[Key], call: Callable[[Key], Value], width: int = WIDTH
) -> dict[Key, Value]:
    """Return the results in the order of the keys. Raises `Faults` with all errors if there are
    any.
    """
    results, errors = each(keys, call, width)
    if errors:
        raise Faults(list(errors.values()))
    return results

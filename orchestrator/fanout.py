"""One call on many hosts at once: as many threads as hosts, every result and every error kept.

A start in waves would hang a collective job, so the width is the number of hosts, always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
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
    with ThreadPoolExecutor(max_workers=len(keys), thread_name_prefix="fanout") as pool:
        futures = {key: pool.submit(call, key) for key in keys}
        for key, future in futures.items():
            try:
                results[key] = future.result()
            except OrchError as error:
                errors[key] = error
    return results, errors


def each_or_raise(keys: Iterable[Key], call: Callable[[Key], Value]) -> dict[Key, Value]:
    """Return the results in the order of the keys. Raises `Faults` with all errors where there is any."""
    results, errors = each(keys, call)
    if errors:
        raise Faults(list(errors.values()))
    return results

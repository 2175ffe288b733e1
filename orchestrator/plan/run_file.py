"""The content of a run file (``orch bench --file``): choices of a bench, one value each, overridden by the command line.

Ranges of numbers and the words of a framework are checked in the spec, whatever the source of a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.yamlfile import Document

__all__ = ["TYPES", "choices_of"]

_LISTS = ("batch_size", "dtype", "loader")
TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "batch_size": ((int,), "a whole number ≥ 1"),
    "dtype": ((str,), "one type as text"),
    "loader": ((str,), "one loader as text"),
    "steps": ((int,), "a whole number ≥ 1"),
    "warmup_steps": ((int,), "a whole number ≥ 0"),
    "timeout_s": ((int, float), "seconds above 0"),
    "repeats": ((int,), "a whole number ≥ 1"),
    "options": ((dict,), "a mapping"),
}
"""The types of each key, and how a message describes them."""


def choices_of(document: Document) -> dict[str, Any]:
    """Return the choices of a run file by key, options of the framework as a mapping under ``options``.

    Raises ConfigError with file and line for an unknown key, a value of the wrong type, or a list instead of one value.
    """
    source, keys = document.source, ", ".join(TYPES)
    if not isinstance(document.value, dict):
        raise ConfigError("expected a mapping of choices", where=source, hint=f"valid keys: {keys}")
    for key in document.value:
        if key not in TYPES:
            raise ConfigError(f"unknown key {key}", where=f"{source}:{document.line((key,))}", hint=f"valid keys: {keys}")
    choices = dict(document.value)
    for key, value in choices.items():
        types, expectation = TYPES[key]
        if type(value) not in types or (key == "repeats" and value < 1):
            hint = f"for several use --{key.replace('_', '-')}" if key in _LISTS else ""
            message = f"expected {expectation}, got {value!r}"
            raise ConfigError(message, where=f"{source}:{document.line((key,))}: {key}", hint=hint)
    for name, value in choices.get("options", {}).items():
        if type(value) not in (str, int, float, bool):
            where = f"{source}:{document.line(('options', name))}: options.{name}"
            raise ConfigError(f"expected one value, got {value!r}", where=where)
    return choices

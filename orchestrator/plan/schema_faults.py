"""Messages for wrong types and keys in a ``framework.yaml``: each error of the schema as a
sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory.values import KeyPath, Where, show_value, unknown_key
from orchestrator.plan import log_schema, schema
from orchestrator.plan.published_schema import (
    PublishedEntry,
    RuleEntry,
    WindowEntry,
    published_entry,
)
from orchestrator.plural import join_words

_KINDS = {
    "list_type": ("a list", "write it in brackets: [{}]"),
    "dict_type": ("a mapping", ""),
    "model_type": ("a mapping", ""),
    "model_attributes_type": ("a mapping", ""),
}


def key_path(error: Mapping[str, Any]) -> KeyPath:
    """Return the path of keys and indices of an error. Members of a union, which pydantic puts at
    its end, are left out.
    """
    return tuple(part for part in error["loc"] if part != "[key]")


def describe_fault(
    error: Mapping[str, Any], where: Where, model_at: Callable[[KeyPath], Any] | None = None
) -> ConfigError:
    """Return an error of pydantic as a fault: its place, the expected and the actual value, and a
    hint.

    ``model_at`` returns the model of the mapping at a path, by default the model of a
    ``framework.yaml``.
    """
    model_at = model_at or _model
    path, value, context = key_path(error), error["input"], error.get("ctx", {})
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown(path, where(path), model_at)
    if kind == "missing":
        expected = _field(model_at(path[:-1]), str(path[-1])).description
        return ConfigError(f"expected {expected}, got nothing", where=where(path))
    hint = context.get("hint", "")
    if kind in _KINDS:
        expected, hint = _KINDS[kind]
        hint = hint.format(value) if isinstance(value, str) else ""
    elif kind == "literal_error":
        words = re.findall(r"'([^']*)'", context["expected"])
        expected, hint = join_words(words, "or"), nearest(str(value), words).lstrip("; ")
    elif kind == "too_short":
        purpose = str(_field(model_at(path[:-1]), str(path[-1])).description)
        return ConfigError("expected at least one entry, got none", where=where(path), hint=purpose)
    else:
        expected = context.get("expected") or error["msg"].lower()
    if isinstance(value, str) and value.isdecimal() and expected.startswith("a whole number"):
        hint = "write it without quotes and leading zeros"
    if expected == "text" and hint and not isinstance(value, int | float):
        hint = ""
    return ConfigError(
        f"expected {expected}, got {show_value(value)}", where=where(path), hint=hint
    )


def _unknown(path: KeyPath, where: str, model_at: Callable[[KeyPath], Any]) -> ConfigError:
    """Return the fault for an unknown key, with the mapping that it belongs to if it is a key of
    another one.
    """
    key, keys = (
        str(path[-1]),
        [field.alias or name for name, field in model_at(path[:-1]).model_fields.items()],
    )
    homes = {
        "log": log_schema.LogEntry.model_fields,
        "defaults": schema.Defaults.model_fields,
        "": schema.FrameworkFile.model_fields,
    }
    if path[0] == "published" and len(path) > 1:
        homes = {"window": WindowEntry.model_fields, "rules: NAME": RuleEntry.model_fields}
        homes["published"] = PublishedEntry.model_fields
    home = None
    if model_at is _model:
        home = next((name for name, fields in homes.items() if key in fields), None)
    if home is None:
        return unknown_key(key, keys, where)
    return unknown_key(
        key,
        keys,
        where,
        f"it belongs under {home}:" if home else "it belongs at the beginning of a line",
    )


def _model(path: KeyPath) -> Any:
    """Return the model of the mapping at a path; names of models, options and devices and indices
    of lists lead to the same.
    """
    model: Any = schema.FrameworkFile
    inner = {
        "log": log_schema.LogEntry,
        "defaults": schema.Defaults,
        "device_defaults": schema.Defaults,
        "models": schema.ModelEntry,
        "options": schema.OptionEntry,
        "files": schema.FileEntry,
        "per_step": schema.StepEntry,
        "tunes": schema.KnobEntry,
    }
    if path[:1] == ("log",) and len(path) > 2:
        in_log = {
            "metrics": log_schema.MetricEntry,
            "headers": log_schema.HeaderEntry,
            "agreements": log_schema.AgreementEntry,
        }
        return in_log.get(str(path[1]), log_schema.LogEntry)
    if path[:1] == ("models",) and len(path) > 2:
        return {"transformer": schema.TransformerEntry, "defaults": schema.ModelDefaults}.get(
            str(path[2]), model
        )
    if path and path[0] == "published":
        return published_entry(path)
    return inner.get(str(path[0]), model) if path else model


def _field(model: Any, key: str) -> Any:
    """Return a field by the name that it has in the file."""
    return next(field for name, field in model.model_fields.items() if key in (name, field.alias))

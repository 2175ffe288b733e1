"""The JSON Schema of a run file, from the table of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.plan.run_file import TYPES

__all__ = ["json_schema"]

_NAMES: Mapping[type, str] = {int: "integer", float: "number", str: "string", bool: "boolean", dict: "object"}
_SCALARS = {"type": ["string", "number", "boolean"]}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file of ``orch bench --file``."""
    keys = {key: _described(types, words) for key, (types, words) in TYPES.items()}
    return {"title": "orch bench --file", "type": "object", "additionalProperties": False, "properties": keys}


def _described(types: tuple[type, ...], words: str) -> dict[str, Any]:
    names = [_NAMES[kind] for kind in types]
    schema: dict[str, Any] = {"description": words, "type": names[0] if len(names) == 1 else names}
    return {**schema, "additionalProperties": _SCALARS} if dict in types else schema

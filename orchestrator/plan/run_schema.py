"""The JSON Schema of a run file, from the tables of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.plan.run_file import LISTS, MAPPINGS, OF_A_RUN, OF_THE_BENCH

_NAMES: Mapping[type, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    list: "array",
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file of ``orch bench --file``."""
    single = {key: _value(*described) for key, described in OF_A_RUN.items()}
    lists = {key: _or_list(_null_too(key, _value(*described))) for key, described in LISTS.items()}
    once = {key: _null_too(key, _value(*described)) for key, described in LISTS.items()}
    entry = {
        **{key: _mapping(value) if key in MAPPINGS else value for key, value in once.items()},
        **single,
    }
    entries = {
        "type": "array",
        "items": {"type": "object", "additionalProperties": False, "properties": entry},
    }
    keys = {
        **{key: _mapping(value) if key in MAPPINGS else value for key, value in lists.items()},
        **single,
        **{key: _value(*described) for key, described in OF_THE_BENCH.items()},
        "include": {"description": "combinations to extend or to add", **entries},
        "exclude": {"description": "combinations to leave out", **entries},
    }
    return {
        "title": "orch bench --file",
        "type": "object",
        "additionalProperties": False,
        "properties": keys,
    }


def _value(types: tuple[type, ...], words: str) -> dict[str, Any]:
    names = [_NAMES[kind] for kind in types]
    return {"description": words, "type": names[0] if len(names) == 1 else names}


def _null_too(key: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a value; a variable may be null, which means that it is not set."""
    if key == "env":
        return {**value, "type": [*value["type"], "null"]}
    return value


def _or_list(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": f"{value['description']}, or a list",
        "anyOf": [value, {"type": "array", "items": value}],
    }


def _mapping(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": value}

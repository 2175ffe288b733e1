"""Defaults of options that users keep in files: ``orch.yaml`` of a project, and
``~/.config/orch/config.yaml`` for all of them.

An option on the command line wins, then the environment, then the project's file, then the user's.
Both are YAML with the same keys, `KEYS`, each named as its option is. Choices of one experiment,
such as a model's dtype, belong into a run file.

>>> value_of("nodes", [1, 2], "orch.yaml:2: nodes"), value_of("lease", "2m", "orch.yaml:3: lease")
((1, 2), 120.0)
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, nearest, raise_all
from orchestrator.inventory import is_path
from orchestrator.options import OPTIONS, DefaultKey
from orchestrator.plan import Limits
from orchestrator.plan.option_values import in_seconds, share
from orchestrator.plan.schedule import ORDERS

PROJECT_FILE = "orch.yaml"
_SCHEMA = 1


KEYS: Mapping[str, DefaultKey] = {
    name: option.default for name, option in OPTIONS.items() if option.default
}
CHOICES: Mapping[str, str] = {
    name: row.key or name for name in KEYS if (row := OPTIONS[name].run_file)
}
"""Keys that a run file has too, which takes precedence over defaults, by its names."""
_EXPECTED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "text": ("text", {"type": "string", "minLength": 1}),
    "flag": ("true or false", {"type": "boolean"}),
    "folders": (
        "a folder, or a list of folders",
        {"type": ["string", "array"], "items": {"type": "string"}},
    ),
    "numbers": (
        "a whole number ≥ 1, or a list of them",
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}},
            ]
        },
    ),
    "count": ("a whole number ≥ 1", {"type": "integer", "minimum": 1}),
    "percentage": ("a percentage such as 1%", {"type": "string", "pattern": "%$"}),
    "order": (", ".join(ORDERS), {"enum": list(ORDERS)}),
    "duration": ("a time such as 30m, or seconds", {"type": ["string", "number"]}),
}


@dataclass(frozen=True, slots=True)
class Default:
    """The value of one key, the file that it is from as people name it, and file, line and key."""

    value: Any
    origin: str
    where: str


def defaults(root: Path, environment: Mapping[str, str]) -> dict[str, Default]:
    """Return the defaults of a project with this folder by key. Raises ConfigError or Faults of it,
    with file and line.
    """
    home = environment.get("HOME", "")
    base = environment.get("XDG_CONFIG_HOME", "")
    if base.startswith("/"):
        users = Path(base)
    elif home:
        users = Path(home, ".config")
    else:
        users = None
    by_key: dict[str, Default] = {}
    if users:
        path = users / "orch" / "config.yaml"
        shown = f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)
        by_key |= _in_file(path, shown)
    return by_key | _in_file(root / PROJECT_FILE, PROJECT_FILE)


def choices(by_key: Mapping[str, Default]) -> dict[str, tuple[Any, str, str]]:
    """Return (value, file, place) of the defaults that a run file may have too, by its names."""
    of_run_files = {name: by_key[key] for key, name in CHOICES.items() if key in by_key}
    return {
        name: (default.value, default.origin, default.where)
        for name, default in of_run_files.items()
    }


def option_values(
    by_key: Mapping[str, Default], commands: Collection[str] = ("all", "runs")
) -> dict[str, Any]:
    """Return the defaults that such ``commands`` take by themselves, as `DefaultKey` names them, in
    the form of their command lines.
    """
    values = {}
    for key, default in by_key.items():
        if KEYS[key].commands in commands:
            is_written = KEYS[key].kind == "duration" and OPTIONS[key].type == "text"
            values[key] = in_seconds(default.value) if is_written else default.value
    return values


def _in_file(path: Path, shown: str) -> dict[str, Default]:
    if not os.path.lexists(path):
        return {}
    from orchestrator import yamlfile

    document = yamlfile.load(path)
    content = document.value
    if not isinstance(content, dict):
        raise ConfigError(
            "expected a mapping of options",
            where=str(path),
            hint=f"valid keys: schema, {', '.join(KEYS)}",
        )
    by_key, faults = {}, []
    for key, value in content.items():
        where = f"{path}:{document.line((key,))}: {key}"
        try:
            if key == "schema" and value != _SCHEMA:
                raise ConfigError(f"expected {_SCHEMA}, got {value!r}", where=where)
            if key != "schema":
                by_key[key] = Default(
                    _absolute_paths(key, value_of(key, value, where), path.parent), shown, where
                )
        except ConfigError as error:
            faults.append(error)
    raise_all(faults)
    return by_key


def value_of(key: str, value: Any, where: str) -> Any:
    """Return the checked value of a key: numbers and folders as tuples, durations in seconds.
    Raises ConfigError.
    """
    if key not in KEYS:
        raise ConfigError(
            f"unknown key {key}",
            where=where,
            hint=f"valid keys: schema, {', '.join(KEYS)}{nearest(key, KEYS)}",
        )
    kind = KEYS[key].kind
    listed = value if isinstance(value, list) else [value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        kind == "flag"
        and isinstance(value, bool)
        or kind == "text"
        and isinstance(value, str)
        and value
    ):
        return value
    if kind == "folders" and listed and all(isinstance(item, str) and item for item in listed):
        return tuple(listed)
    if kind == "numbers" and listed and all(map(_is_count, listed)):
        return tuple(listed)
    if kind == "count" and _is_count(value) or kind == "order" and value in ORDERS:
        return value
    if kind == "percentage" and isinstance(value, str):
        share(value, where)
        return value
    if kind == "duration" and (is_number or isinstance(value, str)):
        return Limits.read(str(value), where, KEYS[key].limit)
    expected, got = (
        _EXPECTED[kind][0],
        repr(value) if len(repr(value)) < 60 else f"a {type(value).__name__}",
    )
    raise ConfigError(f"expected {expected}, got {got}", where=where)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _absolute_paths(key: str, value: Any, folder: Path) -> Any:
    """Return paths as they are from the folder of their file on."""
    if key == "templates":
        return tuple(folder / Path(path).expanduser() for path in value)
    if key == "hosts" and (is_path(value) or (folder / value).exists()):
        return str(folder / Path(value).expanduser())
    return value


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of both files."""
    keys = {}
    for key, option in KEYS.items():
        description = f"{OPTIONS[key].help} {option.note}".strip()
        keys[key] = {"description": description, **_EXPECTED[option.kind][1]}
    return {
        "title": "orch.yaml and ~/.config/orch/config.yaml",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "schema": {"const": _SCHEMA, "description": "the version of the format"},
            **keys,
        },
    }

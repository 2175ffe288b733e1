"""Arguments of `orchestrator.prepare` as the options of `orch bench` take them.

The rows of `orchestrator.options` say which there are, and what each takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.options import OPTIONS, check_names, long_form
from orchestrator.plan.option_values import as_written, quote

Values = str | int | float | Sequence[str | int | float]
"""One value, or several, each of which makes configurations of its own. A text may list several, as
on the command line.
"""

_FILES_AND_HOSTS = ("hosts", "exclude", "file", "templates")
ARGUMENTS: Mapping[str, str] = {
    f"{name}_s" if row.type == "duration" else name: name
    for name, row in OPTIONS.items()
    if row.plans or name in _FILES_AND_HOSTS
}
"""The rows of options by the arguments of `orchestrator.prepare`; a duration is in seconds."""


def argument_error(what: str, got: object, where: str) -> ConfigError:
    """Return the error of an argument that is of another type."""
    return ConfigError(f"expected {what}, got {got!r:.200}", where=where)


def read_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return by row the options that are given, as a command line gives them. None is not given.

    Raises ConfigError for a value of another type, TypeError for an unknown name.
    """
    check_names(arguments, ARGUMENTS, "prepare")
    given = {ARGUMENTS[name]: value for name, value in arguments.items() if value is not None}
    return {name: _read(name, value) for name, value in given.items()}


def command_words(given: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line with these options.

    >>> command_words({"timeout": 90, "baseline": False, "env": ["a=1", "b=2"], "label": ""})
    ['--timeout', '90', '--no-baseline', '--env', 'a=1', '--env', 'b=2']
    """
    words = []
    for name, value in given.items():
        option = long_form(name)
        if value is False:
            words += [f"--no-{option[2:]}"] if OPTIONS[name].type == "switch" else []
        elif value is True:
            words.append(option)
        else:
            for item in value if isinstance(value, list) else [value]:
                words += [option, str(item)] if item != "" else []
    return words


def _read(name: str, value: Any) -> Any:
    row, option = OPTIONS[name], long_form(name)
    if row.is_list:
        if row.type == "texts":
            return _assignments(value, option)
        if isinstance(value, str):
            return value
        return ",".join(map(as_written, _items(value, option)))
    if row.type == "hosts":
        return ",".join(map(str, _items(value, option)))
    if row.type in ("texts", "paths"):
        types, what = (str, "texts") if row.type == "texts" else (str | Path, "paths")
        items = _items(value, option) if value else []
        odd = [item for item in items if not isinstance(item, types)]
        if odd:
            raise argument_error(what, odd[0], option)
        return items
    least = row.least or 0
    is_right, what = {
        "text": (isinstance(value, str), "a text"),
        "path": (isinstance(value, str | Path), "a path"),
        "count": (type(value) is int and value >= least, f"a whole number ≥ {least}"),
        "duration": (type(value) in (int, float), "a number"),
        "flag": (isinstance(value, bool), "True or False"),
        "switch": (isinstance(value, bool), "True or False"),
    }[row.type]
    if not is_right:
        raise argument_error(what, value, option)
    return value


def _items(values: object, option: str) -> list[Any]:
    """Return the values of an option that can have several; a text, a path or a number is one."""
    if isinstance(values, str | int | float | Path):
        return [values]
    if isinstance(values, Iterable) and not isinstance(values, bytes | Mapping):
        items = list(values)
        if items:
            return items
    raise argument_error("one value or a list of values", values, option)


def _assignments(values: Mapping[str, Values], option: str) -> list[str]:
    """Return ``name=value,…`` for each name. A text is one value, whatever is in it.

    >>> _assignments({"sizes": "1024,4096", "seed": [1, 2], "compile": True}, "--set")
    ['sizes="1024,4096"', 'seed=1,2', 'compile=true']
    """
    if not isinstance(values, Mapping):
        raise argument_error("values by name", values, option)
    assignments = []
    for name, of_name in values.items():
        texts = [quote(as_written(value)) for value in _items(of_name, f"{option} {name}")]
        assignments.append(f"{name}={','.join(texts)}")
    return assignments

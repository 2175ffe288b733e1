"""Arguments of Python as the options of `orch bench` take them, and as its command line has them.

Each function names the option where it raises ConfigError for a value of another type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.plan.spec import as_written
from orchestrator.plan.words import quoted

__all__ = [
    "Values", "assigned", "check_counts", "check_numbers", "check_texts", "command_words", "expected", "listed", "option_text",
]  # fmt: skip

Values = str | int | float | Sequence[str | int | float]
"""One value, or several, each of which makes configurations of its own. A text may list several, as
on the command line.
"""


def expected(what: str, got: object, where: str) -> ConfigError:
    """Return the error of an argument that is of another type."""
    return ConfigError(f"expected {what}, got {got!r:.200}", where=where)


def listed(values: object, where: str) -> list[Any]:
    """Return the values of an option that can have several; a text, a path or a number is one, None
    is not given.
    """
    if values is None:
        return []
    if isinstance(values, str | int | float | Path):
        return [values]
    if (
        isinstance(values, Iterable)
        and not isinstance(values, bytes | Mapping)
        and (several := list(values))
    ):
        return several
    raise expected("one value or a list of values", values, where)


def option_text(values: object, where: str) -> str:
    """Return values as a list on a command line."""
    return values if isinstance(values, str) else ",".join(map(as_written, listed(values, where)))


def assigned(values: Mapping[str, Values] | None, where: str) -> list[str]:
    """Return ``name=value,…`` for each option or variable. A text is one value, whatever is in it.

    >>> assigned({"sizes": "1024,4096", "seed": [1, 2], "compile": True}, "--set")
    ['sizes="1024,4096"', 'seed=1,2', 'compile=true']
    """
    if not isinstance(values, Mapping | None):
        raise expected("values by name", values, where)
    return [
        f"{name}={','.join(quoted(as_written(value)) for value in listed(of_name, f'{where} {name}'))}"
        for name, of_name in (values or {}).items()
    ]


def check_texts(**texts: object) -> None:
    """Raise ConfigError unless each option is a text, or not given."""
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise expected("a text", text, f"--{name.replace('_', '-')}")


def check_counts(**counts: object) -> None:
    """Raise ConfigError unless each option is a whole number from 1 on, or not given."""
    for name, count in counts.items():
        if count is not None and (type(count) is not int or count < 1):
            raise expected("a whole number ≥ 1", count, f"--{name.replace('_', '-')}")


def check_numbers(**numbers: object) -> None:
    """Raise ConfigError unless each option is a number, or not given."""
    for name, number in numbers.items():
        if number is not None and type(number) not in (int, float):
            raise expected("a number", number, f"--{name.removesuffix('_s').replace('_', '-')}")


def command_words(options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line.

    >>> command_words({"timeout_s": 90, "baseline": False, "set": ["a=1", "b=2"], "label": None})
    ['--timeout', '90', '--no-baseline', '--set', 'a=1', '--set', 'b=2']
    """
    words = []
    for name, value in options.items():
        option = name.removesuffix("_s").replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            listed = value if isinstance(value, (list, tuple)) else [value]
            words += [
                word
                for item in listed
                if item not in (None, "")
                for word in (f"--{option}", str(item))
            ]
    return words

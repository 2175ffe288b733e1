"""Validators for single values in an inventory, which name what was expected, and types made of
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from orchestrator.inventory.reserved import PLACED, RESERVED

WHOLE = "begin it with / or ~/; programs that use the data set start in different folders"

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def takes(expected: str, fits: Callable[[Any], bool], hint: str = "") -> BeforeValidator:
    """Return a validator of one value; the message for a value that does not fit says what was
    expected, and the hint.
    """
    return BeforeValidator(_check(expected, fits, hint))


def takes_variable(owner: str) -> BeforeValidator:
    """Return a validator of the name of an environment variable that ``owner``, such as an
    inventory, may set.
    """
    checks = (
        _check(
            "a variable name of letters, digits and '_'", lambda value: bool(WORD.fullmatch(value))
        ),
        _check(
            f"a variable that does not begin with {RESERVED}",
            lambda value: not str(value).startswith(RESERVED),
            "orch finds the processes of a run by such variables and sets them itself; use another name",
        ),
        _check(
            f"a variable that {owner} may set",
            lambda value: value not in PLACED,
            "the placement of a run sets it",
        ),
    )
    return BeforeValidator(lambda value: [check(value) for check in checks][-1])


def _check(expected: str, fits: Callable[[Any], bool], hint: str = "") -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not fits(value):
            raise PydanticCustomError(
                "expected", "{expected}", {"expected": expected, "hint": hint}
            )
        return value

    return check


def is_text(value: Any) -> bool:
    """Return True for text that a program can be given: it contains no NUL."""
    return isinstance(value, str) and "\0" not in value


def is_path(value: Any) -> bool:
    """Return True for a path that no program can mistake for an option, and that prints unchanged."""
    return (
        is_text(value)
        and value.isprintable()
        and value.strip() == value != ""
        and not value.startswith("-")
    )


def is_whole(value: Any) -> bool:
    """Return True if a path on a node begins at the root or at the user's home, and so is the same
    for every program.
    """
    return is_path(value) and value.startswith(("/", "~"))


def matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    """Return a check for text that a pattern matches as a whole."""
    return lambda value: isinstance(value, str) and bool(pattern.fullmatch(value))


def whole(least: int, most: int | None = None) -> BeforeValidator:
    """Return a validator of a whole number within bounds; none is above 2**40."""
    words = (
        f"a whole number ≥ {least}" if most is None else f"a whole number from {least} to {most}"
    )
    last = 1 << 40 if most is None else most
    return takes(words, lambda value: type(value) is int and least <= value <= last)


Text = Annotated[str, takes("text", is_text, "put quotes around it")]
Filled = Annotated[
    str,
    takes(
        "text that is not empty",
        lambda value: is_text(value) and value != "",
        "put quotes around it",
    ),
]
Truth = Annotated[bool, takes("true or false", lambda value: type(value) is bool)]
Word = Annotated[str, takes("a name of letters, digits and '_'", matches(WORD))]
Pattern = Annotated[
    str, takes("a regular expression as text", is_text, "put single quotes around it")
]
Setting = Annotated[
    str | int | bool,
    takes(
        "text, a whole number, true or false",
        lambda value: type(value) in (bool, int) or is_text(value),
    ),
]

PathText = Annotated[
    str, takes("a path", is_path, "without control characters, not beginning with '-'")
]
Limit = Annotated[
    int | str,
    takes(
        "unlimited, or a whole number",
        lambda value: value == "unlimited" or type(value) is int and 0 < value < 1 << 60,
    ),
]


class Strict(BaseModel):
    """A mapping with known keys only, whose values are taken as they are written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

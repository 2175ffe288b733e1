"""The kinds of values in a ``framework.yaml``, each with the words of a message about another one."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.inventory.fields import takes, takes_variable
from orchestrator.logs.numbers import THOUSANDS
from orchestrator.plan.payload import is_payload_name

Device = Literal["cuda", "cpu"]
Launch = Literal["every_node", "first_node"]
MeasureName = Literal["training", "language_model", "collectives", "pairs", "readings"]
Scope = Literal["global", "node", "process"]
Unit = Literal["ns", "us", "ms", "s", "min", "h"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def is_text(value: Any) -> bool:
    """Return True for text without zero characters."""
    return isinstance(value, str) and "\0" not in value


def _is_glob(value: Any) -> bool:
    return (
        is_text(value)
        and bool(value)
        and not value.startswith("/")
        and ".." not in value.split("/")
    )


def matches(pattern: re.Pattern[str]) -> Any:
    """Return a check for text that a pattern matches as a whole."""
    return lambda value: isinstance(value, str) and bool(pattern.fullmatch(value))


def whole(least: int, most: int = 1 << 40) -> Any:
    """Return what takes whole numbers from ``least`` to ``most``."""
    words = (
        f"a whole number ≥ {least}" if most == 1 << 40 else f"a whole number from {least} to {most}"
    )
    return takes(words, lambda value: type(value) is int and least <= value <= most)


Text = Annotated[str, takes("text", is_text, "put quotes around it")]
Name = Annotated[
    str,
    takes(
        "a name of letters, digits, '.', '_', '+' and '-'",
        matches(NAME),
        "it becomes part of file names",
    ),
]
Glob = Annotated[
    str,
    takes(
        "files below the logs of a node, such as rank-0.out or node.out",
        _is_glob,
        "without / at its beginning and ..",
    ),
]
Scalar = Annotated[
    bool | int | float | str,
    takes(
        "a number, text, true or false",
        lambda value: type(value) in (bool, int, float) or is_text(value),
    ),
]
Number = Annotated[
    int | float,
    takes(
        "a number",
        lambda value: type(value) in (int, float),
        "write it without quotes, and without a unit",
    ),
]
Above0 = Annotated[
    int | float,
    takes(
        "a number above 0", lambda value: type(value) in (int, float) and 0 < value < float("inf")
    ),
]
Share = Annotated[
    int | float,
    takes(
        "a number above 0 and below 1", lambda value: type(value) in (int, float) and 0 < value < 1
    ),
]
Separator = Annotated[
    str,
    takes(
        "a comma, a space, _ or an apostrophe",
        lambda value: value in THOUSANDS,
        "such as thousands: ','; a point is the one before decimals",
    ),
]
Suffix = Annotated[
    str, takes("one to three letters", matches(re.compile("[A-Za-z]{1,3}")), "such as K, Mi or GB")
]
Truth = Annotated[bool, takes("true or false", lambda value: type(value) is bool)]
Port = Annotated[
    int | Literal["gpus"],
    takes(
        "a whole number from 0 to 64, or gpus",
        lambda value: value == "gpus" or type(value) is int and 0 <= value <= 64,
    ),
]
Pattern = Annotated[
    str, takes("a regular expression as text", is_text, "put single quotes around it")
]
Variable = Annotated[str, takes_variable("a folder")]
Word = Annotated[
    str,
    takes("a name of letters, digits and '_'", matches(WORD)),
    takes(
        "another name",
        lambda value: not hasattr(dict, value),
        "in a template, this one is a method of all options",
    ),
]
Payload = Annotated[
    str,
    takes(
        "another name", lambda value: value != "rank_wrapper.py", "orch's rank wrapper has this one"
    ),
    takes(
        "a file such as train.py, or a folder such as models/, relative to the framework's folder",
        lambda value: value == "rank_wrapper.py" or is_payload_name(value),
        "letters, digits, dots, dashes and underscores; no part begins with a dot or a dash",
    ),
]
Mode = Annotated[
    str,
    takes(
        'permissions such as "0700", in quotes',
        lambda value: is_text(value) and bool(re.fullmatch("0[0-7]{3}", value)),
    ),
]


class Strict(BaseModel):
    """A mapping without other keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

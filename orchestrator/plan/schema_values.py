"""The kinds of values in a ``framework.yaml``, each with the words of a message about another one."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from orchestrator.inventory import fields
from orchestrator.inventory.fields import is_text, matches, takes, takes_variable
from orchestrator.logs import FUNCTIONS
from orchestrator.logs.numbers import THOUSANDS
from orchestrator.plan.payload import is_payload_name

Device = Literal["cuda", "cpu"]
Launch = Literal["every_node", "first_node"]
MeasureName = Literal["training", "language_model", "collectives", "pairs", "readings"]
Scope = Literal["global", "node", "process"]
Unit = Literal["ns", "us", "ms", "s", "min", "h"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def _is_glob(value: Any) -> bool:
    return (
        is_text(value)
        and bool(value)
        and not value.startswith("/")
        and ".." not in value.split("/")
    )


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
Port = Annotated[
    int | Literal["gpus"],
    takes(
        "a whole number from 0 to 64, or gpus",
        lambda value: value == "gpus" or type(value) is int and 0 <= value <= 64,
    ),
]
Variable = Annotated[str, takes_variable("a folder")]
Word = Annotated[
    fields.Word,
    takes(
        "another name",
        lambda value: not hasattr(dict, value),
        "in a template, this one is a method of all options",
    ),
]
_PART = rf"(({'|'.join(FUNCTIONS)})\(\w+(,\w+)*\)|[A-Za-z_]\w*)"
Term = Annotated[
    str,
    takes(
        "a name, a function of names, or the difference of two or of one and a whole number",
        matches(re.compile(rf"{_PART}(-({_PART}|\d+))?", re.ASCII)),
        "such as size_bytes, world_size-1, mean(rate) or samples-before(samples)",
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

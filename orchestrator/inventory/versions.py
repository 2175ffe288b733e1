"""Requirements on versions and texts, and whether a value meets them: ``>=2.20``, ``>=12.4, <13``,
``580.*``.

>>> [meets("2.28.9", ">=2.20"), meets("2.9", ">=2.20"), meets("580.95.05", "580*"), meets("12.8", ">=12.4, <13")]
[True, False, True, True]
"""

from __future__ import annotations

import operator
import re
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

_COMPARED = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")


def is_requirement(text: str) -> bool:
    """Return True for comma-separated conditions on a version, or a pattern, which may use ``*``,
    ``?`` and ``[…]``.
    """
    if re.match(r"\s*[<>=!]", text):
        return all(map(_CONDITION.fullmatch, text.split(",")))
    return bool(text.strip()) and text.isprintable()


def meets(value: str, required: str) -> bool:
    """Return True if a version meets all conditions, or a text the pattern; a text without a
    version meets no condition.
    """
    if not re.match(r"\s*[<>=!]", required):
        return fnmatchcase(value, required)
    version = re.match(r"\d+(?:\.\d+)*", value)
    conditions = [match for match in map(_CONDITION.fullmatch, required.split(",")) if match]
    return version is not None and all(
        _COMPARED[match[1]](_order(version[0], match[2]), 0) for match in conditions
    )


def _order(version: str, other: str) -> int:
    """Return 1, 0 or -1 for a version above, equal to or below another; 2.0 and 2 are equal."""
    pairs = zip_longest(
        *(list(map(int, text.split("."))) for text in (version, other)), fillvalue=0
    )
    return next((1 if a > b else -1 for a, b in pairs if a != b), 0)


def number(value: Any) -> float:
    """Return a number, or a text converted to one; 0 for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0

"""Versions and texts against what is required of them: ``>=2.20``, ``>=12.4, <13``, ``580.*``.

>>> [meets("2.28.9", ">=2.20"), meets("2.9", ">=2.20"), meets("580.95.05", "580*"), meets("12.8", ">=12.4, <13")]
[True, False, True, True]
"""

from __future__ import annotations

import operator
import re
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

__all__ = ["is_requirement", "meets", "number"]

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
    """Whether a text is conditions on a version, by commas, or a pattern with ``*``, ``?`` and ``[…]``."""
    if re.match(r"\s*[<>=!]", text):
        return all(map(_CONDITION.fullmatch, text.split(",")))
    return bool(text.strip()) and text.isprintable()


def meets(found: str, required: str) -> bool:
    """Whether a version meets all conditions, or a text a pattern; what is no version meets no condition."""
    if not re.match(r"\s*[<>=!]", required):
        return fnmatchcase(found, required)
    mine = re.match(r"\d+(?:\.\d+)*", found)
    conditions = [match for part in required.split(",") if (match := _CONDITION.fullmatch(part))]
    return mine is not None and all(_COMPARED[match[1]](_order(mine[0], match[2]), 0) for match in conditions)


def _order(one: str, other: str) -> int:
    """Return 1, 0 or -1 for a version above, equal to or below another; 2.0 and 2 are equal."""
    pairs = zip_longest(*([int(part) for part in text.split(".")] for text in (one, other)), fillvalue=0)
    return next((1 if a > b else -1 for a, b in pairs if a != b), 0)


def number(value: Any) -> float:
    """Return a number, or the one that a text is; 0 for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0

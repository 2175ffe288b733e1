"""Read the answers of vendors' tools: why there is none, JSON, numbers with units, names of programs.

>>> measure({"value": 196592, "unit": "MB"}), measure("N/A"), measure("560.0"), measure("(1600Mhz)")
(196592, None, 560, 1600)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_NUMBER = re.compile(r"(?:Gen\s*|[\[(x]*)(\d+(?:\.\d+)?)\s*[A-Za-z%/°]{0,6}[\])]*")
"""A number as the programs write it, alone or with a unit; a sentence with a number in it is none.
"""


def why_silent(answer: Mapping[str, Any], tool: str) -> str:
    """Return why a tool that did not end with 0 told nothing: what it wrote, if it wrote anything."""
    code, text = answer.get("code"), str(answer.get("text")).strip()[-400:]
    if code is None:
        return f"{tool} did not answer in 10 s"
    if not text:
        return f"{tool} ended with {code}"
    return text if text.casefold().startswith(tool) else f"{tool}: {text}"


def measure(value: Any) -> float | int | None:
    """Return the number of ``{"value": 750, "unit": "W"}``, of ``"560.0"`` or of ``750``; None for
    N/A, for a number below 0 and for anything else.
    """
    value = value.get("value") if isinstance(value, Mapping) else value
    is_plain = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    match = _NUMBER.fullmatch(str(value).strip()) if is_plain else None
    number = float(match[1]) if match else None
    if number is not None and not math.isfinite(number):
        return None
    if number is not None and number.is_integer():
        return int(number)
    return number


def read_json(text: str) -> Any:
    """Return the JSON of a text whose first lines may be warnings."""
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    if not starts:
        raise ValueError("no JSON")
    try:
        return json.JSONDecoder().raw_decode(text[min(starts) :])[0]
    except RecursionError as error:
        raise ValueError("JSON of too many levels") from error


def value_at(entry: Mapping[str, Any], *path: str) -> Any:
    """Return the value at a path of keys; None for none, and for what the tool does not know."""
    value: Any = entry
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value in ("N/A", "") else value


def program_name(text: Any) -> str:
    """Return the name of a program from its command line; ``?`` if it is not known."""
    words = str(text or "?").split()
    return (words[0] if words else "?").rpartition("/")[2][:40]

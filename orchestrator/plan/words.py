"""Parse values of command-line options: comma-separated lists, shapes, percentages, durations.

Each function raises ConfigError with the option, the expected form, and the given text.

>>> words("fp32, fp16,"), numbers("1,2,4", "--nodes"), shapes("1n8g,4x8"), seconds("1.5h", "--budget")
(('fp32', 'fp16'), (1, 2, 4), ((1, 8), (4, 8)), 5400.0)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.errors import ConfigError

__all__ = ["assignments", "numbers", "seconds", "shapes", "share", "words"]

_UNITS_S = {"s": 1, "m": 60, "h": 3600}


def words(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers of a comma-separated list."""
    try:
        return tuple(int(word) for word in words(text))
    except ValueError:
        raise ConfigError(f"expected whole numbers separated by commas, got {text!r}", where=option) from None


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Return (nodes, gpus) of each shape: ``1n8g,4n8g`` or ``1x8,4x8``."""
    pairs = []
    for word in words(text):
        match = re.fullmatch(r"(\d+)n(\d+)g|(\d+)x(\d+)", word)
        if not match:
            raise ConfigError(f"expected shapes such as 1n1g,4n8g, got {word!r}", where="--shape")
        nodes, gpus = (int(part) for part in match.groups() if part is not None)
        pairs.append((nodes, gpus))
    return tuple(pairs)


def share(text: str, option: str) -> float:
    """Return a percentage such as ``1%`` as a share of 1."""
    number = _positive(text.removesuffix("%")) if text.endswith("%") else None
    if number is None or number >= 100:
        raise ConfigError(f"expected a percentage above 0 and below 100, such as 1%, got {text!r}", where=option)
    return number / 100


def seconds(text: str, option: str) -> float:
    """Return the seconds of a duration such as ``90s``, ``30m`` or ``1.5h``."""
    number = _positive(text[:-1]) if text[-1:] in _UNITS_S else None
    if number is None:
        raise ConfigError(f"expected a time such as 90s, 30m or 2h, got {text!r}", where=option)
    return number * _UNITS_S[text[-1]]


def _positive(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) and float(text) > 0 else None


def assignments(pairs: Sequence[str]) -> dict[str, str]:
    """Return ``key=value`` pairs as a mapping. A key with two different values is an error."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"expected key=value, got {pair!r}", where="--set")
        if values.get(key, value) != value:
            raise ConfigError(f"{key} is set twice, to {values[key]!r} and {value!r}", where="--set")
        values[key] = value
    return values

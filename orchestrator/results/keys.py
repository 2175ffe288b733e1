"""The order of keys: by value where all of a column are numbers as programs print them, else as
they first appeared.

>>> in_order([("1M",), ("512",), ("64K",), ("0.5K",)])
[('512',), ('0.5K',), ('64K',), ('1M',)]
>>> in_order([("warm", 8), ("cold", 16), ("warm", 2)])
[('warm', 2), ('warm', 8), ('cold', 16)]
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from orchestrator.results.values import Key

_NUMBER = re.compile(
    r"([-+]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][-+]?[0-9]{1,3})?) ?(?:([kKMGTP])i?)?B?", re.ASCII
)
_POWERS = "KMGTP"


def key_number(part: str | int) -> float | None:
    """Return the number that a part of a key is, None if it is none. A suffix of a size counts in
    powers of 1024.

    >>> key_number("0.25"), key_number("64 KiB"), key_number("2k"), key_number("ring"), key_number(7)
    (0.25, 65536.0, 2048.0, None, 7.0)
    """
    if isinstance(part, int):
        return float(part)
    if len(part) > 40 or not (match := _NUMBER.fullmatch(part)):
        return None
    power = _POWERS.index(match[2].upper()) + 1 if match[2] else 0
    number = float(match[1]) * 1024.0**power
    return number if math.isfinite(number) else None


def in_order(keys: Sequence[Key]) -> list[Key]:
    """Return keys of one metric, given in the order in which they first appeared, sorted column by
    column.
    """
    columns = [_ranks(column) for column in zip(*keys, strict=True)]
    return sorted(
        keys, key=lambda key: [rank[part] for rank, part in zip(columns, key, strict=True)]
    )


def _ranks(column: Sequence[str | int]) -> dict[str | int, float]:
    """Return the place of each part of a column."""
    distinct = list(dict.fromkeys(column))
    numbers = {part: number for part in distinct if (number := key_number(part)) is not None}
    if len(numbers) == len(distinct):
        return numbers
    return {part: float(place) for place, part in enumerate(distinct)}

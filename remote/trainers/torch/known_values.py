"""Known values in large buffers: fill a buffer with them, and verify every element of a result.

PyTorch 1.13 or newer, Python 3.8 or newer. The values are a table that repeats: element i is
``table[i % len(table)]``. Buffers are handled in parts, so that little memory is needed besides
them.
"""

from __future__ import annotations

from typing import Sequence

import torch

TILE = 1 << 20
"""Approximate number of elements that are filled and compared at once."""


def tile(table: Sequence[int], start: int, like: torch.Tensor) -> torch.Tensor:
    """Return the values from element ``start`` on, as many as are handled at once, with the type
    and device of a tensor.
    """
    index = torch.arange(TILE // len(table) * len(table), device=like.device) + start
    return torch.tensor(table, dtype=like.dtype, device=like.device)[index % len(table)]


def fill(buffer: torch.Tensor, table: Sequence[int]) -> None:
    """Fill a buffer of one dimension with a table's values."""
    values = tile(table, 0, buffer)
    for start in range(0, len(buffer), len(values)):
        part = buffer[start : start + len(values)]
        part.copy_(values[: len(part)])


def check(buffer: torch.Tensor, table: Sequence[int], start: int, label: str) -> None:
    """Raise RuntimeError unless a buffer of one dimension holds a table's values from element
    ``start`` on.
    """
    values = tile(table, start, buffer)
    for offset in range(0, len(buffer), len(values)):
        part = buffer[offset : offset + len(values)]
        equal = part == values[: len(part)]
        if not bool(equal.all()):
            at = int((~equal).nonzero()[0])
            got, expected = float(part[at]), float(values[at])
            raise RuntimeError(
                f"wrong result: {label}: element {offset + at}: expected {expected:g}, got {got:g}"
            )

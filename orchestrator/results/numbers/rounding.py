"""How a number is written for people: as published tables round it, and small ones with the digits that they have.

>>> written(2725.415), written(7.0), written(0.0119), written(0.97)
('2725.42', '7.00', '0.0119', '0.970')
"""

from __future__ import annotations

from orchestrator.results.numbers.throughput import published

__all__ = ["written"]


def written(value: float, separator: str = "") -> str:
    """Return a number with two decimals, below 1 with three significant digits. ``separator`` goes between thousands.

    >>> written(-0.0), written(-0.00213), written(1234567.0, separator=","), written(1.2e-7), written(0.996)
    ('0.00', '-0.00213', '1,234,567.00', '1.20e-07', '1.00')
    """
    rounded = published(value)
    return f"{value:#.3g}" if value and abs(rounded) < 1 else f"{rounded + 0.0:{separator}.2f}"

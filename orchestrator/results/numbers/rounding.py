"""Write numbers for people: rounded as in published tables, small ones with their digits.

>>> format_number(2725.415), format_number(7.0), format_number(0.0119), format_number(0.97)
('2725.42', '7.00', '0.0119', '0.970')
"""

from __future__ import annotations

import math

from orchestrator.results.numbers.throughput import round_like_numpy


def format_number(value: float, separator: str = "") -> str:
    """Return a number with two decimals, below 1 with three significant digits. ``separator`` goes
    between thousands.

    >>> [format_number(value) for value in (-0.0, -0.00213, 1.2e-7, 0.996)]
    ['0.00', '-0.00213', '1.20e-07', '1.00']
    >>> format_number(1234567.0, separator=",")
    '1,234,567.00'
    """
    rounded = round_like_numpy(value)
    if value and abs(rounded) < 1:
        return f"{value:#.3g}"
    return f"{rounded + 0.0:{separator}.2f}"


def percent(share: float, up: bool = False) -> str:
    """Return a share in percent with three significant digits, or two and rounded up.

    >>> percent(0.1), percent(0.004), percent(0.075), percent(13.37), percent(0.1417, up=True), percent(2.031, up=True)
    ('10%', '0.4%', '7.5%', '1337%', '15%', '210%')
    """
    value = 100 * share
    if up and value > 0:
        unit = 10.0 ** (math.floor(math.log10(value)) - 1)
        value = math.ceil(round(value / unit, 6)) * unit
    if abs(value) >= 100:
        return f"{value:.0f}%"
    return f"{value:.3g}%"

"""Rounding interval of a printed number.

Everything is exact: a figure is the decimal number that was printed, not the float next to it.

>>> cut, nearest = Printing(0, "cut"), Printing(2)
>>> tokens_per_s = cut.bounds(61567)
>>> nearest.bounds(59.34).meets(tokens_per_s.times(Fraction(100 * 24_058_460_160, 8 * 312 * 10**12)))
True
>>> cut.bounds(153).meets(Bounds(Fraction("152.9926"), Fraction("152.9993"), ends_below=True))
False
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

CUT = "cut"


@dataclass(frozen=True, slots=True)
class Bounds:
    """All numbers from ``low`` to ``high``, which is not one of them if ``ends_below``."""

    low: Fraction
    high: Fraction
    ends_below: bool = False

    def times(self, factor: Fraction) -> Bounds:
        """Return these bounds multiplied by ``factor``, above 0."""
        return Bounds(self.low * factor, self.high * factor, self.ends_below)

    def meets(self, other: Bounds) -> bool:
        """Return True if a number is in both."""
        return self._reaches(other.low) and other._reaches(self.low)

    def _reaches(self, low: Fraction) -> bool:
        return low < self.high or (low == self.high and not self.ends_below)


@dataclass(frozen=True, slots=True)
class Printing:
    """The printing of figures: ``places`` decimal places, ``nearest`` or ``cut`` there."""

    places: int = 0
    by: str = "nearest"

    def bounds(self, printed: float) -> Bounds:
        """Return all numbers that are printed as ``printed``; ties to either side."""
        unit, figure = Fraction(1, 10**self.places), exact(printed)
        if self.by == CUT:
            return Bounds(figure, figure + unit, ends_below=True)
        return Bounds(figure - unit / 2, figure + unit / 2)


def exact(printed: float) -> Fraction:
    """Return the decimal number that a float was written as."""
    return Fraction(repr(printed))


def split_known(wrong: Sequence[str], known: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the disagreements of a table that are known as ``odd``, others as ``undeclared``, and
    known ones that were not found as ``unseen``.
    """
    return {
        "odd": tuple(text for text in wrong if text in known),
        "undeclared": tuple(text for text in wrong if text not in known),
        "unseen": tuple(text for text in known if text not in wrong),
    }

"""Numbers as programs print them: with a separator between thousands, with a suffix such as ``K``;
and how finely.

>>> form = NumberForm(",", {"K": 1e3, "M": 1e6})
>>> form.number("5,762"), form.number("1.31M"), form.whole("1,024"), form.resolution("1.31M")
(5762.0, 1310000.0, 1024, 10000.0)
>>> form.number("5,76"), form.number("3 GB"), form.whole("1.31M")
(None, None, None)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from orchestrator.logs.text import whole

THOUSANDS = (",", "_", "'", " ")
"""What may separate thousands."""
_DIGITS = re.compile(r"\s*[-+]?([0-9]*)(?:[.]([0-9]*))?(?:[eE]([-+]?[0-9]{1,3}))?\s*", re.ASCII)

_NAN_OF_C = re.compile(
    r"[-+]?(?:nan\(\w*\)|1\.#(?:QNAN|SNAN|IND|INF|J)[0-9]*)", re.ASCII | re.IGNORECASE
)
"""What libraries of C print for a number that is none."""


@lru_cache(maxsize=len(THOUSANDS))
def _grouped_number(separator: str) -> re.Pattern[str]:
    return re.compile(
        rf"\s*[-+]?[0-9]{{1,3}}(?:{re.escape(separator)}[0-9]{{3}})+(?:[.][0-9]*)?\s*", re.ASCII
    )


@dataclass(frozen=True, slots=True)
class NumberForm:
    """The form in which a program writes numbers.

    ``thousands`` separates groups of three digits, and each suffix multiplies the number before it,
    as ``K`` does by 1000. Without either, Python must be able to read the number.
    """

    thousands: str = ""
    suffixes: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Return whether numbers have neither separators nor suffixes."""
        return not (self.thousands or self.suffixes)

    def number(self, text: str) -> float | None:
        """Return the number that a text is; None if it is none.

        >>> PLAIN.number("-nan(ind)"), PLAIN.number("1.#QNAN"), PLAIN.number("nano")
        (nan, nan, None)
        """
        digits, factor = self._parts(text)
        try:
            return float(digits) * factor
        except ValueError:
            return math.nan if _NAN_OF_C.fullmatch(text) else None

    def whole(self, text: str | None) -> int | None:
        """Return the whole number that a text is, None if it is none. Suffixes are not accepted:
        they round.
        """
        return None if text is None else whole(self._join(text))

    def numbers(self, texts: Sequence[str]) -> list[float]:
        """Return the numbers that texts are. Raises ValueError if one is none."""
        if self.is_plain:
            return list(map(float, texts))
        numbers = [number for number in map(self.number, texts) if number is not None]
        if len(numbers) != len(texts):
            raise ValueError("not numbers")
        return numbers

    def join_digits(self, texts: Sequence[str]) -> Sequence[str]:
        """Return whole numbers as digits alone."""
        if self.thousands:
            return [self._join(text) for text in texts]
        return texts

    def resolution(self, text: str) -> float:
        """Return the value of one unit of the last printed digit; 0 for a text without digits.

        >>> PLAIN.resolution("5762"), PLAIN.resolution("0.50"), PLAIN.resolution("1.234e3"), PLAIN.resolution("inf")
        (1.0, 0.01, 1.0, 0.0)
        """
        digits, factor = self._parts(text)
        match = _DIGITS.fullmatch(digits)
        if not match or not (match[1] or match[2]):
            return 0.0
        return math.pow(10.0, int(match[3] or 0) - len(match[2] or "")) * factor

    def _parts(self, text: str) -> tuple[str, float]:
        """Return the digits of a number without separators, and what its suffix multiplies them by."""
        for suffix in sorted(self.suffixes, key=len, reverse=True) if self.suffixes else ():
            digits = text.removesuffix(suffix)
            if digits != text and digits[-1:].strip("0123456789. ") == "":
                return self._join(digits.rstrip(" ")), self.suffixes[suffix]
        return self._join(text), 1.0

    def _join(self, text: str) -> str:
        separator = self.thousands
        if separator and separator in text:
            # A separator in any other place, as in 5,76, may be a decimal comma.
            if not _grouped_number(separator).fullmatch(text):
                return "?"
            return text.replace(separator, "")
        return text


PLAIN = NumberForm()


def resolution_of_clock(text: str) -> float:
    """Return the seconds that one unit of the last digit of a printed clock is worth.

    >>> resolution_of_clock("21:10:59,902"), resolution_of_clock("21:10:59")
    (0.001, 1.0)
    """
    fraction = re.search(r"[.,]([0-9]+)\s*\Z", text)
    return math.pow(10.0, -len(fraction[1])) if fraction else 1.0


class Finest:
    """The finest resolution in which each group of a log is printed, in the unit of its values
    after ``factors``.

    The finest, because a number that happens to end with zeros may be printed without them.
    """

    def __init__(self, form: NumberForm, factors: Mapping[str, float]) -> None:
        self.form = form
        self.factors = factors
        self.by_name: dict[str, float] = {}

    def see(self, name: str, text: str) -> None:
        """Take the text of a group into account."""
        resolution = resolution_of_clock(text) if ":" in text else self.form.resolution(text)
        if resolution:
            resolution *= self.factors.get(name, 1.0)
            self.by_name[name] = min(self.by_name.get(name, resolution), resolution)

"""An expected result of a bench, as one line of text: a metric, a bound, and where it applies.

>>> expectation_of("busbw >= 350 nodes=2 size_bytes=8589934592")
Expectation(metric='busbw', bound='>=', number=350.0, at={'nodes': '2', 'size_bytes': '8589934592'})
>>> str(expectation_of("latency<=2.5 test='random read'"))
'latency <= 2.5 test="random read"'
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.errors import ConfigError
from orchestrator.plan.option_values import QUOTED, quote, unquote

_SPACES = " \t\n\r\f\v"
_AT = rf"([A-Za-z_][A-Za-z0-9_.]*)=({QUOTED}(?!\S)|[^\s\"']\S*)"
_VALUE = re.compile(_AT, re.ASCII)
_FORM = re.compile(rf"\s*([A-Za-z_][A-Za-z0-9_]*)\s*(>=|<=)\s*(\S+)((?:\s+{_AT})*)\s*", re.ASCII)
_MOST_CHARACTERS = 300
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Expectation:
    """A metric is at least (``>=``) or at most (``<=``) a number, in its unit, where these values
    hold: fields of a spec such as ``nodes`` or ``dtype``, options, variables, and keys of the
    metric (``at``). As text it has every digit of the number, because a bench records it so."""

    metric: str
    bound: str
    number: float
    at: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        number = repr(self.number).removesuffix(".0")
        return " ".join(
            [
                self.metric,
                self.bound,
                number,
                *(f"{name}={as_value(value)}" for name, value in self.at.items()),
            ]
        )

    def is_met_by(self, value: float) -> bool:
        """Return whether a value is within the bound, up to the rounding of a mean of logarithms."""
        if math.isclose(value, self.number, rel_tol=_ROUNDING):
            return True
        if self.bound == ">=":
            return value >= self.number
        return value <= self.number


def as_value(value: str) -> str:
    """Return the text of a value in a bound: in quotes if it is empty or contains white space, or
    begins with a quote.
    """
    return quote(value, _SPACES)


def expectation_of(text: str, where: str = "") -> Expectation:
    """Return the expectation written as text. Raises ConfigError, naming ``where``."""
    match = _FORM.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    try:
        number = float(match[3]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not math.isfinite(number):
        hint = (
            "name values that only some configurations have after it, such as size_bytes=1073741824 or nodes=2, "
            'and put a value with spaces in quotes: test="random read"'
        )
        raise ConfigError(
            f"expected a bound such as busbw >= 350, got {text[:80]!r}", where=where, hint=hint
        )
    values = [(name, unquote(value)) for name, value in _VALUE.findall(match[4])]
    names = [name for name, _ in values]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        message = f"expected each name once, got {twice[0]} again in {text[:80]!r}"
        raise ConfigError(message, where=where, hint="give a bound of its own for each value")
    expected = Expectation(match[1], match[2], number, dict(values))
    if len(str(expected)) > _MOST_CHARACTERS:  # a bench could not read it back
        raise ConfigError(
            f"expected a bound of at most {_MOST_CHARACTERS} characters, got {text[:80]!r}",
            where=where,
        )
    return expected

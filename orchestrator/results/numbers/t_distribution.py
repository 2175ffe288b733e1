"""Student's t distribution, and Fisher's F: all that intervals need of a library of 200 MB.

Probabilities come from the incomplete beta function by its continued fraction (NIST Digital Library
of Mathematical Functions, section 8.17, https://dlmf.nist.gov/8.17), quantiles from them by
Newton's method. Both agree with SciPy's in eleven digits.

>>> f"{student(9, 0.975):.6f} {student(2.5, 0.05):.6f} {probability(9, -2.262157):.6f}"
'2.262157 -2.558219 0.025000'
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_MANY = 1000.0
"""With more degrees of freedom, four terms of an expansion around the normal distribution have all
digits.
"""
_LARGE = 500.0
_EXACT = 1e-15
_MOST_TERMS = 10_000


def probability(freedom: float, t: float) -> float:
    """Return how often a value is at most ``t``. ``freedom``: the degrees of freedom, 1 or more,
    not necessarily whole.

    >>> probability(1, 1.0), probability(5, 0.0)
    (0.75, 0.5)
    """
    beyond = _beyond(freedom, abs(t))
    return 1 - beyond if t > 0 else beyond


@lru_cache(maxsize=4096)
def student(freedom: float, chance: float) -> float:
    """Return the quantile of Student's t: the value that is exceeded with the probability 1 -
    ``chance``, infinite for 0 and 1.

    ``freedom``: the degrees of freedom, 1 or more, not necessarily whole.
    """
    tail = min(chance, 1 - chance)
    if tail <= 0:
        return math.copysign(math.inf, chance - 0.5)
    if tail == 0.5:
        return 0.0
    far = _expand(freedom, tail) if freedom > _MANY else _far(freedom, tail)
    return math.copysign(far, chance - 0.5)


def fisher(ratio: float, above: float, below: float) -> float:
    """Return how often the ratio of two estimates of one variance is more than ``ratio``, above 0;
    ``above``, ``below``: the degrees of freedom of the two.

    >>> f"{fisher(3.738892, 2, 14):.6f} {fisher(1.0, 7, 7):.6f}"
    '0.050000 0.500000'
    """
    a, b = below / 2, above / 2
    x, rest = below / (below + above * ratio), above * ratio / (below + above * ratio)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    if x < (a + 1) / (a + b + 2):
        return front / a * _fraction(a, b, x)
    return 1 - front / b * _fraction(b, a, rest)


def _far(freedom: float, tail: float) -> float:
    """Return the value above 0 that is exceeded with the probability ``tail``.

    The logarithm of the probability beyond t is a concave function of log t, so Newton's method
    approaches the root from above after its first step, wherever it begins.
    """
    t = _expand(freedom, tail) if freedom > 4 else _bound(freedom, tail)
    for number in range(100):
        beyond = _beyond(freedom, t)
        step = math.log(beyond / tail) * beyond / (t * _density(freedom, t))
        t *= math.exp(step)
        if abs(step) < 4 * _EXACT or (
            number and step >= 0
        ):  # from above, it grows by rounding alone
            break
    return t


def _bound(freedom: float, tail: float) -> float:
    """Return a value beyond which there is less than ``tail``, from a power law above the density."""
    return math.exp(
        (_log_scale(freedom) + (freedom - 1) / 2 * math.log(freedom) - math.log(tail)) / freedom
    )


def _expand(freedom: float, tail: float) -> float:
    """Return the quantile, expanded around the normal distribution's (Abramowitz and Stegun,
    "Handbook of Mathematical Functions", 1964, 26.7.5).
    """
    z = -NormalDist().inv_cdf(tail)
    s = z * z
    terms = (
        1.0,
        (s + 1) / 4,
        ((5 * s + 16) * s + 3) / 96,
        (((3 * s + 19) * s + 17) * s - 15) / 384,
        ((((79 * s + 776) * s + 1482) * s - 1920) * s - 945) / 92160,
    )
    return z * math.fsum(term / freedom**power for power, term in enumerate(terms))


def _density(freedom: float, t: float) -> float:
    return math.exp(_log_scale(freedom) - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _log_scale(freedom: float) -> float:
    """Return the logarithm of the density at 0."""
    if freedom <= _LARGE:
        return (
            math.lgamma((freedom + 1) / 2)
            - math.lgamma(freedom / 2)
            - math.log(math.pi * freedom) / 2
        )
    # The quotient of both gamma functions in powers of 1 / a; the difference of logarithms as large
    # as theirs has few digits.
    a = freedom / 2
    quotient = -1 / (8 * a) + 1 / (128 * a**2) + 5 / (1024 * a**3) - 21 / (32768 * a**4)
    return math.log1p(quotient) - math.log(2 * math.pi) / 2


def _beyond(freedom: float, t: float) -> float:
    """Return the probability of values above ``t``, which is 0 or more: half of I_x(freedom / 2, 1
    / 2).
    """
    x, rest = freedom / (freedom + t * t), t * t / (freedom + t * t)
    a, b = freedom / 2, 0.5
    if not rest:
        return 0.5
    # x^a (1 - x)^b / B(a, b)
    front = math.exp(
        _log_scale(freedom) + math.log(freedom) / 2 - a * math.log1p(t * t / freedom)
    ) * math.sqrt(rest)
    if x < (a + 1) / (a + b + 2):
        return front / a * _fraction(a, b, x) / 2
    return 0.5 - front / b * _fraction(b, a, rest) / 2


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of DLMF 8.17.22, by the method of Lentz as Thompson and Barnett
    changed it (1986).
    """
    value, above, below = 1.0, math.inf, 1.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / (1 + factor * below)
        above = 1 + factor / above
        value *= above * below
        if abs(above * below - 1) < _EXACT:
            break
    return value

"""The probability that noise alone makes a member of a group as slow as it was, from all members'
noise.

Noise of measurements is rarely normal: one measurement in four may be 6 % slow, or all of it may
lie on one side. So no shape is assumed. Each repeat of each member is a cell: its distance above
the level of its repeat. If members are equal and repeats are independent, the number of a member's
``n`` cells above some height is binomial, with the share of all cells above it. If the cells above
it come together in few members, then repeats are not independent, or some members have more noise
than others. The number is then beta-binomial, with the correlation of two cells of a member (J. G.
Skellam, JRSS B 10, 1948). Members that are above the height in nearly all their repeats show no
noise and are left out, as in a slow third of a cluster. A share without any observation is not 0:
it is (k + 1) / (n + 1) (P. S. de Laplace).

>>> quiet = pool_noise([[0.01, -0.02, 0.0, 0.01, -0.01]] * 15 + [[0.06, 0.07, 0.06, 0.08, 0.07]], 4)
>>> often = pool_noise([[0.06, -0.02, 0.0, 0.07, -0.01]] * 15 + [[0.06, 0.07, 0.06, 0.08, 0.07]], 4)
>>> [f"{noise.chance([0.06, 0.07, 0.06, 0.08, 0.07], [(1.0, 0.0)]):.1e}" for noise in (quiet, often)]
['7.9e-10', '2.3e-02']
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from orchestrator.results.numbers.t_distribution import student

_DOUBT, _FEW = 2.0, 0.1
"""Pairs of cells that come together count from this many standard deviations beyond what chance
makes of them, where less than this share of the cells is above a height."""
_STEPS_OF_TEN = 12
"""Steps of a sum over a distribution's tail, for each power of ten of its probability."""
_MORE_LIKELY = math.log(15)
"""Members that are slow for good explain what was seen so many times better than slow periods, or
they do not.
"""
_AS_SLOW, _AS_FAST = 0.7, 0.25
"""A member is as slow as a slow one, in a repeat, from this share of what that is slower by, and
not slow up to that share.
"""


@dataclass(frozen=True, slots=True)
class PooledNoise:
    """The cells of a group, each member with ``repeats`` of them.

    ``heights`` are the heights of all cells, negated and ascending. For each of them, ``above``
    counts the cells that are as high, ``pairs`` the pairs of these in one member, and ``members``
    the members with fewer than ``least`` such cells: the others are that high in nearly all their
    repeats.
    """

    repeats: int
    least: int
    heights: Sequence[float]
    above: Sequence[int]
    pairs: Sequence[int]
    members: Sequence[int]

    def chance(self, cells: Sequence[float], lasting: Sequence[tuple[float, float]]) -> float:
        """Return how often noise alone makes a member at least as slow as its cells say, in nearly
        all of its repeats.

        ``lasting``: what equal members differ by for good, as pairs of a probability and a height,
        see `offsets`.
        """
        ordered = sorted(cells, reverse=True)
        counts = sorted({self.repeats // 2 + 1, *range(self.least, self.repeats + 1)})
        chances = []
        for count in counts:
            height = ordered[count - 1]
            chances.append(
                math.fsum(weight * self._tail(height - offset, count) for weight, offset in lasting)
            )
        return min(1.0, 2 * min(chances))

    def _tail(self, height: float, count: int) -> float:
        """Return how often a member without a lasting difference has so many cells or more that are
        as high.
        """
        place = bisect_right(self.heights, -height) - 1
        above, pairs, members = (0, 0, self.members[0]) if place < 0 else (
            self.above[place], self.pairs[place], self.members[place + 1])  # fmt: skip
        cells = members * self.repeats
        if height <= 0 or not cells or 2 * above >= cells:
            return 1.0
        share = (above + 1) / (cells + 1)
        return _beta_binomial_tail(
            self.repeats, count, share, self._correlation(above / cells, pairs, members)
        )

    def _correlation(self, share: float, pairs: int, members: int) -> float:
        """Return the correlation of two cells of a member; with few cells, as far as it is certain."""
        of_all = members * self.repeats * (self.repeats - 1) / 2
        expected = of_all * share * share
        doubt = _DOUBT if share < _FEW else 0.0
        beyond = pairs - expected - doubt * math.sqrt(max(1.0, expected))
        if beyond > 0:
            return min(0.99, beyond / (of_all * share * (1 - share)))
        return 0.0


def pool_noise(over: Sequence[Sequence[float]], least: int) -> PooledNoise:
    """Return the noise of members that have as many cells each. ``over``: how far each cell is
    above the level of its repeat;
    ``least``: the count of cells that are nearly all of a member."""
    repeats = len(over[0])
    cells = sorted(
        ((-height, member) for member, of_member in enumerate(over) for height in of_member)
    )
    counts = [0] * len(over)
    above, pairs, members = 0, 0, len(over)
    of_above, of_pairs, of_members = [], [], [members]
    for _, member in cells:
        count = counts[member]
        counts[member] += 1
        if count + 1 < least:
            above += 1
            pairs += count
        elif count + 1 == least:
            above -= count
            pairs -= count * (count - 1) // 2
            members -= 1
        of_above.append(above)
        of_pairs.append(pairs)
        of_members.append(members)
    return PooledNoise(
        repeats, least, [height for height, _ in cells], of_above, of_pairs, of_members
    )


def may_pass(members: Sequence[Sequence[float]], slower: float, least: int) -> bool:
    """Return True if slow periods that last explain the members that are slower, by about so much,
    from the first repeat to the last and in ``least`` of them or more.

    Each member has its cells in the order of the repeats. If none is slow in two consecutive
    repeats and fast in another, slow periods are not seen to last. If some are, all members may be
    slow or fast by one Markov chain of two states, with its probabilities of staying in either.
    That is compared, by likelihood, with such a chain of the others, beside members that are slow
    for good.

    >>> quiet, slow = [0.0] * 5, [0.06] * 5
    >>> for_a_while, now_and_then = [0.06, 0.06, 0.06, 0.0, 0.0], [0.06, 0.0, 0.06, 0.0, 0.06]
    >>> [may_pass([slow, other, *[quiet] * 14], 0.06, 4) for other in (quiet, for_a_while, now_and_then)]
    [False, True, False]
    """
    steady, starts, turns = 0, [0, 0], [[0, 0], [0, 0]]
    for cells in members:
        states = [cell > _AS_SLOW * slower for cell in cells]
        not_fast = [cell > _AS_FAST * slower for cell in cells]
        if (
            not_fast[0]
            and not_fast[-1]
            and sum(not_fast) >= least
            and 2 * sum(states) >= len(states)
        ):
            steady += 1
            continue
        starts[states[0]] += 1
        for state, following in pairwise(states):
            turns[state][following] += 1
    if not turns[True][True]:
        return False
    stays = steady * (len(members[0]) - 1)
    slow_for_good = (
        _log_likelihood(steady, sum(starts))
        + _log_likelihood(*starts)
        + _log_likelihood(*turns[True])
    )
    slow_for_a_while = _log_likelihood(starts[False], starts[True] + steady)
    slow_for_a_while += _log_likelihood(turns[True][False], turns[True][True] + stays)
    return slow_for_good - slow_for_a_while < _MORE_LIKELY


def _log_likelihood(one: int, other: int) -> float:
    """Return the logarithm of the largest likelihood of so many outcomes of two kinds."""
    return math.fsum(count * math.log(count / (one + other)) for count in (one, other) if count)


def offsets(scale: float, freedom: float, least: float) -> list[tuple[float, float]]:
    """Return Student's t, times ``scale``, as pairs of a probability and the upper end of where it
    lies, down to tails that are less probable than ``least``. A sum over the pairs is never below
    the integral of a function that increases."""
    powers = math.ceil(-math.log10(least / 10) * _STEPS_OF_TEN)
    tails = [0.5, *(10 ** (-number / _STEPS_OF_TEN) for number in range(4, powers + 1))]
    pairs = [(0.5, 0.0)]
    for tail, beyond in zip(tails, tails[1:], strict=False):
        pairs.append((tail - beyond, scale * student(freedom, 1 - beyond)))
    return [*pairs, (tails[-1], math.inf)]


@lru_cache(maxsize=1 << 16)
def _beta_binomial_tail(trials: int, least: int, share: float, correlation: float) -> float:
    """Return how often ``least`` or more of so many trials succeed, each by a share, two of them
    with a correlation.

    >>> [round(_beta_binomial_tail(5, 5, 0.25, correlation), 6) for correlation in (0.0, 0.2)]
    [0.000977, 0.017857]
    """
    size = (1 - correlation) / correlation if correlation else math.inf
    return math.fsum(
        _beta_binomial(trials, count, share, size) for count in range(least, trials + 1)
    )


def _beta_binomial(trials: int, count: int, share: float, size: float) -> float:
    """Return how often exactly ``count`` trials succeed; ``size`` is the sum of both parameters of
    the beta distribution.
    """
    chance = float(math.comb(trials, count))
    for number in range(trials):
        succeeded = min(number, count)
        if number < count:
            chance *= share if math.isinf(size) else (share * size + succeeded) / (size + number)
        else:
            chance *= (
                1 - share
                if math.isinf(size)
                else ((1 - share) * size + number - count) / (size + number)
            )
    return chance


def median_reach(deviations: Sequence[float], draws: int, level: float) -> tuple[float, float]:
    """Return how far the median of so many draws from deviations is below and above 0, each at
    most, in a share ``level`` of cases.

    >>> [f"{end:.2f}" for end in median_reach([-0.1, 0.0, 0.0, 0.0, 0.1, 0.9] * 10, 5, 0.95)]
    ['0.10', '0.90']
    """
    ordered, least = sorted(deviations), draws // 2 + 1
    low, high = (
        0.5,
        1.0,
    )  # the share of a value that the median is at most, in all but half of the remaining cases
    for _ in range(30):
        share = (low + high) / 2
        is_enough = _beta_binomial_tail(draws, least, share, 0.0) >= (1 + level) / 2
        low, high = (low, share) if is_enough else (share, high)
    place = min(len(ordered) - 1, math.ceil(high * len(ordered)) - 1)
    return max(0.0, -ordered[len(ordered) - 1 - place]), max(0.0, ordered[place])

"""The share of the change from A to B that a candidate explains, from runs in common blocks.

A candidate runs some differences as B has them and all others as A has them. In a block, A, B and
the candidates run once each, one after the other, so drift is common to them. The share of a
candidate is its change over B's, of logarithms: log(candidate / A) / log(B / A), each the mean over
blocks. Its interval is Fieller's for a ratio of two means with correlated errors (E. C. Fieller, "Some
problems in interval estimation", Journal of the Royal Statistical Society B 16, 1954), with
Student's t.

>>> speeds = {(0, 0): {1: 100.0, 2: 102.0, 3: 99.0}, (1, 0): {1: 90.0, 2: 91.0, 3: 90.0}, (1, 1): {1: 80.0, 2: 81.0, 3: 79.5}}
>>> found = share(speeds, (1, 0))
>>> f"{found.value:.2f}, {found.low:.2f} to {found.high:.2f}, {found.blocks}"
'0.47, 0.39 to 0.54, 3'
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import covariance

from orchestrator.features.search.record import Candidate
from orchestrator.features.search.strategy import Speeds
from orchestrator.results.numbers.intervals import LEVEL
from orchestrator.results.numbers.t_distribution import student


@dataclass(frozen=True, slots=True)
class Share:
    """The share of the change that a candidate explains, 1 for all of it, with its interval; the
    ends are infinite where the change of B may be none."""

    value: float
    low: float
    high: float
    blocks: int

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2


def is_side(candidate: Candidate) -> bool:
    """Return True for A and for B."""
    return len(set(candidate)) < 2


def find_shared_blocks(speeds: Speeds, *candidates: Candidate) -> list[int]:
    """Return the blocks in which all of these candidates have a value."""
    blocks = [set(speeds.get(candidate, ())) for candidate in candidates]
    return sorted(set.intersection(*blocks))


def share(speeds: Speeds, candidate: Candidate) -> Share | None:
    """Return the share of the change that a candidate explains; None with fewer than two blocks
    with A, B and it.
    """
    a, b = (0,) * len(candidate), (1,) * len(candidate)
    blocks = find_shared_blocks(speeds, a, b, candidate)
    count = len(blocks)
    if count < 2:
        return None
    part = [math.log(speeds[candidate][block] / speeds[a][block]) for block in blocks]
    whole = [math.log(speeds[b][block] / speeds[a][block]) for block in blocks]
    x, z = math.fsum(part) / count, math.fsum(whole) / count
    reach = student(count - 1, (1 + LEVEL) / 2) ** 2 / count
    square = z * z - reach * covariance(whole, whole)
    middle = x * z - reach * covariance(part, whole)
    rest = x * x - reach * covariance(part, part)
    if square <= 0:
        return Share(x / z if z else 0.0, -math.inf, math.inf, count)
    root = math.sqrt(max(0.0, middle * middle - square * rest))
    return Share(x / z, (middle - root) / square, (middle + root) / square, count)

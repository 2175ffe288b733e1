"""How many blocks a bench has, in which order, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LEAST", "MOST", "Schedule"]

LEAST, MOST = 8, 30
"""Repeats with ``--until-ci``. With fewer than eight to begin with, an interval that is narrow by chance ends too many benches:
``benchmarks/coverage.py --until-ci``."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a bench goes on: ``repeats`` blocks, and with ``until_ci`` more, up to ``max_repeats``.

    ``until_ci`` is the half-width that every 95 % interval shall have at most, as a share of its median; ``budget_s`` bounds
    the time of the whole bench. ``seed`` makes a random order what it is.
    """

    order: str = "interleaved"
    seed: int = 0
    repeats: int = 1
    until_ci: float | None = None
    max_repeats: int = MOST
    budget_s: float | None = None

    @property
    def most(self) -> int:
        """The largest number of repeats."""
        return self.repeats if self.until_ci is None else self.max_repeats

    @property
    def aim(self) -> str:
        """``until_ci`` in words."""
        return f"±{100 * (self.until_ci or 0):g}%"

    @property
    def adapts(self) -> bool:
        """Claim that the number of runs is not certain beforehand."""
        return self.until_ci is not None or self.budget_s is not None

    def fits(self, used_s: float, expected_s: float) -> bool:
        """Claim that something may begin now that is expected to take so long; 0 where nothing is known of it."""
        return self.budget_s is None or used_s < self.budget_s and used_s + expected_s <= self.budget_s

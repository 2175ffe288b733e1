"""The schedule of a bench: number of blocks, order of runs, and time budget."""

from __future__ import annotations

from dataclasses import dataclass

LEAST, MOST = 8, 30
"""Initial and largest number of repeats with ``--until-ci``. With fewer than eight initial repeats,
a randomly narrow interval ends too many benches: ``benchmarks/coverage.py --until-ci``."""

ORDERS = ("balanced", "random", "interleaved")
"""Of the configurations in a block: alternately forwards and backwards, so that drift falls out;
shuffled; always forwards, as benches ran before there was a choice."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a bench: ``repeats`` blocks, and with ``until_ci`` more, up to
    ``max_repeats``.

    ``order`` is one of `ORDERS`; ``seed`` determines a random one. ``until_ci`` is the target for
    the half-width of every 95 % interval, as a share of its value; ``budget_s`` limits the time of
    the whole bench in seconds.
    """

    order: str = "balanced"
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
        """Return whether the number of runs depends on how the bench goes."""
        return self.until_ci is not None or self.budget_s is not None

    def fits(self, used_s: float, expected_s: float) -> bool:
        """Return True if work expected to take ``expected_s`` fits into the budget; 0 if its
        duration is unknown.
        """
        return (
            self.budget_s is None or used_s < self.budget_s and used_s + expected_s <= self.budget_s
        )

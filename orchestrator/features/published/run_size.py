"""The size of a run, as far as a published rule needs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """The size of one run. ``batch_size`` is samples per device; ``images`` is the size of the data
    set, 0 if not known.
    """

    nodes: int
    gpus: int
    batch_size: int
    images: int = 0

    @property
    def ranks(self) -> int:
        """Number of devices."""
        return self.nodes * self.gpus

    @property
    def global_batch(self) -> int:
        """Samples of one step."""
        return self.ranks * self.batch_size

    def __str__(self) -> str:
        return f"{self.nodes}n{self.gpus}g"

"""The result of one run, derived from its evidence: the value that every table and comparison is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.plan import MEASURES, Measure, RunSpec
from orchestrator.plan.measures import TRAINING
from orchestrator.results.numbers.tempo import Tempo
from orchestrator.results.numbers.throughput import Throughput

__all__ = ["RunResult"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run, derived from its evidence.

    ``spec`` is None if the manifest cannot be read. ``observed`` is what the training program reported at its end,
    ``step_variation`` the coefficient of variation of the step times in the window. ``by_rank``, if requested and every node
    logs steps, holds the `tempo.quantiles` of the step times (s) in the window by log, ``node1/rank-0.out``. ``readings`` are
    the measurements of a program that does not train, ``slowed`` is the result of `hardware.slowed` for the nodes' clocks.
    """

    run_id: str
    repeat: int
    spec: RunSpec | None
    simulated: bool
    state: str
    throughput: Throughput | None = None
    error: OrchError | None = None
    qualifications: tuple[str, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    observed: Mapping[str, Any] = field(default_factory=dict)
    step_variation: float | None = None
    tempo: Tempo | None = None
    by_rank: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    measure: Measure = MEASURES[TRAINING]
    readings: tuple[Any, ...] = ()
    slowed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether the run has measured what it was planned to measure."""
        return self.error is None and (self.throughput is not None or bool(self.readings))

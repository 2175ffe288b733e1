"""The result of one run, derived from its evidence: the value that every table and comparison is
built from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.checks.facts import NodeFacts, node_facts
from orchestrator.errors import OrchError
from orchestrator.logs.metrics import Metric
from orchestrator.notes import Note
from orchestrator.plan import MEASURES, Measure, RunSpec
from orchestrator.plan.measures import SAMPLES_PER_S, TRAINING
from orchestrator.results.numbers.steady_start import SteadyStart
from orchestrator.results.numbers.tempo import StepTimes, Tempo
from orchestrator.results.numbers.throughput import Throughput
from orchestrator.results.rank_parts import RankParts
from orchestrator.results.reported_figures import Figure
from orchestrator.results.telemetry.utilization import RunUse
from orchestrator.results.values import Value

NEVER_RUN, RUNNING = "never run", "running"
"""States of planned runs that have no result yet."""
RESUME, RETRY = "orch resume", "orch resume --retry-failed"
"""The commands that continue a bench: the first makes runs that were never run, interrupted, or
lost with a node.
"""
REREAD = "orch summarize --reread"
"""The command that reads the logs of a bench with a corrected log grammar."""


class Lowered(NamedTuple):
    """For which share clocks were lowered: of the measured window, at least and at most, and of the
    rank's life, None if its driver does not count."""

    least: float
    most: float
    of_run: float | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run, derived from its evidence.

    ``spec`` is None if the manifest cannot be read. ``resolution`` is the resolution of its
    samples/s, as its log prints numbers. ``observed`` are the facts that the training program
    reported at its end, ``step_times`` summarizes the step times in the window. ``unsteady`` is the
    result of `steadiness.unsteady` for them, ``steady`` the result of `steady_start` for all steps.
    ``metrics`` are the metrics of its program, ``metric_values`` its numbers besides its speed,
    ``said`` the program's own figures of some of them, ``planned_units`` their units before its log
    was read again. ``readings`` are the parsed lines of collectives and pairs. ``slowed`` and
    ``loaded`` are the results of `hardware.find_slowdowns` and `hardware.find_load` for the nodes'
    clocks and processors, ``lost_links`` is the result of `lost_links.count_lost_links`, of failed
    runs too. ``use`` summarizes their samples over the window, None without samples. ``digests``
    are SHA-256 of the logs with samples and of the step times in the window, to the microsecond;
    two runs never have an equal one. ``repeated_by`` is the command that makes a run without a
    number again in the same bench, such as `RESUME`. ``place`` is the run's place in the order in
    which its bench ran, None for a run of another bench or of none. ``rank_parts`` has the parts of
    all ranks, in order, or is empty.
    """

    run_id: str
    repeat: int
    spec: RunSpec | None
    simulated: bool
    state: str
    throughput: Throughput | None = None
    resolution: float = 0.0
    error: OrchError | None = None
    qualifications: tuple[Note, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    observed: Mapping[str, Any] = field(default_factory=dict)
    step_times: StepTimes | None = None
    unsteady: tuple[Note, ...] = ()
    steady: SteadyStart | None = None
    tempo: Tempo | None = None
    measure: Measure = MEASURES[TRAINING]
    metrics: tuple[Metric, ...] = (SAMPLES_PER_S,)
    metric_values: tuple[Value, ...] = ()
    said: tuple[Figure, ...] = ()
    planned_units: Mapping[str, str] = field(default_factory=dict)
    readings: tuple[Any, ...] = ()
    slowed: Mapping[str, Mapping[str, Lowered]] = field(default_factory=dict)
    loaded: Mapping[str, float] = field(default_factory=dict)
    lost_links: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    use: RunUse | None = None
    digests: tuple[str, ...] = ()
    repeated_by: str = ""
    place: int | None = None
    rank_parts: tuple[RankParts, ...] = ()
    _nodes: dict[str, NodeFacts] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def nodes(self) -> Mapping[str, NodeFacts]:
        """The typed facts of its nodes by host, each read once: a wide cluster has hundreds."""
        if not self._nodes:
            self._nodes.update({host: node_facts(told) for host, told in self.facts.items()})
        return self._nodes

    @property
    def values(self) -> tuple[Value, ...]:
        """Its numbers, one for each metric and key; of a training, its speed first."""
        metric, resolution = self.measure.speed, self.resolution and self.resolution * self._items
        speed = []
        if metric and self.speed is not None:
            speed = [Value(metric.name, (), self.speed, resolution)]
        return (*speed, *self.metric_values)

    @property
    def speed(self) -> float | None:
        """Its throughput in the unit of its measure's speed; None without one."""
        if not self.throughput:
            return None
        return self.throughput.samples_per_s * self._items

    @property
    def pace(self) -> tuple[tuple[float, float], ...]:
        """The points of its tempo with speeds in the unit of its measure's speed; empty without
        steps.
        """
        if not self.tempo:
            return ()
        return tuple((at, speed * self._items) for at, speed in self.tempo.points)

    @property
    def begins_too_early(self) -> bool:
        """Return whether its window begins before its steady state, as far as its steps show."""
        if self.throughput is None or self.steady is None:
            return False
        return not self.steady.holds_from(self.throughput.first_step)

    @property
    def _items(self) -> int:
        return self.spec.items if self.spec else 1

    @property
    def is_good(self) -> bool:
        """Return whether the run has its planned measurement."""
        return self.error is None and bool(self.values or self.readings)

    @property
    def is_interrupted(self) -> bool:
        """Return whether the run has no number because it was stopped from outside, or its
        controller died before its end.
        """
        stopped = self.error is not None and self.error.kind == "interrupted"
        return not self.is_good and (stopped or self.state in ("interrupted", "incomplete"))

    @property
    def has_failed(self) -> bool:
        """Return whether the run was made to its end and has no number."""
        return not (self.is_good or self.is_interrupted or self.state in (NEVER_RUN, RUNNING))

"""The cells of a bench, in the order of its table: the runs of one spec, pooled, for each metric
and key that they measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.grouping import group_pairs
from orchestrator.logs.metrics import Metric, primary_of
from orchestrator.plan import Measure, RunSpec
from orchestrator.plan.measures import SAMPLES_PER_S, SPEEDS
from orchestrator.results.keys import in_order
from orchestrator.results.numbers.drift import STEADY, Drift, Placed, drift_of
from orchestrator.results.numbers.steady_start import SteadyStart
from orchestrator.results.numbers.tempo import StepTimes
from orchestrator.results.numbers.throughput import median
from orchestrator.results.run import RunResult
from orchestrator.results.values import Key

SHAPE = ("nodes", "gpus")
LENGTH = ("steps", "warmup_steps", "timeout_s")
"""Fields of a spec that say how large and how long a run is."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The numbers of one good run: its value of the metric, and its step times, None if they are
    not known; ``steady`` is where its steady state began, None if that is not known, and
    ``window_is_steady`` whether its window lies in it."""

    run_id: str
    repeat: int
    value: float
    step_times: StepTimes | None
    steady: SteadyStart | None = None
    window_is_steady: bool | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """All repeats of one spec, in order of repeat, and their ``numbers`` of one metric and key, by
    run id.

    ``primary``: the metric is the one that stands for the run. ``metric_key`` has a value for each
    of `Metric.key_columns`. ``resolutions`` has the resolution of each number, 0 if unknown.
    ``drift`` is common to all cells of its bench that have this metric.
    """

    spec: RunSpec
    simulated: bool
    runs: tuple[RunResult, ...]
    metric: Metric
    metric_key: Key = ()
    primary: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)
    resolutions: Mapping[str, float] = field(default_factory=dict)
    drift: Drift = STEADY

    @property
    def good(self) -> list[RunResult]:
        """The runs that have measured what they were planned to measure."""
        return [run for run in self.runs if run.is_good]

    @property
    def with_number(self) -> list[RunResult]:
        """The good runs that have a number of this metric and key."""
        return [run for run in self.runs if run.run_id in self.numbers]

    @property
    def measure(self) -> Measure:
        """The kind of measurement of its runs."""
        return self.runs[0].measure

    @property
    def drifts_with(self) -> tuple[str, str, str, bool]:
        """A key for cells that share a drift.

        It is the whole metric, not only its name, which folders use for different things.
        """
        return self.metric.name, self.metric.unit, self.metric.better, bool(self.metric.key_columns)

    @property
    def is_speed_of_training(self) -> bool:
        """Return whether its numbers are speeds of a training, which has steps."""
        return self.metric.name in SPEEDS

    @property
    def values(self) -> list[float]:
        """The values of the good runs, in the unit of the metric."""
        return [self.numbers[run.run_id] for run in self.with_number]

    @property
    def placed(self) -> list[Placed]:
        """The values of the good runs, and their places in the bench."""
        return [Placed(run.place, self.numbers[run.run_id]) for run in self.with_number]

    @property
    def by_repeat(self) -> dict[int, Placed]:
        """The values of the good runs, and their places in the bench, by repeat."""
        return {run.repeat: Placed(run.place, self.numbers[run.run_id]) for run in self.with_number}

    @property
    def repeats(self) -> tuple[Repeat, ...]:
        """The numbers of each good run."""
        return tuple(
            Repeat(
                run.run_id,
                run.repeat,
                self.numbers[run.run_id],
                run.step_times,
                run.steady,
                not run.begins_too_early if run.steady else None,
            )
            for run in self.with_number
        )

    @property
    def median(self) -> float | None:
        """The median of the values; None without good runs."""
        return median(self.values) if self.numbers else None

    @property
    def is_positive(self) -> bool:
        """Return whether all values are above 0, so that they can be compared as ratios."""
        return min(self.numbers.values(), default=1.0) > 0

    @property
    def key_values(self) -> dict[str, str | int]:
        """The values of its key by name; empty for a metric without keys."""
        return dict(zip(self.metric.key_columns, self.metric_key, strict=False))

    def key(self, *without: str) -> str:
        """Return spec, metric and key as text without the named fields of the spec; cells with
        equal text belong together.
        """
        return (
            f"{_key(self.spec, self.simulated, without)} {self.metric.name} {list(self.metric_key)}"
        )


def _key(spec: RunSpec, simulated: bool, without: Sequence[str] = ()) -> str:
    values = {name: value for name, value in spec.as_dict().items() if name not in without}
    if (
        spec.follows and SHAPE[0] in without
    ):  # with strong scaling, another shape has another value, and the same global batch
        of_options = {f"options.{name}": value for name, value in spec.options.items()}
        values = {
            **values,
            **of_options,
            "options": None,
            "step": asdict(spec.step) | {"micro_batches": spec.global_batch},
        }
        values.pop(spec.follows, None)  # it may be one of the fields left out
    return json.dumps([simulated, values], sort_keys=True, default=str)


def cells_of(results: Sequence[RunResult], metric: str = "") -> list[Cell]:
    """Return the cells of these runs in order of size; with ``metric``, only its cells.

    A run without a spec is left out. Runs with a place belong to one bench, and their cells share
    its drift. A spec without any number has one cell, of its primary metric.
    """
    groups = group_pairs(
        (_key(run.spec, run.simulated), run)
        for run in sorted(results, key=lambda run: (run.repeat, run.run_id))
        if run.spec
    )
    cells: list[Cell] = []
    for runs in groups.values():
        spec = runs[0].spec
        if spec:
            cells += _cells(spec, tuple(runs))
    drifts = _drifts(cells)
    chosen = [
        replace(cell, drift=drifts[cell.drifts_with])
        for cell in cells
        if metric in ("", cell.metric.name)
    ]
    return sorted(chosen, key=lambda cell: (order(cell), _key(cell.spec, cell.simulated)))


def _drifts(cells: Sequence[Cell]) -> dict[tuple[str, str, str, bool], Drift]:
    """Return the drift of each metric, `STEADY` for one with keys: its values of one run are not
    independent of each other.
    """
    by_metric = group_pairs((cell.drifts_with, cell) for cell in cells)
    drifts = {}
    for metric, alike in by_metric.items():
        drifts[metric] = STEADY
        if not alike[0].metric.key_columns:
            drifts[metric] = drift_of([cell.placed for cell in alike if cell.is_positive])
    return drifts


def _cells(spec: RunSpec, runs: tuple[RunResult, ...]) -> Iterator[Cell]:
    """Yield the cells of a spec: the primary metric first, then the others as they are declared,
    keys in order.
    """
    declared = {metric.name: metric for run in runs for metric in run.metrics}
    numbers: dict[tuple[str, Key], dict[str, float]] = {}
    resolutions: dict[tuple[str, Key], dict[str, float]] = {}
    for run in runs:
        for value in run.values if run.is_good else ():
            numbers.setdefault((value.metric, value.key), {})[run.run_id] = value.number
            resolutions.setdefault((value.metric, value.key), {})[run.run_id] = value.resolution
    primary = primary_of(list(declared.values())) or SAMPLES_PER_S
    simulated = runs[0].simulated
    if not any(name == primary.name for name, _ in numbers):
        yield Cell(spec, simulated, runs, primary)
    for metric in sorted(declared.values(), key=lambda metric: metric is not primary):
        keys = in_order([key for name, key in numbers if name == metric.name])
        for key in keys:
            of_runs = numbers[metric.name, key], resolutions[metric.name, key]
            yield Cell(spec, simulated, runs, metric, key, metric is primary, *of_runs)


def order(cell: Cell) -> tuple[Any, ...]:
    """Return a key that sorts cells by size, then length."""
    spec = cell.spec
    return spec.world_size, spec.nodes, spec.steps, spec.warmup_steps, spec.timeout_s

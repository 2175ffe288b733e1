"""The cells of a bench, in the order of its table: the runs of one spec, pooled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.plan import Measure, RunSpec
from orchestrator.results.numbers.drift import Placed
from orchestrator.results.numbers.tempo import StepTimes
from orchestrator.results.numbers.throughput import median
from orchestrator.results.run import RunResult

__all__ = ["Cell", "Repeat", "cells_of"]

_SHAPE = ("nodes", "gpus")
_LENGTH = ("steps", "warmup_steps", "timeout_s")


@dataclass(frozen=True, slots=True)
class Repeat:
    """The numbers of one good run: samples/s, and its step times, None if they are not known."""

    run_id: str
    repeat: int
    speed: float
    step_times: StepTimes | None


@dataclass(frozen=True, slots=True)
class Cell:
    """All repeats of one spec, in order of repeat."""

    spec: RunSpec
    simulated: bool
    runs: tuple[RunResult, ...]

    @property
    def good(self) -> list[RunResult]:
        """The runs that have measured what they were planned to measure."""
        return [run for run in self.runs if run.is_good]

    @property
    def measure(self) -> Measure:
        """What its runs measure."""
        return self.runs[0].measure

    @property
    def speeds(self) -> list[float]:
        """Samples/s of the good runs."""
        return [run.throughput.samples_per_s for run in self.good if run.throughput]

    @property
    def placed(self) -> list[Placed]:
        """Samples/s of the good runs, and their places in the bench."""
        return [Placed(run.place, run.throughput.samples_per_s) for run in self.good if run.throughput]

    @property
    def by_repeat(self) -> dict[int, Placed]:
        """Samples/s of the good runs, and their places in the bench, by repeat."""
        return {run.repeat: Placed(run.place, run.throughput.samples_per_s) for run in self.good if run.throughput}

    @property
    def repeats(self) -> tuple[Repeat, ...]:
        """The numbers of each good run."""
        return tuple(
            Repeat(run.run_id, run.repeat, run.throughput.samples_per_s, run.step_times) for run in self.good if run.throughput
        )

    @property
    def median(self) -> float | None:
        """The median of the good runs' samples/s; None without good runs."""
        return median(self.speeds) if self.speeds else None

    def key(self, *without: str) -> str:
        """Return the spec as text without the named fields; cells with equal text belong together."""
        return _key(self.spec, self.simulated, without)


def _key(spec: RunSpec, simulated: bool, without: Sequence[str] = ()) -> str:
    values = {name: value for name, value in spec.as_dict().items() if name not in without}
    return json.dumps([simulated, values], sort_keys=True, default=str)


def cells_of(results: Sequence[RunResult]) -> list[Cell]:
    """Return the cells of these runs in order of size; a run without a spec is left out."""
    groups: dict[str, list[RunResult]] = {}
    for run in sorted(results, key=lambda run: (run.repeat, run.run_id)):
        if run.spec:
            groups.setdefault(_key(run.spec, run.simulated), []).append(run)
    cells = [Cell(spec, runs[0].simulated, tuple(runs)) for runs in groups.values() if (spec := runs[0].spec)]
    return sorted(cells, key=lambda cell: (_order(cell), cell.key()))


def _order(cell: Cell) -> tuple[Any, ...]:
    spec = cell.spec
    return spec.world_size, spec.nodes, spec.steps, spec.warmup_steps, spec.timeout_s

"""A cell as every output shows it: the values of a metric, or the tables of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.notes import Note
from orchestrator.plan.measures import OWN_METRICS, SAMPLES_PER_S, SPEEDS
from orchestrator.results.cells import Repeat
from orchestrator.results.diagnosis_tables import Grid
from orchestrator.results.numbers.intervals import Interval
from orchestrator.results.slow_ranks import RankTimes, SlowRank

__all__ = ["SPEED", "Entry", "Row", "Sheet"]

SPEED = SAMPLES_PER_S.name
"""The metric of most trainings: throughput over the measured window in samples/s."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell as every output shows it, whatever it measures.

    ``n`` counts its good repeats, ``planned`` all; ``failed``, ``interrupted``, ``running`` and ``never_run`` count those that
    have no number, as in `planned.Counts`. ``options`` holds the other settings of the spec that
    differ between the cells of the bench.
    """

    series: str
    framework: str
    model: str
    dtype: str
    device: str
    shape: str
    nodes: int
    gpus: int
    world_size: int
    options: Mapping[str, Any]
    simulated: bool
    n: int
    planned: int
    failed: int
    interrupted: int
    running: int
    never_run: int
    qualifications: tuple[Note, ...]
    failures: tuple[str, ...]
    run_ids: tuple[str, ...]
    hardware: str


@dataclass(frozen=True, slots=True)
class Row(Entry):
    """The values of one metric and key in a cell, over ``n`` good repeats, in ``unit``, unrounded,
    None if n is 0.
    ``global_batch`` is samples per step, ``tokens`` those of a sample, 0 for a program without tokens. ``scaling`` is ``weak``
    if each rank computes as much in every shape, ``strong`` if the global batch is the same in
    every shape.

    ``better`` is ``higher`` or ``lower``; ``primary``: it is the metric that stands for the run; ``says`` is the metric of
    which it is the program's own figure, empty for all others. ``value`` is the typical value of
    `numbers.drift`, ``speedup`` and both intervals belong to it; ``average`` and ``median``
    describe the repeats as they are, and ``deviation`` is their sample standard deviation.
    ``series`` describes what a row shares with its baseline. Intervals are 95 % intervals, None for
    too few repeats; the baseline has no interval of its speedup, which is 1 by definition.
    ``step_s`` is the time of a step (s), ``per_rank`` the value over the ranks; both are None
    except for speeds of training. ``ranks`` are the parts of the steps of each rank, if the program
    reports them, with the speed of a training alone, and ``slow`` those of them that the others
    wait for.
    """

    metric: str
    unit: str
    better: str
    primary: bool
    says: str
    key: Mapping[str, str | int]

    loader: str
    batch_size: int
    global_batch: int
    scaling: str
    tokens: int
    average: float | None
    median: float | None
    minimum: float | None
    maximum: float | None
    deviation: float | None
    value: float | None
    interval: Interval | None
    speedup: float | None
    speedup_interval: Interval | None
    efficiency: float | None
    efficiency_interval: Interval | None
    step_s: float | None
    per_rank: float | None
    repeats: tuple[Repeat, ...]
    ranks: tuple[RankTimes, ...] = ()
    slow: tuple[SlowRank, ...] = ()

    @property
    def is_speed(self) -> bool:
        """Whether it is a speed of training."""
        return self.metric in SPEEDS

    @property
    def is_derived(self) -> bool:
        """Whether it follows from a speed of training, as an MFU does, or is what the program says
        of such a number.
        """
        return bool(self.says) or self.metric in OWN_METRICS and not self.is_speed

    @property
    def title(self) -> str:
        """Its name for people: that of its metric, or of the number that the program says."""
        return f"{self.says} said by the program" if self.says else self.metric


@dataclass(frozen=True, slots=True)
class Sheet(Entry):
    """One cell of a bench whose result is a diagnosis and not a metric, such as which link is slow."""

    measures: str
    grids: tuple[Grid, ...]
    said: tuple[str, ...]
    culprits: tuple[str, ...]

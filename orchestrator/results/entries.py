"""A cell as every output shows it, with tables if it measured something other than training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.results.cells import Repeat
from orchestrator.results.grids import Grid
from orchestrator.results.numbers.intervals import Interval

__all__ = ["Entry", "Row", "Sheet"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell as every output shows it, whatever it measures.

    ``n`` counts its good repeats, ``planned`` all; ``failed``, ``interrupted``, ``running`` and ``never_run`` count those that
    have no number, as in `planned.Counts`. ``options`` holds the other settings of the spec that differ between the cells of
    the bench.
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
    qualifications: tuple[str, ...]
    failures: tuple[str, ...]
    run_ids: tuple[str, ...]
    hardware: str


@dataclass(frozen=True, slots=True)
class Row(Entry):
    """One cell with a speed: samples/s over ``n`` good repeats, unrounded, None if n is 0.

    ``speed`` is the typical speed of `numbers.drift`, ``speedup`` and both intervals belong to it; ``average_speed`` and
    ``median_speed`` describe the repeats as they are, and ``speed_deviation`` is their sample standard deviation. ``series``
    describes what a row shares with its baseline. Intervals are 95 % intervals, None for too few repeats; the baseline has no
    interval of its speedup, which is 1 by definition.
    """

    loader: str
    batch_size: int
    average_speed: float | None
    median_speed: float | None
    min_speed: float | None
    max_speed: float | None
    speed_deviation: float | None
    speed: float | None
    speed_interval: Interval | None
    speedup: float | None
    speedup_interval: Interval | None
    efficiency: float | None
    efficiency_interval: Interval | None
    repeats: tuple[Repeat, ...]


@dataclass(frozen=True, slots=True)
class Sheet(Entry):
    """One cell of a bench that measures something other than training."""

    measures: str
    grids: tuple[Grid, ...]
    said: tuple[str, ...]
    culprits: tuple[str, ...]

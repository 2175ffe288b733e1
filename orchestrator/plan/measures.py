"""What a framework folder measures, and what follows from it, in one table: whoever needs to know asks here.

>>> MEASURES["collectives"].has_speed, sorted(MEASURES["collectives"].fixed)
(False, ['batch_size', 'loader'])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MEASURES", "TRAINING", "Measure"]

TRAINING = "training"


@dataclass(frozen=True, slots=True)
class Measure:
    """A kind of measurement. ``has_speed``: a good run is a number of samples/s, so there are baselines, speedups, intervals to
    stop by and verdicts; without it a run is a set of readings. ``fixed``: choices that would mean nothing, which nobody can
    make, and what stands for them in a spec. ``noun`` says in words what is measured. ``gpus``: ranks on each node where nobody
    says how many, None for all. ``repeats_within``: one run holds its own repeats, so one is enough."""

    name: str
    noun: str
    has_speed: bool
    fixed: Mapping[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    repeats_within: bool = False


_NO_SAMPLES = {"batch_size": 1, "loader": "none"}
MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(TRAINING, "training", has_speed=True),
        Measure("collectives", "collectives", has_speed=False, fixed=_NO_SAMPLES),
        Measure("readings", "readings of its own", has_speed=False, fixed=_NO_SAMPLES),
        Measure("pairs", "links between pairs of nodes", has_speed=False, fixed=_NO_SAMPLES, gpus=1, repeats_within=True),
    )
}

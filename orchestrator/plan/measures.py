"""The kinds of measurement that a framework folder may declare, and their properties, in one table.

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
    """A kind of measurement.

    ``has_speed``: a good run gives one speed in samples/s, so baselines, speedups, stopping by interval and verdicts apply;
    otherwise a run is a set of readings. ``fixed``: choices without meaning for this kind, which users cannot make, and the
    values that a spec has for them. ``noun`` names in words what is measured. ``gpus``: the default number of ranks per node,
    None for one per GPU. ``repeats_within``: each run contains its own repeats, so one run is enough.
    """

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

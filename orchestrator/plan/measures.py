"""The kinds of measurement that a framework folder may declare, and their properties, in one table.

>>> MEASURES["collectives"].has_samples, sorted(MEASURES["collectives"].fixed)
(False, ['batch_size', 'loader'])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.logs.metrics import Metric

__all__ = ["MEASURES", "SAMPLES_PER_S", "TRAINING", "Measure"]

TRAINING = "training"
SAMPLES_PER_S = Metric("samples_per_s", "samples/s", help="throughput over the measured window", speedup=True)
"""What every training measures."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A kind of measurement.

    ``has_samples``: a run computes samples in steps, and has a speed in samples/s. ``is_diagnosis``: its result is tables and
    verdicts and no metric, so intervals, comparisons and history do not apply. ``fixed``: choices without meaning for this
    kind, which users cannot make, and the values that a spec has for them. ``noun`` names in words what is measured. ``gpus``:
    the default number of ranks per node, None for one per GPU. ``repeats_within``: each run contains its own repeats, so one
    run is enough.
    """

    name: str
    noun: str
    has_samples: bool = False
    is_diagnosis: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    repeats_within: bool = False


_NO_SAMPLES = {"batch_size": 1, "loader": "none"}
MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(TRAINING, "training", has_samples=True),
        Measure("collectives", "collectives", fixed=_NO_SAMPLES),
        Measure("readings", "metrics of its own", fixed=_NO_SAMPLES),
        Measure("pairs", "links between pairs of nodes", is_diagnosis=True, fixed=_NO_SAMPLES, gpus=1, repeats_within=True),
    )
}

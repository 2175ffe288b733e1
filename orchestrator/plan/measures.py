"""The kinds of measurement that a framework folder may declare, and their properties, in one table.

>>> MEASURES["language_model"].speed.name, MEASURES["collectives"].has_samples, sorted(MEASURES["collectives"].fixed)
('tokens_per_s', False, ['batch_size', 'loader'])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.logs.metrics import Metric

TRAINING, LANGUAGE_MODEL = "training", "language_model"
SAMPLES_PER_S = Metric(
    "samples_per_s", "samples/s", help="throughput over the measured window", speedup=True
)
"""What every training measures."""
TOKENS_PER_S = Metric(
    "tokens_per_s", "tokens/s", help="throughput over the measured window", speedup=True
)
"""The same of a language model, whose samples are sequences: samples/s times the tokens of a
sequence.
"""
SPEEDS = (SAMPLES_PER_S.name, TOKENS_PER_S.name)
"""The metrics that are speeds of training, of which a run has one."""


_OF_LANGUAGE_MODELS = (
    Metric("tokens_per_s_per_device", "tokens/s", help="tokens/s over the number of devices"),
    Metric(
        "tflops_per_device",
        "TFLOP/s",
        help="6 N + 12 L d T operations per token, without recomputation",
    ),
    Metric("mfu", "%", help="tflops_per_device over the device's dense peak for the dtype"),
    Metric(
        "mfu_causal", "%", help="the same with the masked half of attention left out, 6 N + 6 L d T"
    ),
    Metric(
        "hfu", "%", help="the same with what is recomputed: operations that the hardware executes"
    ),
)
"""Metrics computed from tokens/s. N, L, d and T are defined in `transformer.Transformer`."""

_POWER = Metric("gpu_power", "W", "lower", help="mean power of a GPU of the run over the window")
_PACKAGE_POWER = Metric(
    "package_power", "W", "lower", help="mean power of the processors of a node over the window"
)
_PEAK_MEMORY = Metric("peak_memory", "GiB", "lower", help="largest memory of a rank")


@dataclass(frozen=True, slots=True)
class Measure:
    """A kind of measurement.

    ``speed``: the throughput of a run that computes samples in steps, None without them.
    ``derived``: the metrics computed from it. ``reported``: results that the program prints at its
    end. ``sampled``: metrics computed from samples of its nodes. ``is_diagnosis``: its result is
    tables and verdicts and no metric, so intervals, comparisons and history do not apply.
    ``fixed``: choices without meaning for this kind, which users cannot make, and the values that a
    spec has for them. ``noun`` names the measured quantity in words. ``gpus``: the default number
    of ranks per node, None for one per GPU. ``repeats_within``: each run contains its own repeats,
    so one run is enough.
    """

    name: str
    noun: str
    speed: Metric | None = None
    derived: tuple[Metric, ...] = ()
    reported: tuple[Metric, ...] = ()
    sampled: tuple[Metric, ...] = ()
    is_diagnosis: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    repeats_within: bool = False

    @property
    def has_samples(self) -> bool:
        """Return whether a run computes samples in steps."""
        return self.speed is not None


_NO_SAMPLES = {"batch_size": 1, "loader": "none"}
MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            TRAINING,
            "training",
            speed=SAMPLES_PER_S,
            sampled=(
                _POWER,
                Metric(
                    "energy_per_sample",
                    "J",
                    "lower",
                    help="energy of the run's GPUs over the window, over its samples",
                ),
                _PACKAGE_POWER,
            ),
        ),
        Measure(
            LANGUAGE_MODEL,
            "training of a language model",
            speed=TOKENS_PER_S,
            derived=_OF_LANGUAGE_MODELS,
            reported=(_PEAK_MEMORY,),
            sampled=(
                _POWER,
                Metric(
                    "energy_per_token",
                    "J",
                    "lower",
                    help="energy of the run's GPUs over the window, over its tokens",
                ),
                _PACKAGE_POWER,
            ),
        ),
        Measure("collectives", "collectives", fixed=_NO_SAMPLES),
        Measure("readings", "metrics of its own", fixed=_NO_SAMPLES),
        Measure(
            "pairs",
            "links between pairs of nodes",
            is_diagnosis=True,
            fixed=_NO_SAMPLES,
            gpus=1,
            repeats_within=True,
        ),
    )
}
OWN_METRICS = frozenset(
    metric.name
    for measure in MEASURES.values()
    for metric in (measure.speed, *measure.derived, *measure.reported, *measure.sampled)
    if metric is not None
)
"""Names that no folder can give a metric of its own."""

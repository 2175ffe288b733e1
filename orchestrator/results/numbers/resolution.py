"""The resolution of numbers computed from a log: three printed digits support no narrower interval.

Roundings of different values are independent of each other, so they average out as noise does; the
mean of equal ones is as coarse as one of them.

>>> resolution_of("mean", 1.0, [5.0, 6.0, 5.0, 6.0]), resolution_of("mean", 1.0, [5.0, 5.0])
(0.5, 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.logs import StepSample
from orchestrator.results.numbers.throughput import Terms, Throughput
from orchestrator.results.numbers.window import window_lines


def resolution_of(combination: str, resolution: float, values: Sequence[float]) -> float:
    """Return the resolution of values of this ``resolution`` combined by ``combination``, a name in
    `metrics.COMBINED`.
    """
    if combination not in ("mean", "harmonic_mean", "sum"):
        return resolution
    independent = len(set(values)) > 1
    of_mean = resolution / (math.sqrt(len(values)) if independent else 1.0)
    if combination == "sum":
        return of_mean * len(values)
    return of_mean


def resolution_of_speed(
    samples: Sequence[StepSample], terms: Terms, measured: Throughput, printed: Mapping[str, float]
) -> float:
    """Return the resolution of a throughput in samples/s; 0 if it is not known.

    ``printed`` has the resolution of printed values by name, in seconds or per second. The one that
    counts is the resolution of the values from which `throughput.stretches` takes the time of the
    window.
    """
    window = window_lines(samples, terms.warmup_steps, terms.steps)
    before = [sample for sample in samples if sample.step == terms.warmup_steps]
    for name in ("timestamp", "elapsed_s"):
        is_counted = before or (name == "elapsed_s" and terms.warmup_steps == 0)
        if is_counted and all(getattr(line, name) is not None for line in (*before, *window)):
            return measured.samples_per_s * printed.get(name, 0.0) / measured.seconds
    for name in ("step_time_s", "steps_per_s", "samples_per_s", "tokens_per_s"):
        values = [value for line in window if (value := getattr(line, name)) is not None]
        if len(values) == len(window):
            typical = math.fsum(map(abs, values)) / len(values)
            combination = "last" if terms.cumulative else "mean"
            return (
                measured.samples_per_s
                * resolution_of(combination, printed.get(name, 0.0), values)
                / typical
            )
    return 0.0

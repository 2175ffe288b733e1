"""The speed of a run from step to step, for charts; the number of the run is that of `throughput`.

>>> log = [StepSample(step, timestamp=100 + step) for step in range(4)]
>>> tempo(log, Terms(warmup_steps=1, steps=3, global_batch=8))
Tempo(points=((0.0, 8.0), (1.0, 8.0), (2.0, 8.0)), first_s=0.0, clock=101)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.errors import DataError
from orchestrator.logs import StepSample
from orchestrator.results.numbers.throughput import Stretch, Terms, stretches

__all__ = ["Tempo", "tempo", "quantiles"]

_POINTS = 300
"""Of a run; more are not told apart in a picture."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """How fast a run was from line to line, warm-up included. ``points`` are (seconds, samples/s) of one or several steps,
    seconds at their end and counted from the start of the window, so that warm-up is below 0; ``first_s`` is the end of the
    first step. ``clock`` is the log's own clock at the start of the window, None where it has none."""

    points: tuple[tuple[float, float], ...]
    first_s: float
    clock: float | None


def tempo(samples: Sequence[StepSample], terms: Terms) -> Tempo | None:
    """Return how fast the run was from line to line; None where the lines before the window do not tell."""
    lines = [sample for sample in samples if sample.step <= terms.steps]
    found: list[Stretch] = []
    for start in dict.fromkeys([0, *(line.step for line in lines[:1])]):
        with suppress(DataError):
            later = [line for line in lines if line.step > start]
            found = found or (stretches(lines, later, replace(terms, warmup_steps=start))[1] if later else [])
    if not found:
        return None
    warmup_steps = terms.warmup_steps
    at = -math.fsum(interval.seconds for interval in found if interval.last <= warmup_steps)
    first_s, width, points = at + found[0].seconds, -(-len(found) // _POINTS), []
    for some in ([i for i in found if i.last <= warmup_steps], [i for i in found if i.last > warmup_steps]):
        for begin in range(0, len(some), width):
            seconds = math.fsum(interval.seconds for interval in some[begin : begin + width])
            at += seconds
            points.append((at, terms.global_batch * sum(interval.steps for interval in some[begin : begin + width]) / seconds))
    return Tempo(tuple(points), first_s, next((line.timestamp for line in lines if line.step == warmup_steps), None))


def quantiles(step_times: Sequence[float]) -> tuple[float, float, float]:
    """Return the values that a tenth, half and nine tenths of one or more do not exceed.

    >>> quantiles([float(value) for value in range(10, 0, -1)])
    (1.0, 5.0, 9.0)
    """
    ordered = sorted(step_times)
    low, middle, high = (ordered[-(-len(ordered) * tenths // 10) - 1] for tenths in (1, 5, 9))
    return low, middle, high

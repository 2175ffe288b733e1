"""The speed of a run from step to step, for charts; the run's own number comes from `throughput`.

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
from orchestrator.results.numbers.throughput import Stretch, Terms, deviation, stretches

_POINTS = 300
"""Points per run; more cannot be distinguished in a chart."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """The speed of a run from line to line, warm-up included.

    ``points`` are (seconds, samples/s) of one or several steps, the seconds at the end of those
    steps relative to the start of the window, negative during warm-up. ``first_s`` is the end of
    the first step. ``clock`` is the log's own clock at the start of the window, None if it has
    none.
    """

    points: tuple[tuple[float, float], ...]
    first_s: float
    clock: float | None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The step times in the window of one run, in seconds: their mean, sample standard deviation,
    and percentiles, each a value that was measured. If a line of the log stands for several steps,
    their mean counts as one value."""

    mean_s: float
    deviation_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float

    @classmethod
    def of(cls, step_times: Sequence[float]) -> StepTimes:
        """Return the summary of one or more step times.

        >>> StepTimes.of([float(value) for value in range(1, 101)]).p95_s
        95.0
        """
        spread = deviation(step_times) if len(step_times) > 1 else 0.0
        return cls(
            math.fsum(step_times) / len(step_times),
            spread,
            *_percentiles(step_times, (50, 90, 95, 99)),
        )

    @property
    def variation(self) -> float:
        """The coefficient of variation: standard deviation over mean."""
        return self.deviation_s / self.mean_s


def tempo(samples: Sequence[StepSample], terms: Terms) -> Tempo | None:
    """Return how fast the run was from line to line; None if the lines before the window do not
    show it.
    """
    intervals = all_stretches(samples, terms)
    if not intervals:
        return None
    warmup_steps = terms.warmup_steps
    at = -math.fsum(interval.seconds for interval in intervals if interval.last <= warmup_steps)
    first_s, width, points = at + intervals[0].seconds, -(-len(intervals) // _POINTS), []
    for part in (
        [i for i in intervals if i.last <= warmup_steps],
        [i for i in intervals if i.last > warmup_steps],
    ):
        for begin in range(0, len(part), width):
            seconds = math.fsum(interval.seconds for interval in part[begin : begin + width])
            at += seconds
            points.append(
                (
                    at,
                    terms.global_batch
                    * sum(interval.steps for interval in part[begin : begin + width])
                    / seconds,
                )
            )
    clock = {line.step: line.timestamp for line in samples}.get(warmup_steps)
    return Tempo(tuple(points), first_s, clock)


def all_stretches(samples: Sequence[StepSample], terms: Terms) -> list[Stretch]:
    """Return steps and seconds of each line up to the last step, warm-up included; empty if the
    lines before the window do not show them."""
    lines = list(
        {sample.step: sample for sample in samples if sample.step <= terms.steps}.values()
    )  # warm-up may repeat
    for start in dict.fromkeys([0, *(line.step for line in lines[:1])]):
        with suppress(DataError):
            later = [line for line in lines if line.step > start]
            if later:
                return stretches(lines, later, replace(terms, warmup_steps=start))[1]
    return []


def _percentiles(values: Sequence[float], shares: Sequence[int]) -> list[float]:
    """Return percentiles by the nearest rank: the smallest value that at least this share (in %) of
    all does not exceed.
    """
    ordered = sorted(values)
    return [ordered[-(-len(ordered) * share // 100) - 1] for share in shares]

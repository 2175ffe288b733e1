"""Compute numbers from step samples, by the definitions of ``docs/metrics.md``. Nothing here rounds
but `round_like_numpy`.

The window of a run is the steps ``warmup + 1 … steps``. Throughput is the samples of the window
over the time of the window; rates are combined by time and never averaged. A step that is missing
from the log is an error; the window never shrinks.

>>> log = [StepSample(step, timestamp=step * 0.5) for step in range(13)]
>>> throughput(log, Terms(warmup_steps=2, steps=12, global_batch=64))
Throughput(samples_per_s=128.0, samples=640, seconds=5.0, first_step=3, last_step=12)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import DataError
from orchestrator.logs import StepSample
from orchestrator.logs.steps import ABSURD, rows
from orchestrator.results.numbers.window import window_lines

if TYPE_CHECKING:
    from orchestrator.logs import LogGrammar
    from orchestrator.plan import RunSpec

WORTH = 0.02
"""Smaller drift of step times within a window is not reported, and a smaller difference of two
benches gives no verdict.
"""
APART = 0.05
"""Two measures of one window may differ by this fraction: time between two steps, rounding."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The facts of a run that its throughput depends on besides step samples.

    The window is ``warmup_steps + 1 … steps``. ``ranks`` is the number of logged rates that add up
    to the rate of the run: 1 if lines describe the whole run, else the number of processes, or
    nodes, that log their own. ``counts`` is the same for counts of samples, None for the same
    number. ``steps_in_one``: how often the program counts each step of the run in its steps per
    second. ``cumulative``: a rate is the mean since the first step. ``tokens``: tokens per sample,
    for rates in tokens.
    """

    warmup_steps: int
    steps: int
    global_batch: int
    ranks: int = 1
    cumulative: bool = False
    counts: int | None = None
    steps_in_one: int = 1
    tokens: int = 1

    @classmethod
    def of(cls, spec: RunSpec, grammar: LogGrammar) -> Terms:
        """Return the terms of a run whose log is parsed with ``grammar``."""
        uncounted = spec.warmup_steps if grammar.after_warmup else 0
        printed = {"global": 1, "node": spec.nodes}.get(grammar.scope, spec.world_size)
        is_summed = not grammar.summed_over.keys().isdisjoint(("samples_per_s", "tokens_per_s"))
        ranks = 1 if is_summed else printed
        counts = 1 if "samples" in grammar.summed_over else printed
        sizes = {"nodes": spec.nodes, "ranks": spec.world_size}
        steps_in_one = sizes.get(grammar.summed_over.get("steps_per_s", ""), 1)
        window = spec.warmup_steps - uncounted, spec.steps - uncounted
        return cls(
            *window, spec.global_batch, ranks, grammar.cumulative, counts, steps_in_one, spec.items
        )


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed of one run over its window: ``samples`` in ``seconds``, steps ``first_step`` to
    ``last_step`` inclusive.
    """

    samples_per_s: float
    samples: int
    seconds: float
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """The ``steps`` steps that end with step ``last``, and the seconds they took."""

    last: int
    steps: int
    seconds: float


def throughput(samples: Sequence[StepSample], terms: Terms) -> Throughput:
    """Return samples per second over the window.

    Raises DataError like `window_lines`, and result_invalid if a time is not finite or does not
    increase.
    """
    window = window_lines(samples, terms.warmup_steps, terms.steps)
    seconds, intervals = stretches(samples, window, terms)
    counts = _all(sample.samples for sample in window)
    printed = terms.ranks if terms.counts is None else terms.counts
    number = (terms.steps - terms.warmup_steps) * terms.global_batch
    if counts:
        # A line counts the samples of its own step; those between it and the line before have as
        # many.
        number = printed * int(
            sum(count * interval.steps for count, interval in zip(counts, intervals, strict=True))
        )
    speed = number / _positive(seconds, terms.steps)
    if not 0 < speed < ABSURD:
        raise DataError(f"expected a speed above 0, got {speed:g} samples/s", kind="result_invalid")
    return Throughput(speed, number, seconds, terms.warmup_steps + 1, terms.steps)


def speed_of_line(sample: StepSample, terms: Terms) -> float | None:
    """Return samples/s of the run by one line of its log, for a display; None if the line has
    neither a rate nor a time.
    """
    if speed := _printed_rate(sample, terms):
        return speed * terms.ranks
    if sample.steps_per_s:
        return sample.steps_per_s / terms.steps_in_one * terms.global_batch
    if not sample.step_time_s:
        return None
    return terms.global_batch / sample.step_time_s


def window_of(samples: Sequence[StepSample], terms: Terms) -> list[Stretch]:
    """Return steps and seconds of each line of the window, in order. Raises like `throughput`."""
    return stretches(samples, window_lines(samples, terms.warmup_steps, terms.steps), terms)[1]


def disagreement(
    samples: Sequence[StepSample], terms: Terms, *, sized: bool = True
) -> tuple[str, float] | None:
    """Return another measure of speed in the log (its name, samples/s) if it differs from the
    throughput by `APART` or more; of a run that is not ``sized`` none in samples. Raises like
    `throughput`.

    >>> log = [StepSample(step, timestamp=step * 0.5, samples_per_s=160.0) for step in range(13)]
    >>> disagreement(log, Terms(warmup_steps=2, steps=12, global_batch=64))
    ('rates', 160.0)
    """
    best = throughput(samples, terms).samples_per_s
    rates = ("samples_per_s", "tokens_per_s", "steps_per_s") if sized else ("steps_per_s",)
    measures: list[tuple[str, tuple[str, ...]]] = [("rates", rates)]
    # Many steps may lie between two lines: a rate covers all of them, a step time only the last.
    if (
        len(window_lines(samples, terms.warmup_steps, terms.steps))
        == terms.steps - terms.warmup_steps
    ):
        measures.insert(0, ("step times", ("step_time_s",)))
    numbers = [sample.step for sample in samples]
    for name, kinds in measures:
        columns = {}
        # The same lines count the same samples, also where the size of the run is not known.
        for kind in (*kinds, "samples"):
            column = [getattr(sample, kind) for sample in samples]
            if any(column):
                columns[kind] = column
        if columns.keys() <= {"samples"}:
            continue
        with suppress(DataError):  # missing from some lines
            speed = throughput(rows(numbers, columns), terms).samples_per_s
            if not 1 / (1 + APART) < speed / best < 1 + APART:
                return name, speed
    return None


def stretches(
    samples: Sequence[StepSample], window: Sequence[StepSample], terms: Terms
) -> tuple[float, list[Stretch]]:
    """Return the seconds of the window and of each interval in it.

    Timestamps are preferred to durations, and durations to rates: timestamps leave out no time
    between two steps.
    """
    warmup_steps, cumulative = terms.warmup_steps, terms.cumulative
    before = next((sample for sample in samples if sample.step == warmup_steps), None)
    zero = StepSample(0, elapsed_s=0.0) if before is None and warmup_steps == 0 else before
    lines = [zero, *window] if zero else []

    def rate(sample: StepSample) -> float | None:
        """Steps per second of the whole run."""
        if sample.steps_per_s is not None:
            return sample.steps_per_s / terms.steps_in_one
        speed = _printed_rate(sample, terms)
        if speed is None:
            return None
        return speed * terms.ranks / terms.global_batch

    def time_of(sample: StepSample) -> float | None:
        if sample.elapsed_s is not None or not cumulative:
            return sample.elapsed_s
        if sample.step == 0:
            return 0.0
        return _quotient(sample.step, rate(sample), sample.step)

    clocks: tuple[Callable[[StepSample], float | None], ...] = (
        lambda sample: sample.timestamp,
        time_of,
    )
    for clock in clocks:
        marks = _all(map(clock, lines))
        if marks:
            pairs = zip(lines, lines[1:], marks, marks[1:], strict=False)
            return marks[-1] - marks[0], [
                Stretch(b.step, b.step - a.step, _positive(y - x, b.step)) for a, b, x, y in pairs
            ]
    # A step time covers one step, even if only every tenth step is printed; a rate covers all steps
    # since the last line.
    stride = window[0].step - warmup_steps
    times = _all(line.step_time_s for line in window)
    if not times and not cumulative:
        times = _all(_quotient(1, rate(line), line.step) for line in window)
    if not times:
        raise DataError(
            f"expected a time or a rate on every line of steps {warmup_steps + 1}…{window[-1].step}",
            kind="result_invalid",
            hint=f"if lines have timestamps, the line for step {warmup_steps} is needed too",
        )
    intervals = [
        Stretch(w.step, stride, _positive(time * stride, w.step))
        for w, time in zip(window, times, strict=True)
    ]
    return math.fsum(interval.seconds for interval in intervals), intervals


def _printed_rate(sample: StepSample, terms: Terms) -> float | None:
    """Return samples/s as a line prints it, or as its tokens/s are; None without either."""
    if sample.samples_per_s is not None or sample.tokens_per_s is None:
        return sample.samples_per_s
    return sample.tokens_per_s / terms.tokens


def _all(values: Iterable[float | None]) -> list[float]:
    """Return the values, or an empty list if any is missing."""
    numbers = []
    for value in values:
        if value is None:
            return []
        numbers.append(value)
    return numbers


def _quotient(steps: int, steps_per_s: float | None, step: int) -> float | None:
    if steps_per_s is None:
        return None
    if not 0 < steps_per_s < ABSURD:
        raise DataError(
            f"expected a rate above 0 at step {step}, got {steps_per_s:g} steps/s",
            kind="result_invalid",
        )
    return steps / steps_per_s


def _positive(seconds: float, step: int) -> float:
    if not 0 < seconds < ABSURD:
        raise DataError(
            f"expected a time above 0 s up to step {step}, got {seconds:g} s", kind="result_invalid"
        )
    return seconds


def mean(values: Sequence[float]) -> float:
    """Return the sum from left to right over the number of values, as in the published averages.

    Pairwise or exact summation changes the last digit of some of them. Raises ValueError for no
    values.
    """
    if not values:
        raise ValueError("mean of no values")
    return _sum_left_to_right(values) / len(values)


def _sum_left_to_right(values: Sequence[float]) -> float:
    """Return the plain sum; the builtin compensates rounding since Python 3.12."""
    total = 0.0
    for value in values:
        total += value
    return total


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle values. Raises ValueError for no
    values.
    """
    if not values:
        raise ValueError("median of no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def round_like_numpy(value: float, places: int = 2) -> float:
    """Return ``value`` rounded like ``numpy.round``, as in the published tables.

    >>> round_like_numpy(2725.415), round(2725.415, 2)
    (2725.42, 2725.41)
    """
    scale = 10.0**places
    return round(value * scale) / scale


def speedup(speed: float, baseline: float) -> float:
    """Return how many times faster ``speed`` is than ``baseline``; both are unrounded medians in
    samples/s.

    >>> round_like_numpy(speedup(8816.70, 354.44))
    24.88
    """
    return speed / baseline


def scaling_efficiency(times_faster: float, world_size: int, baseline_world_size: int = 1) -> float:
    """Return the speedup over the ratio of world sizes; 1 is perfect scaling.

    >>> scaling_efficiency(24.0, 32)
    0.75
    """
    return times_faster / (world_size / baseline_world_size)


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / median of repeats, as a fraction."""
    return (max(values) - min(values)) / median(values)


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation of two or more values."""
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))

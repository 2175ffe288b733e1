"""From step samples to numbers, by the definitions of ``docs/metrics.md``. Nothing here rounds but `published`.

The window of a run is the steps ``warmup + 1 … steps``. Its throughput is the samples of the window over the time of the
window; rates are combined by time and never averaged. What a run needs and the log lacks is an error, not a smaller sample.

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

if TYPE_CHECKING:
    from orchestrator.logs import LogGrammar
    from orchestrator.plan import RunSpec

__all__ = [
    "WORTH",
    "Stretch",
    "Terms",
    "Throughput",
    "deviation",
    "disagreement",
    "mean",
    "median",
    "published",
    "scaling_efficiency",
    "speedup",
    "spread",
    "step_times",
    "stretches",
    "throughput",
    "trend",
    "variation",
]


WORTH = 0.02
"""A smaller drift of step times within a window is not worth a word, nor a smaller difference of two benches a verdict."""
APART = 0.05
"""By so much may two measures of one window differ: what lies between two steps, rounding."""
_PARTS = 10
_TOO_ONE_SIDED = 33


@dataclass(frozen=True, slots=True)
class Terms:
    """What the functions here must know of a run beside its samples: the window ``warmup_steps + 1 … steps``, the samples of
    one step over all ranks, and how to read its rates.

    ``ranks`` is how many rates like the logged one make up that of the run: 1 where lines speak of the whole run, else one for
    each process, or node, that logs its own. ``cumulative``: a rate is the mean since the first step.
    """

    warmup_steps: int
    steps: int
    global_batch: int
    ranks: int = 1
    cumulative: bool = False

    @classmethod
    def of(cls, spec: RunSpec, grammar: LogGrammar) -> Terms:
        """Return the terms of a run whose log is read by ``grammar``."""
        uncounted = spec.warmup_steps if grammar.after_warmup else 0
        ranks = {"global": 1, "node": spec.nodes}.get(grammar.scope, spec.world_size)
        return cls(spec.warmup_steps - uncounted, spec.steps - uncounted, spec.global_batch, ranks, grammar.cumulative)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed of one run over its window: ``samples`` in ``seconds``, steps ``first_step`` to ``last_step`` inclusive."""

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

    Raises DataError (result_invalid) where steps of the window are missing, saying how many there were, and where a time is
    not finite or does not grow.
    """
    window = _window(samples, terms)
    seconds, _ = stretches(samples, window, terms)
    counts = _all(sample.samples for sample in window)
    number = int(sum(counts)) * terms.ranks if counts else (terms.steps - terms.warmup_steps) * terms.global_batch
    speed = number / _positive(seconds, terms.steps)
    if not 0 < speed < ABSURD:
        raise DataError(f"expected a speed above 0, got {speed:g} samples/s", kind="result_invalid")
    return Throughput(speed, number, seconds, terms.warmup_steps + 1, terms.steps)


def step_times(samples: Sequence[StepSample], terms: Terms) -> tuple[float, ...]:
    """Return the seconds of one step for each line of the window, in order. Raises as `throughput` does."""
    _, intervals = stretches(samples, _window(samples, terms), terms)
    return tuple(interval.seconds / interval.steps for interval in intervals)


def disagreement(samples: Sequence[StepSample], terms: Terms) -> tuple[str, float] | None:
    """Return what else a log says of its own speed, where that is `APART` from its throughput: by what, and samples/s.
    Raises as `throughput` does.

    >>> log = [StepSample(step, timestamp=step * 0.5, samples_per_s=160.0) for step in range(13)]
    >>> disagreement(log, Terms(warmup_steps=2, steps=12, global_batch=64))
    ('rates', 160.0)
    """
    best = throughput(samples, terms).samples_per_s
    # Between two lines many steps may have passed: a rate speaks of them all, a step time of the last.
    every = len(_window(samples, terms)) == terms.steps - terms.warmup_steps
    said = [("step times", ("step_time_s",))] * every + [("rates", ("samples_per_s", "steps_per_s"))]
    numbers = [one.step for one in samples]
    for name, kinds in said:
        columns = {kind: column for kind in kinds if any(column := [getattr(one, kind) for one in samples])}
        if not columns:
            continue
        with suppress(DataError):  # not on every line
            speed = throughput(rows(numbers, columns), terms).samples_per_s
            if not 1 / (1 + APART) < speed / best < 1 + APART:
                return name, speed
    return None


def _window(samples: Sequence[StepSample], terms: Terms) -> list[StepSample]:
    """Return the lines of the window. They must end with the last step and stand at equal distances, 1 or more steps."""
    warmup_steps, steps = terms.warmup_steps, terms.steps
    numbers = [sample.step for sample in samples]
    if any(later <= earlier for earlier, later in zip(numbers, numbers[1:], strict=False)):
        raise DataError("expected each step once and in order, got steps that go back or stand still", kind="result_invalid")
    window = [sample for sample in samples if warmup_steps < sample.step <= steps]
    span = f"steps {warmup_steps + 1}…{steps}"
    if not window:
        found = f"the last is {numbers[-1]}" if numbers else "the log has none at all"
        raise DataError(f"expected lines for {span}, found 0; {found}", kind="result_invalid")
    edges = [warmup_steps] * (warmup_steps in numbers or warmup_steps == 0) + [sample.step for sample in window]
    if len(edges) == 1 and steps - warmup_steps > 1:
        raise DataError(
            f"expected a line of step {warmup_steps} or several of {span}: one alone does not tell where its time begins",
            kind="result_invalid",
            hint="--warmup-steps on a step that is printed gives it one",
        )
    stride = min((later - earlier for earlier, later in zip(edges, edges[1:], strict=False)), default=1)
    wanted = range(warmup_steps + stride, steps + 1, stride)
    missing = sorted(set(wanted) - set(edges))
    if missing or window[-1].step != steps or len(window) != len(wanted):
        detail = f"; the first missing is step {missing[0]}" if missing else ""
        raise DataError(
            f"expected {len(wanted)} lines for {span}, found {len(window)}, the last for step {window[-1].step}{detail}",
            kind="result_invalid",
            hint="the log is incomplete, or --steps and --warmup-steps do not fall on steps that are printed",
        )
    return window


def stretches(samples: Sequence[StepSample], window: Sequence[StepSample], terms: Terms) -> tuple[float, list[Stretch]]:
    """Return the seconds of the window and of each interval in it.

    A clock is better evidence than durations, and durations than rates: a clock leaves nothing out between two steps.
    """
    warmup_steps, cumulative = terms.warmup_steps, terms.cumulative
    before = next((sample for sample in samples if sample.step == warmup_steps), None)
    zero = StepSample(0, elapsed_s=0.0) if before is None and warmup_steps == 0 else before
    lines = [zero, *window] if zero else []

    def rate(sample: StepSample) -> float | None:
        """Steps per second of the whole run."""
        if sample.steps_per_s is not None or sample.samples_per_s is None:
            return sample.steps_per_s
        return sample.samples_per_s * terms.ranks / terms.global_batch

    def elapsed(sample: StepSample) -> float | None:
        if sample.elapsed_s is not None or not cumulative:
            return sample.elapsed_s
        return 0.0 if sample.step == 0 else _quotient(sample.step, rate(sample), sample.step)

    clocks: tuple[Callable[[StepSample], float | None], ...] = (lambda sample: sample.timestamp, elapsed)
    for clock in clocks:
        marks = _all(clock(line) for line in lines)
        if marks:
            pairs = zip(lines, lines[1:], marks, marks[1:], strict=False)
            return marks[-1] - marks[0], [Stretch(b.step, b.step - a.step, _positive(y - x, b.step)) for a, b, x, y in pairs]
    # A step time is that of one step, even where only every tenth step is printed; a rate covers all steps since the last.
    stride = window[0].step - warmup_steps
    times = _all(line.step_time_s for line in window)
    if not times and not cumulative:
        times = _all(_quotient(1, rate(line), line.step) for line in window)
    if not times:
        raise DataError(
            f"expected a time or a rate on every line of steps {warmup_steps + 1}…{window[-1].step}",
            kind="result_invalid",
            hint=f"where lines carry a clock, the line for step {warmup_steps} is needed too",
        )
    intervals = [Stretch(w.step, stride, _positive(time * stride, w.step)) for w, time in zip(window, times, strict=True)]
    return math.fsum(interval.seconds for interval in intervals), intervals


def _all(values: Iterable[float | None]) -> list[float]:
    """Return the values, or nothing where one of them is missing."""
    wanted = list(values)
    return found if len(found := [value for value in wanted if value is not None]) == len(wanted) else []


def _quotient(steps: int, steps_per_s: float | None, step: int) -> float | None:
    if steps_per_s is None:
        return None
    if not 0 < steps_per_s < ABSURD:
        raise DataError(f"expected a rate above 0 at step {step}, got {steps_per_s:g} steps/s", kind="result_invalid")
    return steps / steps_per_s


def _positive(seconds: float, step: int) -> float:
    if not 0 < seconds < ABSURD:
        raise DataError(f"expected a time above 0 s up to step {step}, got {seconds:g} s", kind="result_invalid")
    return seconds


def mean(values: Sequence[float]) -> float:
    """Return the sum from left to right over the number, which is what the published averages were made with.

    Pairwise or exact summation gives another last digit for some of them. Raises ValueError for no values.
    """
    if not values:
        raise ValueError("mean of no values")
    return _sum_left_to_right(values) / len(values)


def _sum_left_to_right(values: Sequence[float]) -> float:
    """Return the plain sum; the builtin compensates for lost digits since Python 3.12."""
    total = 0.0
    for value in values:
        total += value
    return total


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle values. Raises ValueError for no values."""
    if not values:
        raise ValueError("median of no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def published(value: float, places: int = 2) -> float:
    """Return ``value`` rounded as ``numpy.round`` does, which is how the published tables were rounded.

    >>> published(2725.415), round(2725.415, 2)
    (2725.42, 2725.41)
    """
    scale = 10.0**places
    return round(value * scale) / scale


def speedup(speed: float, baseline: float) -> float:
    """Return how many times faster ``speed`` is than ``baseline``; both are unrounded medians in samples/s.

    >>> published(speedup(8816.70, 354.44))
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


def trend(step_times: Sequence[float]) -> float | None:
    """Return by how much the last fifth of a window takes longer than the first, as a fraction, where steps drift; else None.

    The window is cut into ten parts, and the medians of these are put to the test of Mann and Kendall ("Nonparametric tests
    against trend", Econometrica 13, 1945): of the 45 pairs, those with a slower later part must outnumber the others by 33, or
    be outnumbered by that, as happens to one steady window in 450. Less than `WORTH` is no trend that matters. None for fewer
    than 20 values.

    >>> trend([0.50 + 0.001 * number for number in range(40)])
    0.0635551142005959
    >>> trend([0.50, 0.51] * 20)
    """
    if len(step_times) < 2 * _PARTS:
        return None
    edges = [len(step_times) * part // _PARTS for part in range(_PARTS + 1)]
    parts = [median(step_times[start:stop]) for start, stop in zip(edges, edges[1:], strict=False)]
    slower = sum((late > early) - (late < early) for index, early in enumerate(parts) for late in parts[index + 1 :])
    fifth = _PARTS // 5
    grown = mean(parts[-fifth:]) / mean(parts[:fifth]) - 1
    return grown if abs(slower) >= _TOO_ONE_SIDED and abs(grown) >= WORTH else None


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation of two or more values."""
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def variation(values: Sequence[float]) -> float:
    """Return the coefficient of variation, sample standard deviation over mean, as a fraction; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    return deviation(values) / (math.fsum(values) / len(values))

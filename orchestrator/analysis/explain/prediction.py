"""Why a shape has its speed: a step predicted from separate measurements, and the gap to the ideal divided into parts.

The ideal step is that of the baseline, 1n1g. Every part but the last comes from a measurement other than that of the step
itself; the remainder is reported as ``unexplained``. A part that was not measured is None and never estimated. This module
gets all its data as arguments and reads no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.explain.overlap import ALONE, REACH, Bucket, Curve, DeviceModel, Sharing, buckets_of, step_s
from orchestrator.analysis.explain.step_parts import StepParts, typical
from orchestrator.results import Interval
from orchestrator.results.numbers.intervals import LEVEL, around
from orchestrator.results.summary import Row

__all__ = ["PARTS", "Collective", "Explanation", "Part", "Startup", "explanation"]

PARTS = ("communication", "input", "straggler", "contention", "unexplained")
BACKWARD = 2 / 3
"""Share of a step, if not measured: the backward pass computes two gradients, the forward pass one output."""
SLOWED_BY_SOCKETS = 1.36
"""Factor by which computing takes longer while NCCL uses sockets, if only the speed of a shape was measured. It was measured in
one run of four nodes that share a host, and is applied to similar runs."""
_ALL_TAKEN = Sharing(1.0, 0.0)

MODEL_ERROR = 0.05
"""How far the model may be off, as a share, besides the uncertainty of its inputs: more than in any of the six runs that it was
compared with, which it misses by up to 4.5 %."""


@dataclass(frozen=True, slots=True)
class Collective:
    """The measured all-reduces of a shape and their source. ``uncertain``: the times may be off by this share."""

    curve: Curve
    source: str
    uncertain: float = 0.0


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds of a run from the start of its first node: until its warm-up ends, and until its last node ends."""

    until_window_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the gap in seconds per step, None if not measured. ``behind``: the measurement, or what is missing."""

    name: str
    seconds: float | None
    behind: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One shape compared with its baseline: seconds per step, samples/s over all ranks.

    ``parts``, in the order of `PARTS`, add up to ``step_s - ideal_s``. ``predicted`` is None if a measurement that it needs is
    missing; ``from_baseline`` is the prediction from the baseline and the all-reduces alone, without anything that ran on this
    shape. ``interval`` is that of the prediction, None if the baseline has too few repeats. ``missing`` are commands that take
    the missing measurements.
    """

    series: str
    case: str
    world_size: int
    simulated: bool
    measured: float
    step_s: float
    ideal_s: float
    ideal: str
    predicted: float | None
    interval: Interval | None
    from_baseline: float | None
    parts: tuple[Part, ...]
    startup: Startup | None
    missing: tuple[str, ...]

    @property
    def off(self) -> float | None:
        """Relative deviation of the prediction from the measured speed."""
        return None if self.predicted is None else self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class _Model:
    """The inputs of a prediction for more than one rank."""

    device: DeviceModel
    buckets: tuple[Bucket, ...]
    curve: Curve
    sharing: Sharing

    def step_s(self) -> float:
        return step_s(self.device, self.buckets, self.curve, self.sharing)


def explanation(
    row: Row,
    baseline: Row,
    runs: Sequence[StepParts],
    baseline_runs: Sequence[StepParts],
    collective: Collective | None,
    *,
    sockets: bool = False,
    startup: Startup | None = None,
    missing: Sequence[str] = (),
) -> Explanation | None:
    """Return the explanation of a row, None if the row or its baseline has no speed, or the baseline communicates itself.

    ``runs`` and ``baseline_runs`` are the step parts of their good runs; ``sockets``: NCCL used sockets in those of the row.
    """
    if not row.value or not baseline.value:
        return None
    if not row.step_s or not baseline.step_s or baseline.world_size > 1:
        return None
    measured_s, ideal_s = row.step_s, baseline.step_s
    samples = row.value * row.step_s
    shape, base = typical(runs), typical(baseline_runs)
    straggler, contention = _straggler(shape), _contention(shape, base)
    busy_s = ideal_s + math.fsum(part.seconds or 0.0 for part in (straggler, contention))
    model, behind = _model(row, shape, busy_s, collective, sockets)
    predicted_s = busy_s if row.world_size == 1 else model.step_s() if model else None
    each = [_step_s(row, typical([run]), base, ideal_s, collective, sockets) for run in runs] if model else []
    scatter = _scatter([step for step in each if step is not None and step > 0], baseline)
    communication = Part("communication", None if predicted_s is None else predicted_s - busy_s, behind)
    parts = [communication, _input(shape, base), straggler, contention]
    left_s = measured_s - ideal_s - math.fsum(part.seconds or 0.0 for part in parts)
    alone = _model(row, replace(shape, sharing=None, slowed=None), ideal_s, collective, sockets)[0]
    alone_s = ideal_s if row.world_size == 1 else alone.step_s() if alone else None
    return Explanation(
        series=row.series,
        case=row.shape,
        world_size=row.world_size,
        simulated=row.simulated,
        measured=row.value,
        step_s=measured_s,
        ideal_s=ideal_s,
        ideal=f"a step of {baseline.shape}, the typical speed of {baseline.n} runs",
        predicted=samples / predicted_s if predicted_s else None,
        interval=_interval(samples / predicted_s, model, shape, baseline, collective, scatter) if predicted_s else None,
        from_baseline=samples / alone_s if alone_s else None,
        parts=(*parts, Part("unexplained", left_s, "the rest of the gap")),
        startup=startup,
        missing=tuple(missing),
    )


def _step_s(
    row: Row, shape: StepParts, base: StepParts, ideal_s: float, collective: Collective | None, sockets: bool
) -> float | None:
    """Return the predicted seconds of a step, None without a model."""
    busy_s = ideal_s + math.fsum(part.seconds or 0.0 for part in (_straggler(shape), _contention(shape, base)))
    model = _model(row, shape, busy_s, collective, sockets)[0]
    return model.step_s() if model else None


# -- parts


_NO_SOLO = "steps without communication were not measured, in this shape or in the baseline"


def _straggler(shape: StepParts) -> Part:
    if shape.solo_mean_s is None or shape.solo_max_s is None:
        return Part("straggler", None, _NO_SOLO)
    behind = f"steps without communication: {_ms(shape.solo_max_s)} on the slowest rank, {_ms(shape.solo_mean_s)} on average"
    return Part("straggler", shape.solo_max_s - shape.solo_mean_s, behind)


def _contention(shape: StepParts, base: StepParts) -> Part:
    if shape.solo_mean_s is None or base.solo_mean_s is None:
        return Part("contention", None, _NO_SOLO)
    all_ranks, alone = _ms(shape.solo_mean_s), _ms(base.solo_mean_s)
    behind = f"steps without communication: {all_ranks} with all ranks at once, {alone} in the baseline"
    return Part("contention", shape.solo_mean_s - base.solo_mean_s, behind)


def _input(shape: StepParts, base: StepParts) -> Part:
    if shape.input_s is None or base.input_s is None:
        return Part("input", None, "waits for data were not measured, in this shape or in the baseline")
    behind = (
        f"wait for data per step: {_ms(shape.input_s)} on the rank that waited longest, {_ms(base.input_s)} in the baseline"
    )
    return Part("input", shape.input_s - base.input_s, behind)


def _model(
    row: Row, shape: StepParts, busy_s: float, collective: Collective | None, sockets: bool
) -> tuple[_Model | None, str]:
    """Return the model of a shape whose ranks compute for ``busy_s``, None without one, and its inputs or what is missing."""
    if row.world_size == 1:
        return None, "a single rank has nothing to reduce"
    if collective is None or not shape.buckets_bytes:
        return (
            None,
            "all-reduces of this shape were not measured"
            if shape.buckets_bytes
            else "the sizes of gradients were not reported",
        )
    largest = max(shape.buckets_bytes)
    if not collective.curve.reaches(largest):
        return None, _too_short(collective, largest)
    assumed = sockets and shape.slowed is None and shape.solo_mean_s is None
    slowed = SLOWED_BY_SOCKETS if assumed else shape.slowed or 1.0
    device = DeviceModel(busy_s, busy_s * (shape.backward or BACKWARD)).scaled(slowed)
    buckets = buckets_of(shape.buckets_bytes, row.model)
    if shape.ready:
        buckets = tuple(Bucket(bucket.size_bytes, share) for bucket, share in zip(buckets, shape.ready, strict=True))
    model = _Model(device, buckets, collective.curve, shape.sharing or ALONE)
    reduce_s = math.fsum(collective.curve.time_s(bucket.size_bytes) for bucket in buckets)
    backward, megabytes = device.backward_s / device.step_s, sum(bucket.size_bytes for bucket in buckets) / 1e6
    count = f"{len(buckets)} {'bucket' if len(buckets) == 1 else 'buckets'} of {megabytes:.1f} MB"
    sizes = ", sizes assumed" if shape.is_cut_here else ""
    in_runs = f" ({_ms(shape.reduce_s)} in these runs)" if shape.reduce_s else ""
    inputs = [
        f"{count} ready at {'measured' if shape.ready else 'assumed'} times{sizes}",
        f"all-reduced in {_ms(reduce_s)} according to {collective.source}{in_runs}",
        f"during a backward pass of {backward:.0%} of a step{' (assumed)' if shape.backward is None else ''}",
        _slowdown(shape, slowed, assumed),
    ]
    return model, ", ".join(inputs)


def _too_short(collective: Collective, largest_bytes: int) -> str:
    ends_bytes = collective.curve.points[-1][0]
    return (
        f"the all-reduces of {collective.source} end at {ends_bytes} bytes, and the largest bucket has {largest_bytes}, "
        f"{largest_bytes / ends_bytes:.0f} times as many: times are not extrapolated by more than a factor of {REACH}"
    )


def _slowdown(shape: StepParts, slowed: float, assumed: bool) -> str:
    if shape.sharing:
        lost = f"{shape.sharing.compute:.0%} of its speed and reducing {shape.sharing.reduce:.0%}"
        text = f"during which computing loses {lost} (measured)"
        return f"{text}; the whole step {slowed - 1:.1%} slower" if slowed > 1.0005 else text
    if assumed:
        return f"computing {slowed:g} times as slow with sockets (assumed)"
    return "neither slowing the other (assumed)"


# -- how certain it is


def _scatter(steps_s: Sequence[float], baseline: Row) -> float:
    """Return how far the prediction may be off in logarithms because its parts were read from few runs of the shape.

    ``steps_s`` are predictions from the parts of each run alone. With one run their scatter is unknown: what was read from it
    is then taken to be as uncertain as the speed of a single run of the baseline.
    """
    if ends := around([math.log(step) for step in steps_s]):
        return math.log(ends.high / ends.low) / 2
    if not steps_s or baseline.interval is None:
        return 0.0
    return math.log(baseline.interval.high / baseline.interval.low) / 2 * math.sqrt(baseline.n)


def _interval(
    predicted: float, model: _Model | None, shape: StepParts, baseline: Row, collective: Collective | None, scatter: float
) -> Interval | None:
    """Return the interval of the prediction: what each input and the model leave uncertain, added as squares."""
    if baseline.interval is None or not baseline.value:
        return None
    low, high = (math.log(end / baseline.value) for end in (baseline.interval.low, baseline.interval.high))
    below, above = [min(low, 0.0)], [max(high, 0.0)]
    if model and collective:
        below += [scatter, math.log(1 + MODEL_ERROR)]
        above += [scatter, math.log(1 + MODEL_ERROR)]
        usual = model.step_s()
        variants = [replace(model, curve=model.curve.scaled((1 + collective.uncertain) ** sign)) for sign in (1, -1)]
        if not shape.sharing:
            variants.append(replace(model, sharing=_ALL_TAKEN))
        changes = [math.log(usual / variant.step_s()) for variant in variants]
        below += [change for change in changes if change < 0]
        above += [change for change in changes if change > 0]
    down, up = (math.exp(sign * math.hypot(*ends)) for sign, ends in ((-1, below), (1, above)))
    return Interval(predicted * down, predicted * up, LEVEL)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"

"""Why a shape is as fast as it is: a step predicted from separate measurements, and the gap to the ideal divided into parts.

The ideal step is that of the baseline, 1n1g. Every part but the last is measured by something else than the step it is a part
of; what they leave stands as ``unexplained``, with its size. What was not measured is not told: no part is ever made up. This
module is handed everything, and knows no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.explain.overlap import ALONE, REACH, Bucket, Curve, DeviceModel, Sharing, buckets_of, step_s
from orchestrator.analysis.explain.step_parts import StepParts, typical
from orchestrator.results.numbers.intervals import LEVEL, Interval
from orchestrator.results.summary import Row

__all__ = ["PARTS", "Collective", "Explanation", "Part", "Startup", "explanation"]

PARTS = ("communication", "input", "straggler", "contention", "unexplained")
BACKWARD = 2 / 3
"""Of a step, where it was not measured: the backward pass makes two gradients, the forward pass one output."""
SLOWED_BY_SOCKETS = 1.36
"""How many times as long computing takes beside NCCL's sockets, where nothing of a shape was measured but its speed. It was
found in one run of four nodes that share a host, and is taken for the others like it."""
_ALL_TAKEN = Sharing(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Collective:
    """The measured all-reduce of a shape, and where it was measured. ``uncertain``: its times may be off by this share."""

    curve: Curve
    source: str
    uncertain: float = 0.0


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds of a run from the start of its first node: until its warm-up is over, and until its last node has ended."""

    until_window_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the gap, in seconds of a step, None where it cannot be told. ``behind``: the measurement, or what lacks."""

    name: str
    seconds: float | None
    behind: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One shape beside its baseline: seconds of a step, samples/s over all ranks.

    ``parts``, in the order of `PARTS`, add up to ``step_s - ideal_s``. ``predicted`` is None where a measurement lacks that it
    needs; ``from_baseline`` is what the baseline and the all-reduces alone foretell, without anything that ran on this
    shape. ``interval`` is of the prediction, None where the baseline has too few repeats for one. ``missing`` are commands
    that would measure what lacks.
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
        """How far the prediction is from what was measured, as a share of that."""
        return None if self.predicted is None else self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class _Model:
    """What a prediction of more than one rank is made of."""

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
    """Return why a row is as fast as it is, None where it or its baseline has no speed.

    ``runs`` and ``baseline_runs`` are what the good runs of either tell; ``sockets``: NCCL spoke sockets in those of the row.
    """
    if not row.median_speed or not baseline.median_speed:
        return None
    samples = row.world_size * row.batch_size
    measured_s, ideal_s = samples / row.median_speed, baseline.world_size * baseline.batch_size / baseline.median_speed
    here, there = typical(runs), typical(baseline_runs)
    straggler, contention = _straggler(here), _contention(here, there)
    busy_s = ideal_s + math.fsum(part.seconds or 0.0 for part in (straggler, contention))
    model, behind = _model(row, here, busy_s, collective, sockets)
    predicted_s = busy_s if row.world_size == 1 else model.step_s() if model else None
    communication = Part("communication", None if predicted_s is None else predicted_s - busy_s, behind)
    parts = [communication, _input(here, there), straggler, contention]
    left_s = measured_s - ideal_s - math.fsum(part.seconds or 0.0 for part in parts)
    alone = _model(row, replace(here, sharing=None, slowed=None), ideal_s, collective, sockets)[0]
    alone_s = ideal_s if row.world_size == 1 else alone.step_s() if alone else None
    return Explanation(
        series=row.series,
        case=row.shape,
        world_size=row.world_size,
        simulated=row.simulated,
        measured=row.median_speed,
        step_s=measured_s,
        ideal_s=ideal_s,
        ideal=f"a step of {baseline.shape}, the median of {baseline.n} runs",
        predicted=samples / predicted_s if predicted_s else None,
        interval=_interval(samples / predicted_s, model, here, baseline, collective) if predicted_s else None,
        from_baseline=samples / alone_s if alone_s else None,
        parts=(*parts, Part("unexplained", left_s, "what the other parts leave of the gap")),
        startup=startup,
        missing=tuple(missing),
    )


# -- parts


_NO_SOLO = "steps without communication were not measured, here or in the baseline"


def _straggler(here: StepParts) -> Part:
    if here.solo_mean_s is None or here.solo_max_s is None:
        return Part("straggler", None, _NO_SOLO)
    behind = f"steps without communication: {_ms(here.solo_max_s)} on the slowest rank, {_ms(here.solo_mean_s)} on the average"
    return Part("straggler", here.solo_max_s - here.solo_mean_s, behind)


def _contention(here: StepParts, there: StepParts) -> Part:
    if here.solo_mean_s is None or there.solo_mean_s is None:
        return Part("contention", None, _NO_SOLO)
    one, all_ = _ms(there.solo_mean_s), _ms(here.solo_mean_s)
    behind = f"steps without communication: {all_} with all ranks at once, {one} in the baseline"
    return Part("contention", here.solo_mean_s - there.solo_mean_s, behind)


def _input(here: StepParts, there: StepParts) -> Part:
    if here.input_s is None or there.input_s is None:
        return Part("input", None, "waits for data were not measured, here or in the baseline")
    behind = (
        f"wait for data in a step: {_ms(here.input_s)} on the rank that waited longest, {_ms(there.input_s)} in the baseline"
    )
    return Part("input", here.input_s - there.input_s, behind)


def _model(row: Row, here: StepParts, busy_s: float, collective: Collective | None, sockets: bool) -> tuple[_Model | None, str]:
    """Return the model of a shape whose ranks compute for ``busy_s``, and what it rests on, or what it lacks."""
    if row.world_size == 1:
        return None, "one rank reduces nothing"
    if collective is None or not here.buckets_bytes:
        return (
            None,
            "all-reduces of this shape were not measured" if here.buckets_bytes else "the sizes of gradients are not told",
        )
    largest = max(here.buckets_bytes)
    if not collective.curve.reaches(largest):
        return None, _too_short(collective, largest)
    assumed = sockets and here.slowed is None and here.solo_mean_s is None
    slowed = SLOWED_BY_SOCKETS if assumed else here.slowed or 1.0
    device = DeviceModel(busy_s, busy_s * (here.backward or BACKWARD)).scaled(slowed)
    buckets = buckets_of(here.buckets_bytes, row.model)
    if here.ready:
        buckets = tuple(Bucket(one.size_bytes, share) for one, share in zip(buckets, here.ready, strict=True))
    model = _Model(device, buckets, collective.curve, here.sharing or ALONE)
    reduce_s = math.fsum(collective.curve.time_s(bucket.size_bytes) for bucket in buckets)
    backward, megabytes = device.backward_s / device.step_s, sum(bucket.size_bytes for bucket in buckets) / 1e6
    ready = "ready as measured" if here.ready else "ready as assumed"
    own = f" ({_ms(here.reduce_s)} in these runs)" if here.reduce_s else ""
    told = [
        f"{len(buckets)} bucket{'s' * (len(buckets) > 1)} of {megabytes:.1f} MB {ready}{', sizes assumed' * here.is_cut_here}",
        f"all-reduced in {_ms(reduce_s)} by {collective.source}{own}",
        f"beside a backward pass of {backward:.0%} of a step{' by assumption' * (here.backward is None)}",
        _taken(here, slowed, assumed),
    ]
    return model, ", ".join(told)


def _too_short(collective: Collective, largest_bytes: int) -> str:
    ends_bytes = collective.curve.points[-1][0]
    return (
        f"the all-reduces of {collective.source} end at {ends_bytes} bytes, and the largest bucket has {largest_bytes}, "
        f"{largest_bytes / ends_bytes:.0f} times as many: no time is made up from so far below, more than {REACH} times"
    )


def _taken(here: StepParts, slowed: float, assumed: bool) -> str:
    if here.sharing:
        words = f"computing loses {here.sharing.compute:.0%} meanwhile and reducing {here.sharing.reduce:.0%}, as measured"
        return words + f"; all of the step {slowed - 1:.1%} slower" * (slowed > 1.0005)
    if assumed:
        return f"computing {slowed:g} times as slow beside sockets by assumption"
    return "neither slowing the other by assumption"


# -- how certain it is


def _interval(
    predicted: float, model: _Model | None, here: StepParts, baseline: Row, collective: Collective | None
) -> Interval | None:
    """Return where the prediction lies when each thing it rests on is off as far as it may be, added up as squares."""
    if baseline.speed_interval is None or not baseline.median_speed:
        return None
    low, high = (math.log(end / baseline.median_speed) for end in (baseline.speed_interval.low, baseline.speed_interval.high))
    below, above = [min(low, 0.0)], [max(high, 0.0)]
    if model and collective:
        usual = model.step_s()
        others = [replace(model, curve=model.curve.scaled((1 + collective.uncertain) ** sign)) for sign in (1, -1)]
        others += [] if here.sharing else [replace(model, sharing=_ALL_TAKEN)]
        changes = [math.log(usual / other.step_s()) for other in others]
        below += [change for change in changes if change < 0]
        above += [change for change in changes if change > 0]
    down, up = (math.exp(sign * math.hypot(*ends)) for sign, ends in ((-1, below), (1, above)))
    return Interval(predicted * down, predicted * up, LEVEL)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"

"""Explain the speed of a shape: a step predicted from separate measurements, and the gap to the
ideal divided into parts.

The ideal step is the baseline's, 1n1g, and of a larger baseline what its ranks take without
communication. Every part but the last comes from a measurement other than the step itself;
the remainder is reported as ``unexplained``. A part that was not measured is None and never
estimated. This module gets all its data as arguments and reads no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.features.explain.communication import Measured, Model, model_of, ms
from orchestrator.plural import plural
from orchestrator.results import Interval
from orchestrator.results.entries import Row
from orchestrator.results.numbers.intervals import LEVEL, centre_of
from orchestrator.results.parts.overlap import Sharing
from orchestrator.results.parts.step_parts import StepParts, typical

PARTS = ("communication", "input", "straggler", "contention", "unexplained")
_ALL_TAKEN = Sharing(1.0, 0.0)

MODEL_ERROR = 0.05
"""How far the model may be off, as a share, besides the uncertainty of its inputs: more than in any
of the six runs that it was compared with, which it misses by up to 4.5 %."""
LANGUAGE_MODEL_ERROR = 0.25
"""The same where a program reports all its collectives, as that of language models does: it was
compared with runs in a lab alone, on processors that other programs used as well, and misses their
speeds by up to 20 %."""


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds of a run from the start of its first node: until its warm-up ends, and until its last
    node ends.
    """

    until_window_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the gap in seconds per step, None if not measured. ``behind``: the measurement, or
    the missing one.
    """

    name: str
    seconds: float | None
    behind: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One shape compared with its baseline: seconds per step, speeds in ``unit`` over all ranks.

    ``parts``, in the order of `PARTS`, add up to ``step_s - ideal_s``. ``predicted`` is None if a
    measurement that it needs is missing; ``from_baseline`` is the prediction from the baseline and
    the collectives alone, without any other time of this shape. ``interval`` belongs to the
    prediction, None if the baseline has too few repeats. ``missing`` are commands that take the
    missing measurements.
    """

    series: str
    case: str
    world_size: int
    simulated: bool
    unit: str
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
        if self.predicted is None:
            return None
        return self.predicted / self.measured - 1


def explanation(
    row: Row,
    baseline: Row,
    runs: Sequence[StepParts],
    baseline_runs: Sequence[StepParts],
    measured: Measured,
    *,
    sockets: bool = False,
    startup: Startup | None = None,
    missing: Sequence[str] = (),
) -> Explanation | None:
    """Return the explanation of a row; None if the row or its baseline has no speed, or the
    baseline has several ranks and did not measure its steps without communication.

    ``runs`` and ``baseline_runs`` are the step parts of their good runs, ``measured`` the
    collectives of the row's shape; ``sockets``: NCCL used sockets in the runs of the row.
    """
    if not row.value or not baseline.value or not row.step_s or not baseline.step_s:
        return None
    shape, base = typical(runs), _for_share(typical(baseline_runs), _share(row, baseline))
    ideal_s = (
        baseline.step_s * _share(row, baseline) if baseline.world_size == 1 else base.solo_mean_s
    )
    if not ideal_s:
        return None
    samples = row.value * row.step_s
    straggler, contention = _straggler(shape), _contention(shape, base)
    busy_s = ideal_s + math.fsum(part.seconds or 0.0 for part in (straggler, contention))
    model, behind = _model(row, shape, busy_s, measured, sockets)
    if row.world_size == 1:
        predicted_s = busy_s
    elif model:
        predicted_s = model.step_s()
    else:
        predicted_s = None
    steps_s = []
    if model:
        steps_s = [_step_s(row, typical([run]), base, ideal_s, measured, sockets) for run in runs]
    scatter = _scatter([step for step in steps_s if step is not None and step > 0], baseline)
    communication = Part(
        "communication", None if predicted_s is None else predicted_s - busy_s, behind
    )
    parts = [communication, _input(shape, base), straggler, contention]
    left_s = row.step_s - ideal_s - math.fsum(part.seconds or 0.0 for part in parts)
    alone = _model(row, replace(shape, sharing=None, slowed=None), ideal_s, measured, sockets)[0]
    if row.world_size == 1:
        alone_s = ideal_s
    elif alone:
        alone_s = alone.step_s()
    else:
        alone_s = None
    return Explanation(
        series=row.series,
        case=row.shape,
        world_size=row.world_size,
        simulated=row.simulated,
        unit=row.unit,
        measured=row.value,
        step_s=row.step_s,
        ideal_s=ideal_s,
        ideal=_ideal(row, baseline),
        predicted=samples / predicted_s if predicted_s else None,
        interval=_interval(samples / predicted_s, model, shape, baseline, scatter)
        if predicted_s
        else None,
        from_baseline=samples / alone_s if alone_s else None,
        parts=(*parts, Part("unexplained", left_s, "the rest of the gap")),
        startup=startup,
        missing=tuple(missing),
    )


def _share(row: Row, baseline: Row) -> float:
    """Return a rank's computation in a step as a share of the baseline's: all of it with weak
    scaling.
    """
    if row.scaling != "strong":
        return 1.0
    return baseline.world_size / row.world_size


def _for_share(base: StepParts, share: float) -> StepParts:
    def part(time_s: float | None) -> float | None:
        return None if time_s is None else time_s * share

    return replace(
        base,
        solo_mean_s=part(base.solo_mean_s),
        solo_max_s=part(base.solo_max_s),
        input_s=part(base.input_s),
    )


def _ideal(row: Row, baseline: Row) -> str:
    step = f"a step of {baseline.shape}"
    if row.scaling == "strong":
        step = f"{baseline.world_size} over the number of ranks times {step}"
    if baseline.world_size > 1:
        return f"{step} without communication, the mean over its ranks"
    return f"{step}, the typical speed of {plural(baseline.n, 'run')}"


def _step_s(
    row: Row, shape: StepParts, base: StepParts, ideal_s: float, measured: Measured, sockets: bool
) -> float | None:
    """Return the predicted seconds of a step, None without a model."""
    busy_s = ideal_s + math.fsum(
        part.seconds or 0.0 for part in (_straggler(shape), _contention(shape, base))
    )
    model = _model(row, shape, busy_s, measured, sockets)[0]
    return model.step_s() if model else None


def _model(
    row: Row, shape: StepParts, busy_s: float, measured: Measured, sockets: bool
) -> tuple[Model | None, str]:
    if row.world_size == 1:
        return None, "a single rank has nothing to reduce"
    return model_of(row.model, shape, busy_s, measured, sockets)


# -- parts


_NO_SOLO = "steps without communication were not measured, in this shape or in the baseline"


def _straggler(shape: StepParts) -> Part:
    if shape.solo_mean_s is None or shape.solo_max_s is None:
        return Part("straggler", None, _NO_SOLO)
    behind = f"steps without communication: {ms(shape.solo_max_s)} on the slowest rank, {ms(shape.solo_mean_s)} on average"
    return Part("straggler", shape.solo_max_s - shape.solo_mean_s, behind)


def _contention(shape: StepParts, base: StepParts) -> Part:
    if shape.solo_mean_s is None or base.solo_mean_s is None:
        return Part("contention", None, _NO_SOLO)
    all_ranks, alone = ms(shape.solo_mean_s), ms(base.solo_mean_s)
    behind = (
        f"steps without communication: {all_ranks} with all ranks at once, {alone} in the baseline"
    )
    if shape.graphs != base.graphs:
        graphs = [of_shape.graphs or "not reported" for of_shape in (base, shape)]
        behind += f", compiled as {graphs[0]}, this shape as {graphs[1]}: a part of the difference"
    return Part("contention", shape.solo_mean_s - base.solo_mean_s, behind)


def _input(shape: StepParts, base: StepParts) -> Part:
    if shape.input_s is None or base.input_s is None:
        return Part(
            "input", None, "waits for data were not measured, in this shape or in the baseline"
        )
    behind = f"wait for data per step: {ms(shape.input_s)} on the rank that waited longest, {ms(base.input_s)} in the baseline"
    return Part("input", shape.input_s - base.input_s, behind)


# -- how certain it is


def _scatter(steps_s: Sequence[float], baseline: Row) -> float:
    """Return how far the prediction may be off in logarithms because its parts were read from few
    runs of the shape.

    ``steps_s`` are predictions from the parts of each run alone. With one run their scatter is
    unknown: what was read from it is then taken to be as uncertain as the speed of a single run of
    the baseline.
    """
    if centre := centre_of([math.log(step) for step in steps_s]):
        ends = centre.interval()
        return math.log(ends.high / ends.low) / 2
    if not steps_s or baseline.interval is None:
        return 0.0
    return math.log(baseline.interval.high / baseline.interval.low) / 2 * math.sqrt(baseline.n)


def _interval(
    predicted: float, model: Model | None, shape: StepParts, baseline: Row, scatter: float
) -> Interval | None:
    """Return the interval of the prediction: what each input and the model leave uncertain, added
    as squares.
    """
    if baseline.interval is None or not baseline.value:
        return None
    low, high = (
        math.log(end / baseline.value) for end in (baseline.interval.low, baseline.interval.high)
    )
    below, above = [min(low, 0.0)], [max(high, 0.0)]
    if model:
        error = MODEL_ERROR if shape.transfers is None else LANGUAGE_MODEL_ERROR
        below += [scatter, math.log(1 + error)]
        above += [scatter, math.log(1 + error)]
        usual = model.step_s()
        variants = [model.slower(sign) for sign in (1, -1)]
        if not shape.sharing:
            variants.append(replace(model, sharing=_ALL_TAKEN))
        changes = [math.log(usual / variant.step_s()) for variant in variants]
        below += [change for change in changes if change < 0]
        above += [change for change in changes if change > 0]
    down, up = (math.exp(sign * math.hypot(*ends)) for sign, ends in ((-1, below), (1, above)))
    return Interval(predicted * down, predicted * up, LEVEL)

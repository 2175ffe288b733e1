"""A program's own figures of its speed beside the computed ones, and conventions that explain a
difference.

Programs that print TFLOP/s or an MFU count half of the attention or all of it, recomputation or
not, and divide by the peak of one device, whatever runs. A figure may differ from the computed one
by more than the printed digits and 2 %. It is then explained by one or two of these conventions, if
they reproduce it within 2 %.

>>> from orchestrator.plan.scaling import Step
>>> from orchestrator.results.numbers.peaks import devices_in
>>> llama3_8b = Transformer(32, 4096, 32, 8, 128, 14336, gated=True, vocab=128256, tied=False)
>>> spec = RunSpec("lm", "llama3-8b", 1, 1, "cuda", 2, "bf16", "synthetic", 20, 5, 600.0, {}, step=Step(tokens=4096))
>>> h200 = RunContext(spec, llama3_8b, devices_in("NVIDIA H200")["H200"])
>>> Figure("mfu", said=59.6, computed=h200.compute("mfu", 11_452.0), resolution=0.1).explanations(h200)
()
>>> Figure("mfu", said=189.0, computed=h200.compute("mfu", 11_452.0), resolution=0.1).explanations(h200)
('the peak of A100 (312 TFLOP/s)',)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from orchestrator.devices.vendor import Device
from orchestrator.errors import DataError
from orchestrator.grouping import group_pairs
from orchestrator.logs.metrics import COMBINED, Metric
from orchestrator.notes import Note
from orchestrator.plan import RunSpec
from orchestrator.plan.transformer import Transformer
from orchestrator.plural import plural
from orchestrator.results.language_model import device_of
from orchestrator.results.notes import PROGRAM_FIGURE
from orchestrator.results.numbers.peaks import DIVISORS
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.numbers.throughput import WORTH
from orchestrator.results.values import Value

_NAMED = 2
"""Explanations that a doubt names; of others it says how many there are."""
_DTYPES = ("bf16", "tf32", "fp32", "fp8")
_TOO_FAR_APART = 1.5
"""A program's tokens/s that differ by more, for no known reason, are of other steps."""
_OF_STEPS = ("mean", "median", "min", "max")
"""Combinations of lines that differ from the speed of the window, which is their harmonic mean."""


@dataclass(frozen=True, slots=True)
class Convention:
    """A way in which programs count otherwise. Of each ``kind`` a figure has at most one. ``value``
    is a peak in operations/s, what the tokens are multiplied by, or the share of the attention that
    counts; others have none."""

    kind: str
    words: str
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class RunContext:
    """The facts besides speed that the figures of a run depend on.

    ``device`` is None if it is not known, or ranks have several.
    """

    spec: RunSpec
    transformer: Transformer | None
    device: Device | None

    @classmethod
    def of(
        cls, spec: RunSpec, transformer: Transformer | None, observed: Mapping[str, Any]
    ) -> RunContext:
        """Return the context of a run; ``observed`` is what its program reported at its end."""
        return cls(spec, transformer, device_of(observed))

    def compute(
        self, says: str, tokens_per_s: float, conventions: Sequence[Convention] = ()
    ) -> float | None:
        """Return the figure ``says``, one of `metrics.SAYS`, that follows from a speed, as a
        program of these conventions computes it; None if sizes or peak are not known."""
        by_kind = {convention.kind: convention.value for convention in conventions}
        tokens = tokens_per_s * by_kind.get("scale", 1.0) * by_kind.get("micro-batch", 1.0)
        if says == "tokens_per_s":
            return tokens
        per_device = tokens / self.spec.world_size
        if says == "tokens_per_s_per_device":
            return per_device
        if self.transformer is None:
            return None
        operations = per_device * _operations(self.transformer, self.spec.step.tokens, by_kind)
        if says == "tflops_per_device":
            return operations / 1e12
        peak = self.device.peak(self.spec.dtype) if self.device else None
        if not peak:
            return None
        return 100 * operations / by_kind.get("peak", peak)

    def conventions(self, says: str) -> list[Convention]:
        """Return the conventions that can matter for a figure, conventions first, then peaks, then
        what the tokens are of.
        """
        conventions = []
        if says in ("tflops_per_device", "mfu"):
            is_done = self.spec.step.recomputation == "full"
            experts = ""
            if self.transformer and self.transformer.experts > 1:
                experts = " and of all experts"
            conventions += [
                Convention("attention", "half of the attention, as in mfu_causal", 0.5),
                Convention("attention", "no attention, 6 N alone", 0.0),
                Convention(
                    "recomputation",
                    "recomputation, as in hfu"
                    if is_done
                    else "full recomputation, which this run does not do",
                ),
                Convention(
                    "parameters", f"all parameters, with those of embedding tables{experts}"
                ),
            ]
        if says == "mfu" and self.device:
            conventions += _peaks(self.device, self.spec.dtype)
        conventions += [
            convention for convention in _scales(self.spec, says) if convention.value != 1
        ]
        count = self.spec.step.micro_batches
        if count > 1:
            conventions.append(
                Convention("micro-batch", f"the tokens of one micro-batch of {count}", 1 / count)
            )
        return conventions


@dataclass(frozen=True, slots=True)
class Figure:
    """A program's own figure, and the one computed from its log, in the same unit.

    ``resolution``: the difference that the printed digits allow.
    """

    says: str
    said: float
    computed: float
    resolution: float = 0.0
    metric: str = ""
    unit: str = ""
    doubt: Note | None = None

    @property
    def differs(self) -> bool:
        """Return whether the difference is more than rounding and 2 %."""
        return not self._is_near(self.computed)

    def explanations(self, context: RunContext) -> tuple[str, ...]:
        """Return the simplest conventions that reproduce a figure that differs, the nearest first;
        none if none does.
        """
        if not self.differs or self.said <= 0:
            return ()
        conventions = context.conventions(self.says)

        def factor(*chosen: Convention) -> float:
            own, other = (context.compute(self.says, 1.0, some) for some in ((), chosen))
            return other / own if own and other else 1.0

        for size in (1, 2):
            reproduced = {}
            for chosen in combinations(conventions, size):
                if len({convention.kind for convention in chosen}) < size:
                    continue
                ratio = factor(*chosen)
                # Each of them must matter, and all together: what changes a figure by less than 2 %
                # explains nothing.
                rests = [1.0]
                for convention in chosen:
                    rests.append(factor(*(other for other in chosen if other is not convention)))
                if self._is_near(self.computed * ratio) and all(
                    abs(ratio / rest - 1) > WORTH for rest in rests
                ):
                    reproduced[" and ".join(convention.words for convention in chosen)] = abs(
                        math.log(self.said / self.computed / ratio)
                    )
            if reproduced:
                return tuple(sorted(reproduced, key=lambda words: reproduced[words]))
        return ()

    def note(self, context: RunContext) -> Note | None:
        """Return the doubt about a figure; None if it does not differ."""
        if not self.differs:
            return None
        explanations = self.explanations(context)
        named = list(explanations[:_NAMED])
        if more := len(explanations) - len(named):
            named.append(f"{plural(more, 'other explanation')}")
        why = "no known convention explains it"
        if named:
            why = f"it matches a computation with {', or with '.join(named)}"
        unit = "%" if self.unit == "%" else f" {self.unit}"
        said, computed = (f"{format_number(figure)}{unit}" for figure in (self.said, self.computed))
        return PROGRAM_FIGURE(name=self.says, said=said, computed=computed, why=why)

    def _is_near(self, figure: float) -> bool:
        return abs(self.said - figure) <= WORTH * figure + self.resolution * max(
            1.0, figure / self.computed
        )


def figures(
    metrics: Sequence[Metric],
    values: Sequence[Value],
    speed: Value,
    step_times: Sequence[float],
    context: RunContext,
) -> tuple[Figure, ...]:
    """Return a program's own figures in one run, with the doubt about each.

    ``speed`` is the run's speed in tokens/s, ``step_times`` are the step times of its window (s).
    If lines become one value as a median or a mean, or the program averages steps itself, so do the
    steps. Figures without a computed one, such as an MFU without a known peak, are left out.
    """
    rates = [1 / seconds for seconds in step_times]
    by_metric = {value.metric: value for value in values}
    compared = []
    for metric in metrics:
        value = by_metric.get(metric.name)
        if not metric.says or value is None:
            continue
        typical = _of_steps(metric, rates)
        shift = typical / COMBINED["harmonic_mean"](rates) if typical else 1.0
        computed = context.compute(metric.says, speed.number * shift)
        if computed:
            # The roundings of one program may all go one way, so that they do not average out.
            of_lines = math.sqrt(len(rates)) if metric.over in ("mean", "harmonic_mean") else 1.0
            resolution = value.resolution * of_lines + computed * speed.resolution / speed.number
            figure = Figure(
                metric.says, value.number, computed, resolution, metric.name, metric.unit
            )
            compared.append(replace(figure, doubt=figure.note(context)))
    return tuple(compared)


def _of_steps(metric: Metric, rates: Sequence[float]) -> float:
    """Return the rate of steps, in their order, that a figure is about; 0 if that is the one of the
    whole window.
    """
    if metric.ema and rates:
        average = rates[0]
        for rate in rates[1:]:
            average += metric.ema * (rate - average)
        return average
    if metric.over in _OF_STEPS and rates:
        return COMBINED[metric.over](rates)
    return 0.0


def doubts_about(repeats: Sequence[Figure]) -> list[Note]:
    """Return the doubt about a figure of several runs, taken from the run with the median
    difference.

    Of two such runs, the one with the larger difference counts.
    """
    ordered = sorted(repeats, key=lambda figure: figure.said / figure.computed)
    typical = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    farthest = max(typical, key=_distance, default=None)
    if farthest and farthest.doubt:
        return [farthest.doubt]
    return []


def verify_tokens(said: Sequence[Figure], context: RunContext, *, is_assumed: bool = False) -> None:
    """Check the tokens/s that a program prints against those that follow from its steps.
    ``is_assumed``: the tokens of a step are the defaults of a folder, so that another convention
    explains nothing.

    Raises DataError (result_invalid) if they are of steps of another size.
    """
    for figure in said:
        is_far = _distance(figure) > math.log(_TOO_FAR_APART)
        if not (figure.says.startswith("tokens_per_s") and figure.differs and is_far):
            continue
        if is_assumed or not figure.explanations(context):
            step = context.spec.step
            raise DataError(
                f"expected the {figure.says} of the program to follow from its steps of"
                f" {plural(step.tokens, 'token')} a sample, got {format_number(figure.said)} by the"
                f" program, {format_number(figure.computed)} by the steps",
                kind="result_invalid",
                hint="its sequences are of another length, or its steps of other micro-batches",
            )


def _distance(figure: Figure) -> float:
    """Return how far apart the two numbers of a figure are, as the logarithm of a ratio."""
    if figure.said > 0:
        return abs(math.log(figure.said / figure.computed))
    return math.inf


def _operations(transformer: Transformer, tokens: int, conventions: Mapping[str, float]) -> float:
    """Return the operations of training on one token, by the program's ``conventions`` (values by
    kind).
    """
    whole = transformer.flops_per_token(tokens)
    attention = 2 * (whole - transformer.flops_per_token(tokens, causal=True))
    left_out = attention * (1 - conventions.get("attention", 1.0))
    operations: float = whole - left_out
    if "recomputation" in conventions:
        # The forward pass is a third of all: so is its attention.
        operations += transformer.hardware_flops_per_token(tokens, "full") - whole - left_out / 3
    if "parameters" in conventions:
        operations += 6 * (transformer.parameters - transformer.matmul_parameters)
    return operations


def _peaks(device: Device, dtype: str) -> list[Convention]:
    """Return other peaks than a device's own for a dtype: its further peaks and all other devices',
    equal ones together.
    """
    own = device.peak(dtype)
    if not own:
        return []
    peaks = [(2 * own, f"{device.name} with sparsity")]
    peaks += [(device.peak(other) or own, f"{device.name} for {other}") for other in _DTYPES]
    if dtype in ("tf32", "fp32", "fp8"):
        peaks += [
            (row.half, f"{row.name} for bf16") for row in DIVISORS if row.name == "A100"
        ]  # nanoGPT's, whatever runs
    # The peak of 16-bit floats is also taken from a device that has none for bf16.
    peaks += [(row.peak("fp16" if dtype == "bf16" else dtype) or own, row.name) for row in DIVISORS]
    names = group_pairs(peaks)
    del names[own]
    return [
        Convention("peak", f"the peak of {' or '.join(of)} ({peak / 1e12:g} TFLOP/s)", peak)
        for peak, of in names.items()
    ]


def _scales(spec: RunSpec, says: str) -> list[Convention]:
    """Return of what other part of a run the tokens may be, equal parts together."""
    world, copy = spec.world_size, spec.step.model_ranks
    if says == "tokens_per_s":
        parts = [
            (1 / world, "a device"),
            (spec.gpus / world, "a node"),
            (copy / world, "a copy of the model"),
        ]
    else:
        parts = [(world, "the whole run"), (spec.gpus, "a node"), (copy, "a copy of the model")]
    names: dict[float, list[str]] = {}
    for factor, name in parts:
        if not (name == "a node" and spec.gpus == 1 or name == "a copy of the model" and copy == 1):
            names.setdefault(factor, []).append(name)
    conventions = [
        Convention("scale", f"the tokens of {' or '.join(of)}", factor)
        for factor, of in names.items()
    ]
    twice = []
    if says != "tokens_per_s":
        twice = [
            Convention("scale", "the tokens of a device, divided by all devices again", 1 / world)
        ]
    return conventions + twice

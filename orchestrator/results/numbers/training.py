"""Verify that the steps of a window trained: steps that changed nothing, or computed NaN, have no
speed.

>>> log = [StepSample(step, step_time_s=0.5, loss=2.0 / step, skipped=float(step == 3)) for step in range(1, 9)]
>>> print(verify_training(log, Terms(warmup_steps=2, steps=8, global_batch=64))[0].split('; ')[1])
a larger batch size, a lower loss scale or more --warmup-steps may help
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from orchestrator.errors import DataError
from orchestrator.logs import StepSample
from orchestrator.notes import Note
from orchestrator.results.numbers.notes import (
    GRADIENTS_NOT_FINITE,
    LOSS_CONSTANT,
    LOSS_NOT_FINITE,
    STEPS_SKIPPED,
)
from orchestrator.results.numbers.throughput import Terms

_HINT = "lower the learning rate, or use a wider dtype; arithmetic with NaN may be faster or slower"
_LEAST_LOSSES = 2
"""A single loss does not show on which lines a program prints it."""
_LEAST_LINES = 4
"""Fewer lines with the same loss may agree because the program rounds it."""


def verify_training(samples: Sequence[StepSample], terms: Terms) -> list[Note]:
    """Return a note for each sign in the lines of the window that the steps did not train. A log
    without losses has none.

    Raises DataError (result_invalid) if it is certain: the loss is not finite in the last step,
    which no later step repairs, or the optimizer skipped every step.
    """
    window = [sample for sample in samples if terms.warmup_steps < sample.step <= terms.steps]
    _verify_losses([sample for sample in samples if sample.step <= terms.steps])
    skipped = _note_skipped_steps(window, terms.steps - terms.warmup_steps)
    losses = _losses(window, "in every step of the window")
    if all(sample.loss is None for sample in window):
        # Some programs print a loss only at the end of an epoch, over all its steps.
        later = [sample for sample in samples if sample.step > terms.steps]
        after = [sample for sample in later if sample.loss is not None][:1]
        losses = _losses(after, "in the first line with a loss after the window")
    return [*skipped, *losses, *_norms(window)]


def _verify_losses(lines: Sequence[StepSample]) -> None:
    """Check that a loss is printed up to the end: some programs leave one out that is no number."""
    without = [sample.loss is None for sample in lines]
    if without.count(False) < _LEAST_LOSSES or not without[-1]:
        return
    gaps = [len(list(group)) for is_without, group in groupby(without) if is_without]
    last = gaps.pop()
    # A program may print it on some lines only.
    if last > max(gaps, default=0):
        raise DataError(
            f"expected a loss up to step {lines[-1].step}, got none from step {lines[-last].step} on: "
            "the program may leave out one that is no number",
            kind="result_invalid",
            hint=_HINT,
        )


def _norms(window: Sequence[StepSample]) -> list[Note]:
    lines = [sample for sample in window if sample.grad_norm is not None]
    spoilt = [
        sample.step
        for sample in lines
        if sample.grad_norm is not None and not math.isfinite(sample.grad_norm)
    ]
    if not spoilt:
        return []
    # A step that the loss scaler skipped after an overflow changes nothing.
    if spoilt[-1] == lines[-1].step and not lines[-1].skipped:
        finite = [sample.step for sample in lines if sample.step not in spoilt]
        since = next(step for step in spoilt if not finite or step > finite[-1])
        raise DataError(
            f"expected finite gradients, got a norm of {lines[-1].grad_norm:g} from step {since} on: "
            "the program computed without training",
            kind="result_invalid",
            hint=_HINT,
        )
    return [GRADIENTS_NOT_FINITE(spoilt=len(spoilt), lines=len(lines))]


def _losses(window: Sequence[StepSample], everywhere: str) -> list[Note]:
    """Return a note on the losses of lines; ``everywhere`` says where none of them is finite."""
    lines = [(sample.step, sample.loss) for sample in window if sample.loss is not None]
    finite = [step for step, loss in lines if math.isfinite(loss)]
    if lines and not math.isfinite(lines[-1][1]):
        since = next(step for step, _ in lines if not finite or step > finite[-1])
        spoilt = f"from step {since} on" if finite else everywhere
        raise DataError(
            f"expected a finite loss, got {lines[-1][1]:g} {spoilt}: the program computed without training",
            kind="result_invalid",
            hint=_HINT,
        )
    if len(finite) < len(lines):
        return [LOSS_NOT_FINITE(spoilt=len(lines) - len(finite), lines=len(lines))]
    if len(lines) >= _LEAST_LINES and len({loss for _, loss in lines}) == 1:
        return [LOSS_CONSTANT(loss=lines[0][1], lines=len(lines))]
    return []


def _note_skipped_steps(window: Sequence[StepSample], steps: int) -> list[Note]:
    skipped = math.fsum(sample.skipped for sample in window if sample.skipped)
    if skipped >= steps:
        raise DataError(
            f"expected steps that train, the optimizer skipped all {steps} steps of the window after an overflow",
            kind="result_invalid",
            hint="take a larger batch size, lower the initial loss scale, or let more --warmup-steps find the right one",
        )
    if not skipped:
        return []
    return [STEPS_SKIPPED(skipped=skipped, steps=steps)]

"""The lines of a log that make up the window of a run, and the errors if they do not.

The window is the steps ``warmup_steps + 1 … steps``. A missing line is an error; the window never
shrinks.

>>> log = [StepSample(step) for step in range(10, 201, 10)]
>>> [line.step for line in window_lines(log, warmup_steps=170, steps=200)]
[180, 190, 200]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from orchestrator.errors import DataError
from orchestrator.logs import StepSample
from orchestrator.results.numbers.repeated_steps import verify_once

_ENOUGH = 3
"""Fewer lines do not show how far apart a program prints them."""


def window_lines(samples: Sequence[StepSample], warmup_steps: int, steps: int) -> list[StepSample]:
    """Return the lines of the window. They end with the last step and are equally spaced, by 1 or
    more steps.

    Raises DataError: log_unmatched if the program prints other steps than the window's,
    result_invalid if a line of the window is missing, in disorder or there twice.
    """
    numbers = [sample.step for sample in samples]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        verify_once(samples, warmup_steps, steps)
    window = [sample for sample in samples if warmup_steps < sample.step <= steps]
    span = f"steps {warmup_steps + 1}…{steps}"
    if not window:
        last = f"the last is {numbers[-1]}" if numbers else "the log has none at all"
        raise _unmatched_error(
            f"expected lines for {span}, found 0; {last}",
            _counted_otherwise(samples, warmup_steps, steps),
        )
    edges = [sample.step for sample in window]
    if warmup_steps in numbers or warmup_steps == 0:
        edges.insert(0, warmup_steps)
    if len(edges) == 1 and steps - warmup_steps > 1:
        raise _unmatched_error(
            f"expected a line for step {warmup_steps} or several for {span}, got one line: its time has no start",
            "set --warmup-steps to a step that is printed",
        )
    stride = min((later - earlier for earlier, later in pairwise(edges)), default=1)
    _check_ends(edges, warmup_steps, steps)
    expected = range(warmup_steps + stride, steps + 1, stride)
    missing = sorted(set(expected) - set(edges))
    if missing or window[-1].step != steps or len(window) != len(expected):
        detail = f"; the first missing is step {missing[0]}" if missing else ""
        message = f"expected {len(expected)} lines for {span}, found {len(window)}, the last for step {window[-1].step}{detail}"
        hint = _counted_otherwise(samples, warmup_steps, steps)
        if hint:
            raise _unmatched_error(message, hint)
        raise DataError(message, kind="result_invalid", hint="the log is incomplete")
    return window


def _check_ends(printed: Sequence[int], warmup_steps: int, steps: int) -> None:
    """Raise DataError if a program that prints every so many steps prints neither the first nor the
    last of the window.
    """
    strides = {later - earlier for earlier, later in pairwise(printed)}
    if len(printed) < _ENOUGH or len(strides) != 1 or strides == {1}:
        return
    (stride,) = strides
    rest = f"the log has one every {stride} steps, from {printed[0]} to {printed[-1]}"
    if over := (steps - printed[-1]) % stride:
        message = f"expected a line for step {steps}, the last of the window; {rest}"
        raise _unmatched_error(message, f"use --steps {steps - over} or {steps - over + stride}")
    if over := (warmup_steps - printed[0]) % stride:
        message = f"expected a line for step {warmup_steps}, after which the window begins; {rest}"
        raise _unmatched_error(message, f"use --warmup-steps {warmup_steps - over + stride}")


def _counted_otherwise(samples: Sequence[StepSample], warmup_steps: int, steps: int) -> str:
    """Return advice for the log grammar if the program counts all its steps, but not from 1.

    Else an empty text.
    """
    if not samples or len(samples) != samples[-1].step - samples[0].step + 1:
        return ""
    zero, last = samples[0], samples[-1].step
    # Many programs print a line before their first step, for its time: without a rate, and of no
    # samples in no time.
    is_step = zero.step == 0 and any(
        (zero.step_time_s, zero.samples_per_s, zero.tokens_per_s, zero.steps_per_s, zero.samples)
    )
    if is_step and last == steps - 1:
        return "its first step is 0: write counts_from: 0 under log:"
    if (zero.step, last) == (1, steps - warmup_steps):
        return (
            "it has as many steps as the window: if the program does not count its warm-up, "
            "write after_warmup: true under log:"
        )
    return ""


def _unmatched_error(message: str, hint: str) -> DataError:
    return DataError(message, kind="log_unmatched", hint=hint)

"""Refuse steps that a log has twice: neither line has the time of the whole step.

>>> log = [StepSample(1, step_time_s=0.5), StepSample(2, step_time_s=0.7), StepSample(2, step_time_s=0.5)]
>>> verify_once(log, warmup_steps=0, steps=2)  # doctest: +ELLIPSIS
Traceback (most recent call last):
orchestrator.errors.DataError: expected one line for step 2, got one with step_time_s 0.7 and one with step_time_s 0.5...
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from orchestrator.errors import DataError
from orchestrator.logs import StepSample
from orchestrator.logs.steps import VALUES


def verify_once(samples: Sequence[StepSample], warmup_steps: int, steps: int) -> None:
    """Check that the step before the window and each step in it have one line, in order; earlier
    steps may repeat.

    Raises DataError result_invalid.
    """
    pairs = list(pairwise(sample for sample in samples if warmup_steps <= sample.step <= steps))
    if any(later.step < earlier.step for earlier, later in pairs):
        raise DataError(
            "expected each step once and in order, got steps that go back", kind="result_invalid"
        )
    again = [pair for pair in pairs if pair[0].step == pair[1].step]
    if not again:
        return
    got = " and ".join(f"one with {_values(line)}" for line in again[0])
    others = f"; {len(again) - 1} more lines are for a step that has one" if len(again) > 1 else ""
    raise DataError(
        f"expected one line for step {again[0][0].step}, got {got}{others}",
        kind="result_invalid",
        hint="if several ranks print to one log, write scope: process under log:; if a step has several lines, let the pattern "
        "match one of them",
    )


def _values(line: StepSample) -> str:
    """Return the values of a line as text; a clock has all its digits."""
    values = ((name, getattr(line, name)) for name in VALUES)
    return (
        ", ".join(f"{name} {value:.12g}" for name, value in values if value is not None)
        or "no value"
    )

"""Step times of printed steps alone: a slow one stands for itself, and not for the steps that are
not printed.

A program that prints the time of every tenth step, and evaluates or saves only in steps that it
prints, would otherwise seem to pause ten times as long.

>>> log = [StepSample(step, step_time_s=5.5 if step == 60 else 1.0) for step in range(10, 101, 10)]
>>> samples, notes = pauses_once(log, Terms(warmup_steps=10, steps=100, global_batch=8))
>>> samples[5].step_time_s
1.45
>>> notes
['1 of 9 printed steps took 5.5 times as long as the median: it counts for itself, not for the 10 steps of its line']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.logs import StepSample
from orchestrator.notes import Note
from orchestrator.results.numbers.notes import SLOW_PRINTED_STEPS
from orchestrator.results.numbers.steadiness import slow_steps
from orchestrator.results.numbers.throughput import Terms, median


def pauses_once(
    samples: Sequence[StepSample], terms: Terms
) -> tuple[Sequence[StepSample], list[Note]]:
    """Return the samples of a window that prints only some steps, and a note if any is slow.

    The time that a slow step takes beyond the usual counts once, not for each unprinted step.
    """
    lines = [sample for sample in samples if terms.warmup_steps < sample.step <= terms.steps]
    times = [sample.step_time_s for sample in lines if sample.step_time_s is not None]
    if len(lines) < 2 or len(times) < len(lines):
        return samples, []
    stride = lines[-1].step - lines[-2].step
    slow = slow_steps(times)
    if stride < 2 or not slow:
        return samples, []
    usual = median([time for place, time in enumerate(times) if place not in slow])
    once = {lines[place].step: usual + (times[place] - usual) / stride for place in slow}
    corrected = [
        replace(sample, step_time_s=once[sample.step]) if sample.step in once else sample
        for sample in samples
    ]
    longer = median([times[place] for place in slow]) / usual
    they, their = (
        ("it counts for itself", "its")
        if len(slow) == 1
        else ("they count for themselves", "their")
    )
    counts = {"count": len(slow), "lines": len(lines), "stride": stride}
    return corrected, [SLOW_PRINTED_STEPS(longer=longer, they=they, their=their, **counts)]

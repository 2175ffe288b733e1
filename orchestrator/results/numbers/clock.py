"""Check the times in a log against an independent clock: when its lines arrived, and how long the
program ran.

A log in milliseconds that is read as seconds, or steps per second that are the sum over all nodes,
look like any other number.

>>> from orchestrator.results.numbers.throughput import Terms, throughput, window_of
>>> log = [StepSample(step, step_time_s=250.0) for step in range(1, 41)]
>>> arrivals = [(100.0 + second, 4 * second) for second in range(1, 10)]
>>> terms = Terms(4, 40, 64)
>>> verify_clock(log, throughput(log, terms), window_of(log, terms), Clock(arrivals), Sizes(1, 1))
Traceback (most recent call last):
orchestrator.errors.DataError: expected times that agree with the clock, got 8000.0 s for steps 5…36, whose lines arrived \
within 8.0 s. if step_time_s is in ms, write units: {step_time_s: ms} under log:
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.errors import DataError
from orchestrator.logs import UNITS, StepSample
from orchestrator.notes import Note
from orchestrator.results.numbers.notes import AGAINST_CLOCK
from orchestrator.results.numbers.throughput import Stretch, Throughput, median

POLL_S = 1.1
"""A node looks at its logs this often; a line arrived at most so long before it was seen."""
_APART, _CONTRADICTION = 0.1, 1.5
_HALF_HOUR_S, _JITTER_S = 1800.0, 2.0
_ENOUGH = 5
_LIKE = 1.3
"""A factor that is off by less than this is one of the known mistakes."""
_KINDS = ("timestamp", "elapsed_s", "step_time_s", "steps_per_s", "samples_per_s", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class Clock:
    """Readings of a node's own clock.

    ``arrivals``: (seconds, last step in the log then), in order, each less than `POLL_S` after
    lines had come; ``life_s``: how long the program ran, start-up included.
    """

    arrivals: Sequence[tuple[float, int]] = ()
    life_s: float | None = None


class Sizes(NamedTuple):
    """Nodes and ranks of a run."""

    nodes: int
    ranks: int


def verify_clock(
    samples: Sequence[StepSample],
    measured: Throughput,
    intervals: Sequence[Stretch],
    clock: Clock,
    sizes: Sizes,
    resolution_s: float = 0.0,
) -> list[Note]:
    """Return a note if the times of the window differ from the clock by a tenth or more, beyond the
    clock's precision.

    ``measured`` and ``intervals`` are the results of `throughput` and `window_of` for the samples,
    ``resolution_s`` is that of the window's time as its lines print it.

    Raises DataError (result_invalid) for a window that is longer than the run, and for times that
    are off by half or more. If the factor is a known mistake, it says what to write in the log
    grammar.
    """
    window = [
        sample for sample in samples if measured.first_step <= sample.step <= measured.last_step
    ]
    notes = _compare_arrivals(window, measured, intervals, clock.arrivals, sizes)
    whole_s = measured.seconds
    if clock.life_s is not None and whole_s > (1 + _APART) * clock.life_s + resolution_s:
        # The run is longer than its window by an unknown time: of the known mistakes the smallest
        # that explains it.
        least = whole_s / clock.life_s / (1 + _APART)
        hint = next(
            (words for factor, words in sorted(_mistakes(window, sizes)) if factor >= least), ""
        )
        raise _refusal(f"{whole_s:.1f} s for the window of a run of {clock.life_s:.1f} s", hint)
    return notes


def verify_no_jump(intervals: Sequence[Stretch]) -> None:
    """Check that no line took whole half hours longer than the others: the clock of the log was
    set, as at the end of summer.

    Raises DataError (result_invalid).
    """
    if len(intervals) < _ENOUGH:
        return
    usual = median([part.seconds / part.steps for part in intervals])
    for part in intervals:
        longer = part.seconds - usual * part.steps
        jumps = round(longer / _HALF_HOUR_S)
        if jumps >= 1 and abs(longer - jumps * _HALF_HOUR_S) <= _JITTER_S + usual * part.steps:
            raise DataError(
                f"expected a clock that nobody sets, got a jump of {longer / 3600:.3g} h at step {part.last}, where a step "
                f"usually takes {usual:.3g} s",
                kind="result_invalid",
                hint="daylight saving time ended or began in the window, or the clock was set; read another time of the lines",
            )


def verify_means(samples: Sequence[StepSample], intervals: Sequence[Stretch]) -> None:
    """Check that the means of step times since the first step, if a log has them, grow as the times
    of the steps do; of steps that are all printed, since others may take longer.

    Raises DataError (result_invalid).

    >>> log = [StepSample(step, step_time_s=0.2, mean_time_s=0.4) for step in range(1, 11)]
    >>> verify_means(log, [Stretch(step, 1, 0.2) for step in range(5, 11)])
    Traceback (most recent call last):
    orchestrator.errors.DataError: expected means that follow from the times of the steps, got 2.4 s for steps 5…10 by the \
means, 1.2 s by the steps
    """
    counted = 1 - min((sample.step for sample in samples), default=1)
    totals = {
        sample.step: (sample.step + max(0, counted)) * sample.mean_time_s
        for sample in samples
        if sample.mean_time_s is not None
    }
    if not intervals or any(part.steps != 1 for part in intervals):
        return
    first, last = intervals[0].last, intervals[-1].last
    if last not in totals or first > 1 and first - 1 not in totals:
        return
    by_means = totals[last] - totals.get(first - 1, 0.0)
    by_steps = math.fsum(part.seconds for part in intervals)
    if abs(by_means - by_steps) > _APART * max(by_means, by_steps):
        raise DataError(
            f"expected means that follow from the times of the steps, got {by_means:.4g} s for"
            f" steps {first}…{last} by the means, {by_steps:.4g} s by the steps",
            kind="result_invalid",
        )


def _compare_arrivals(
    window: Sequence[StepSample],
    measured: Throughput,
    intervals: Sequence[Stretch],
    arrivals: Sequence[tuple[float, int]],
    sizes: Sizes,
) -> list[Note]:
    inside = [
        (seconds, step)
        for seconds, step in arrivals
        if measured.first_step - 1 <= step <= measured.last_step
    ]
    if len(inside) < 2:
        return []
    (began, first), (ended, last) = inside[0], inside[-1]
    seconds = ended - began
    logged = math.fsum(part.seconds for part in intervals if first < part.last <= last)
    steps = sum(part.steps for part in intervals if first < part.last <= last)
    if seconds <= 0 or not steps:
        return []
    # The first and the last line may each have come a poll and a step before they were seen.
    unknown_s = 2 * POLL_S + 2 * max(seconds, logged) / steps
    if abs(logged - seconds) <= unknown_s + _APART * max(logged, seconds):
        return []
    words = (
        f"{logged:.1f} s for steps {first + 1}…{last}, whose lines arrived within {seconds:.1f} s"
    )
    factor = logged / seconds
    if 1 / _CONTRADICTION < factor < _CONTRADICTION:
        return [AGAINST_CLOCK(times=words)]
    near, hint = min(
        _mistakes(window, sizes), key=lambda mistake: abs(math.log(mistake[0] / factor))
    )
    raise _refusal(words, hint if 1 / _LIKE < near / factor < _LIKE else "")


def _refusal(words: str, grammar: str) -> DataError:
    hint = "see units, scope and summed_over of the log grammar in docs/programs.md"
    if grammar:
        hint = f"if {grammar} under log:"
    return DataError(
        f"expected times that agree with the clock, got {words}",
        # A mistake of the log grammar: its correction gives the number, without another run.
        kind="log_unmatched" if grammar else "result_invalid",
        hint=hint,
    )


def _mistakes(window: Sequence[StepSample], sizes: Sizes) -> Iterator[tuple[float, str]]:
    """Yield by what factor times become too long through a mistake about unit or scope of the value
    that they come from, and how to correct it."""
    value = next(
        (name for name in _KINDS if all(getattr(line, name) is not None for line in window)),
        "step_time_s",
    )
    for unit, seconds in UNITS.items():
        if seconds != 1:
            words = (
                f"{value} is per {unit}" if value.endswith("_per_s") else f"{value} is in {unit}"
            )
            yield 1 / seconds, f"{words}, write units: {{{value}: {unit}}}"
    for group, size, scope in (("nodes", sizes.nodes, "node"), ("ranks", sizes.ranks, "process")):
        if value.endswith("_per_s") and size > 1:
            yield (
                1 / size,
                f"{value} is the sum over all {group}, write summed_over: {{{value}: {group}}}",
            )
        if value in ("samples_per_s", "tokens_per_s") and size > 1:
            yield float(size), f"{value} is of one {scope}, write scope: {scope}"

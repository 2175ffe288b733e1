"""How often runs fail, by how many were made: the exact interval of a failure rate, and a bound of
the time between failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from orchestrator.errors import DataError
from orchestrator.plan.option_values import shortest
from orchestrator.record import BenchDir
from orchestrator.record.node_record import exit_record
from orchestrator.results import RunResult

_LEAST_RUNS = 10
"""Of fewer runs the interval says nothing: 5 without a failure allow a rate of 52 %."""
_STEPS = 60


def describe_failures(bench: BenchDir, results: Sequence[RunResult]) -> str:
    """Return how often runs of a bench may fail, in words; empty for few runs.

    Their time is that of the node that took longest, from its start to its end.
    """
    ended = [run for run in results if run.is_good or run.has_failed]
    if len(ended) < _LEAST_RUNS:
        return ""
    failed = sum(run.has_failed for run in ended)
    low, high = failure_rate(failed, len(ended))
    words = f"{failed} of {len(ended)} failed, a rate of {low:.1%} to {high:.1%} (95 %)"
    total_s = sum(_seconds(bench, run) for run in ended)
    if total_s > 0:
        between = shortest(round(least_time_between(failed, total_s)))
        words += f"; {shortest(round(total_s))} of runs, at most one failure in {between} (95 %)"
    return words


def failure_rate(failed: int, runs: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a failure rate by so many failures of independent runs.

    Source: C. J. Clopper, E. S. Pearson, "The use of confidence or fiducial limits illustrated in
    the case of the binomial", 1934.
    """
    tail = (1 - level) / 2
    low, high = 0.0, 1.0
    if failed > 0:
        low = _root(lambda rate: 1 - _at_most(failed - 1, runs, rate) < tail)
    if failed < runs:
        high = _root(lambda rate: _at_most(failed, runs, rate) > tail)
    return low, high


def least_time_between(failed: int, seconds: float, level: float = 0.95) -> float:
    """Return the lower bound of the mean time between failures, in seconds, one-sided.

    Failures come as a Poisson process, ``failed`` in ``seconds``: the bound is the time at which as
    few or fewer have the probability 1 - ``level``. Source: F. Garwood, "Fiducial limits for the
    Poisson distribution", 1936.
    """
    most = failed + 10 * math.sqrt(failed + 1) + 10
    expected = most * _root(lambda part: _poisson_at_most(failed, part * most) > 1 - level)
    return seconds / expected


def _root(is_below: Callable[[float], bool]) -> float:
    """Return where, between 0 and 1, a condition that holds at first no longer holds."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(failed: int, runs: int, rate: float) -> float:
    """Return the probability of so many failures or fewer, at a rate above 0 and below 1."""
    of_runs = math.lgamma(runs + 1)
    logs = (
        of_runs
        - math.lgamma(count + 1)
        - math.lgamma(runs - count + 1)
        + count * math.log(rate)
        + (runs - count) * math.log1p(-rate)
        for count in range(failed + 1)
    )
    return math.fsum(map(math.exp, logs))


def _poisson_at_most(failed: int, expected: float) -> float:
    logs = (
        count * math.log(expected) - expected - math.lgamma(count + 1)
        for count in range(failed + 1)
    )
    return math.fsum(map(math.exp, logs))


def _seconds(bench: BenchDir, run: RunResult) -> float:
    """Return how long a run took on the node where it took longest; 0 if no node tells."""
    times = [0.0]
    folder = bench.run(run.run_id)
    for host in run.facts:
        with suppress(DataError):
            record = exit_record(folder, host)
            if record and record.took_s is not None:
                times.append(record.took_s)
    return max(times)

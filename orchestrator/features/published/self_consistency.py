"""Check that a log agrees with itself and with the size of its run; a log that does not gives no
number, or one with a warning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from orchestrator.features.published.lines import Line, lines_of, log_error
from orchestrator.features.published.notes import CLOCK_AGAINST_LOG
from orchestrator.features.published.run_size import Case
from orchestrator.notes import Note
from orchestrator.results.numbers.throughput import APART

_HEADER_BYTES = 1 << 20
"""A program says the size of its run at the beginning of its log."""
_TOO_FAR_APART = 2.0
"""Two measures of one window that differ by this factor give no number."""
_WORDS = {"samples_per_s": "rates", "step_time_s": "step times"}


def check_sizes(log: bytes, patterns: Sequence[re.Pattern[bytes]], case: Case) -> None:
    """Compare what the first MiB of a log says of the size of its run with the size. Raise
    DataError (result_invalid).
    """
    sizes = {
        "nodes": case.nodes,
        "gpus": case.gpus,
        "world_size": case.ranks,
        "batch_size": case.batch_size,
        "global_batch": case.global_batch,
    }
    for line in lines_of(log[:_HEADER_BYTES], patterns):
        for name in line.groups():
            said = line.whole(name)
            if said != sizes[name]:
                raise log_error(f"expected {name} {sizes[name]}", f"the log says {said}")


def check_epochs(lines: Sequence[Line], case: Case) -> None:
    """Check that all lines say the same number of steps in an epoch, and that it fits the data set,
    if its size is known.
    """
    lengths = sorted(
        {length for line in lines if (length := line.whole("epoch_steps")) is not None}
    )
    if len(lengths) > 1:
        raise log_error(
            "expected one epoch length",
            f"found {', '.join(map(str, lengths))}: several runs in one file",
        )
    if lengths and case.images:
        check_epoch_length(lengths[0], case)


def check_epoch_length(iterations: int, case: Case) -> None:
    """Check the iterations of an epoch against data set and ranks. Raise DataError (result_invalid)
    with the implied ranks.

    A loader either drops the last, smaller batch or keeps it. ``case.images`` must be above 0.
    """

    def full(ranks: int) -> int:
        return case.images // (ranks * case.batch_size)

    if full(case.ranks) <= iterations <= full(case.ranks) + 1:
        return
    ranks = max(1, round(case.images / (max(1, iterations) * case.batch_size)))
    fits = full(ranks) <= iterations <= full(ranks) + 1
    raise log_error(
        f"expected {full(case.ranks)} iterations in an epoch of {case.images} images, {case}",
        f"the log has {iterations}, which implies {f'{ranks} ranks, not {case.ranks}' if fits else 'a different data set'}",
        hint="some of the nodes ran on their own, or the data set is a different one (--images)",
    )


def contradiction(
    samples: int, by_clock_s: float, otherwise_s: float, group: str
) -> tuple[Note, ...]:
    """Return a warning if the clock of a log and its other times, of a ``group``, differ over the
    ``samples`` of the window.

    Raise DataError (result_invalid) if one is twice the other: a clock was set, or lines of
    different runs are in the log.
    """
    name = _WORDS[group]
    if (
        not by_clock_s > 0
        or 1 / (1 + APART) < otherwise_s / by_clock_s < 1 + APART
        or math.isnan(otherwise_s)
    ):
        return ()
    if not 1 / _TOO_FAR_APART < otherwise_s / by_clock_s < _TOO_FAR_APART:
        raise log_error(
            f"expected a clock that agrees with the {name} of the same lines",
            f"found {by_clock_s:g} s by the clock, {otherwise_s:g} s by the {name}",
            hint="the clock of the machine was set in the window, or the log holds lines of several runs",
        )
    speed, by_clock = f"{samples / otherwise_s:.2f}", f"{samples / by_clock_s:.2f}"
    return (CLOCK_AGAINST_LOG(speed=speed, name=name, by_clock=by_clock),)

"""Select the lines of a log that a published rule counts: of certain steps, certain ones in the
order of the log, or a total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.features.published.lines import (
    Line,
    Moment,
    describe_steps,
    last_attempt,
    log_error,
    with_steps,
)
from orchestrator.features.published.notes import (
    FIRST_OF_SEVERAL,
    LINES_MISSING,
    TOTAL_OF_OTHER_STEPS,
    TOTALS_OF_RANKS,
    UNNAMED_PROCESSES,
)
from orchestrator.grouping import group_pairs
from orchestrator.logs import count_runs
from orchestrator.notes import Note
from orchestrator.results import mean

_SAME_TOTAL = 1.01
"""Ranks that print the total of one run print the same one, up to rounding."""
_HALF_A_DAY = 43200


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a rule, with the fields of ``window:`` in a ``framework.yaml``.

    >>> Window(after=100, last=600, every=100).steps, Window(first=2, last=10, steps_per_line=50).steps
    ((101, 600), (51, 500))
    >>> Window(steps_above=5, skip_lines=20, take_lines=100).steps
    (6, 120)
    """

    after: int | None = None
    first: int | None = None
    last: int | None = None
    every: int | None = None
    steps_per_line: int = 1
    steps_above: int | None = None
    skip_lines: int | None = None
    take_lines: int | None = None
    total: bool = False

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last line that is needed, as the lines are numbered."""
        start = self.after if self.after is not None else self.first
        assert start is not None and self.last is not None, "a window of steps has both ends"
        return start, self.last

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step that counts. Lines that are counted in their order stand for
        one step each.
        """
        if self.take_lines is not None:
            return (self.steps_above or 0) + 1, (self.skip_lines or 0) + self.take_lines
        start, last = self.ends
        before = start if self.after is not None else start - 1
        return before * self.steps_per_line + 1, last * self.steps_per_line

    @property
    def length(self) -> int:
        """The number of steps that count."""
        first, last = self.steps
        return last - first + 1

    def counts(self, number: int) -> bool:
        """Return True for the number of a line that lies in the window."""
        start, last = self.ends
        return (start < number if self.after is not None else start <= number) and number <= last

    def list_lines(self, *, only_ends: bool) -> Sequence[int]:
        """Return the numbers of the lines that are needed; ``only_ends``: unless ``every`` is set,
        those at the two ends.
        """
        start, last = self.ends
        if only_ends and self.every is None:
            return (start, last)
        return range(start, last + 1, self.every or 1)


def steps_of(
    lines: Sequence[Line],
    group: str,
    window: Window,
    need: Sequence[int],
    called: str,
    printers: int | None,
    least: Sequence[int] | None = None,
) -> tuple[dict[int, tuple[Line, ...]], tuple[Note, ...]]:
    """Return the lines of the last complete attempt by step: of ``printers`` processes, or if None,
    the first of each.

    Only the first epoch in the log counts, and only lines with ``group``, unless that is empty.
    ``called`` is the program's word for steps. Raise DataError (result_invalid) if a step of
    ``need`` is missing, with the number of steps present; with
    ``least``, only these must be there, and others that are missing are a warning.
    """
    items = with_steps(lines)
    epochs = [line.whole("epoch") for _, line in items]
    first = min((epoch for epoch in epochs if epoch is not None), default=None)
    items = [item for item, epoch in zip(items, epochs, strict=True) if epoch in (None, first)]
    items = [item for item in items if not group or item[1].raw(group) is not None]
    # Ranks that train together are at most one step apart.
    attempt, warnings = last_attempt(items, slack=0 if printers is None else 1, last=need[-1])
    by_step = group_pairs(attempt)
    missing = [step for step in need if step not in by_step]
    if missing and not set(least or missing) & set(missing):
        warnings += (LINES_MISSING(missing=len(missing), needed=len(need), first=missing[0]),)
    elif missing:
        got = f"found {len(need) - len(missing)} of {len(need)}, without {missing[0]}; {describe_steps(list(by_step))}"
        raise log_error(f"expected lines of {called} {_describe_steps(need)}", got)
    for step in need:
        for line in by_step.get(step, ()):
            begin = line.whole("first_step")
            if begin is not None and step - begin != window.every:
                raise log_error(
                    f"expected lines of {window.every} {called} each", f"one of {begin} to {step}"
                )
    if printers is None:
        most = max(len({line.match[0] for line in by_step.get(step, ())}) for step in need)
        warnings += (FIRST_OF_SEVERAL(count=most, called=called),) if most > 1 else ()
        return {step: (of_step[0],) for step, of_step in by_step.items()}, warnings
    counts = {len(by_step[step]) for step in need if step in by_step}
    if counts not in ({1}, {printers}):
        numbers = ", ".join(map(str, sorted(counts)))
        raise log_error(
            f"expected {called} {_describe_steps(need)} once, or from each of {printers} processes",
            f"found {numbers} lines of one",
        )
    if counts != {1}:
        warnings += (UNNAMED_PROCESSES(count=printers),)
    return {step: tuple(of_step) for step, of_step in by_step.items()}, warnings


def lines_in_order(
    lines: Sequence[Line], window: Window, called: str, printers: int, name: str
) -> Sequence[Line]:
    """Return the lines that count, in the order of the log. Raise DataError if there are too few, a
    step comes too often, or series of the same steps differ in the group ``name`` as those of
    several runs do.
    """
    above = window.steps_above
    kept = [line for line in lines if above is None or (line.whole("step") or 0) > above]
    counts = Counter(
        (line.whole("epoch"), step) for line in kept if (step := line.whole("step")) is not None
    )
    (_, step), most = max(counts.items(), key=lambda item: item[1], default=((None, 0), 0))
    if most > printers:
        raise log_error(
            f"expected lines of step {step} at most {printers} times, once from each process",
            f"found {most}: several runs in one file",
        )
    start = window.skip_lines or 0
    end = start + (window.take_lines or 0)
    if len(kept) < end:
        which = f" of {called} above {above}" if above is not None else ""
        raise log_error(f"expected {end} lines{which}", f"found {len(kept)}")
    _verify_series(with_steps(kept), called, name)
    return kept[start:end]


def _verify_series(items: Sequence[tuple[int, Line]], called: str, name: str) -> None:
    """Check that series of one epoch's steps, as several ranks print them, are equally fast."""
    items = [item for item in items if item[1].whole("epoch") == items[0][1].whole("epoch")]
    values = [line.optional(name) for _, line in items]
    runs = count_runs([step for step, _ in items], {name: values})
    if runs > 1:
        raise log_error(
            f"expected series of the same {called} that are equally fast, as of ranks of one run",
            f"found {runs} that are not: several runs in one file",
        )


def total_of(lines: Sequence[Line], printers: int, last: int) -> tuple[float, tuple[Note, ...]]:
    """Return the rate of the whole run, whose steps end with ``last`` or are noted. If each rank
    prints the rate of all ranks, one of them is taken.

    Ranks finish together: a total followed by steps belongs to an earlier run in the same log, and
    is refused.
    """
    totals = [total for line in lines if (total := line.optional("samples_per_s")) is not None]
    if not totals:
        raise log_error("expected a line with the total", "found none: the run did not finish")
    first = next(
        number for number, line in enumerate(lines) if line.raw("samples_per_s") is not None
    )
    if any(line.raw("step") is not None for line in lines[first:]):
        raise log_error(
            "expected the totals of one run at its end",
            "found steps after the first total: several runs",
        )
    if len(totals) > printers or max(totals) > min(totals) * _SAME_TOTAL:
        raise log_error(
            f"expected the same total from at most {printers} ranks",
            f"found {len(totals)} totals: several runs?",
        )
    notes = [TOTALS_OF_RANKS(count=len(totals))] if len(totals) > 1 else []
    steps = [step for line in lines if (step := line.whole("step")) is not None]
    if steps and max(steps) != last:
        notes.append(TOTAL_OF_OTHER_STEPS(steps=max(steps), usual=last))
    return totals[0], tuple(notes)


def between(starts: Sequence[float | Moment], ends: Sequence[float | Moment]) -> float:
    """Return the growth of a clock, or of the mean of the clocks of several processes. A clock
    without a date may pass midnight once.

    >>> between([2.5, 3.5], [8.0, 9.0]), between([(None, 86390.0)], [(None, 5.5)])
    (5.5, 15.5)
    """
    if all(isinstance(time, float) for time in (*starts, *ends)):
        return mean([time for time in ends if isinstance(time, float)]) - mean(
            [t for t in starts if isinstance(t, float)]
        )
    base = starts[0]
    return mean([_apart(base, time) for time in ends]) - mean(
        [_apart(base, time) for time in starts]
    )


def _apart(start: float | Moment, end: float | Moment) -> float:
    """Return the seconds between two readings of a clock, to the microsecond."""
    if isinstance(start, float) or isinstance(end, float) or (start[0] is None) != (end[0] is None):
        raise log_error("expected clocks of one form", "found another form in a later line")
    seconds = end[1] - start[1]
    if start[0] is not None and end[0] is not None:
        return round(seconds + 86400 * (end[0] - start[0]), 6)
    return round(seconds + (86400 if seconds < -_HALF_A_DAY else 0), 6)


def _describe_steps(need: Sequence[int]) -> str:
    """Return steps as text: a range, with the distance of its lines unless that is 1, or single
    steps.
    """
    if isinstance(need, range):
        return f"{need[0]}-{need[-1]}" + (f" every {need.step}" if need.step > 1 else "")
    return " and ".join(map(str, need))

"""The stop rule of a bench: after each block, decide from the intervals so far and the elapsed time
whether another block follows.

A block is one repeat of every cell, including cells whose interval is already narrow: a speedup is
computed from pairs within a block, and unequal numbers of repeats would qualify the numbers. Only a
cell that keeps failing is left out.

>>> schedule = Schedule(repeats=8, until_ci=0.01)
>>> decide(schedule, Width("speed of 1n1g", 0.013), blocks=8, used_s=60.0, block_s=7.0)
Decision(goes_on=True, reason='wide')
>>> decide(schedule, Width("speed of 1n1g", 0.009), blocks=9, used_s=67.0, block_s=7.0)
Decision(goes_on=False, reason='narrow')
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.plan import RunSpec, Schedule
from orchestrator.plan.bench import Bench
from orchestrator.plural import plural
from orchestrator.results import Interval, RunResult
from orchestrator.results.summary import summarize

_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Width:
    """The half-width of an interval as a fraction of its value, and the name of the value (``of``).
    ``has_others``: there are values of other metrics, whose intervals do not count."""

    of: str
    share: float
    has_others: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about another block.

    ``reason`` is planned, wide, narrow, most, budget, or failing if no cell is left.
    """

    goes_on: bool
    reason: str


def decide(
    schedule: Schedule, width: Width | None, *, blocks: int, used_s: float, block_s: float
) -> Decision:
    """Return the decision after ``blocks`` blocks. ``width`` is the widest interval, None if every
    cell is given up.
    """
    if schedule.until_ci is None or blocks < schedule.repeats:
        decision = Decision(blocks < schedule.repeats, "planned")
    elif width is None:
        decision = Decision(False, "failing")
    elif width.share <= schedule.until_ci:
        decision = Decision(False, "narrow")
    else:
        decision = Decision(
            blocks < schedule.max_repeats, "wide" if blocks < schedule.max_repeats else "most"
        )
    if not decision.goes_on or schedule.fits(used_s, block_s):
        return decision
    return Decision(False, "budget")


def widest(results: Sequence[RunResult]) -> Width | None:
    """Return the widest interval of the primary metric and its speedups, infinite for fewer than
    two repeats.

    Cells that are given up are ignored. Efficiencies need no check: they are as wide as
    speedups, relatively.
    """
    given_up_cells = find_hopeless_cells(results)
    summary = summarize([run for run in results if run.spec not in given_up_cells])
    widths = []
    rows = [row for row in summary.rows if row.primary]
    for row in rows:
        name = (
            row.shape
            if len({other.series for other in rows}) == 1
            else f"{row.shape}, {row.series}"
        )
        quantity = "speed" if row.step_s or row.value is None else row.metric
        widths.append(Width(f"{quantity} of {name}", _share(row.interval, row.value)))
        if row.speedup is not None and summary.baseline[row.series] is not row:
            widths.append(Width(f"speedup of {name}", _share(row.speedup_interval, row.speedup)))
    has_others = any(not (row.primary or row.is_derived) for row in summary.rows)
    return max(
        (replace(width, has_others=has_others) for width in widths),
        key=lambda width: width.share,
        default=None,
    )


def find_hopeless_cells(results: Sequence[RunResult]) -> list[RunSpec]:
    """Return the cells whose last three repeats have no number, so that another repeat is not
    expected to have one.
    """
    repeats: list[tuple[RunSpec, list[RunResult]]] = []
    for run in sorted(results, key=lambda run: run.repeat):
        if run.spec is None:
            continue
        cell_runs = next((runs for spec, runs in repeats if spec == run.spec), None)
        if cell_runs is None:
            repeats.append((run.spec, [run]))
        else:
            cell_runs.append(run)
    failing = []
    for spec, runs in repeats:
        if len(runs) >= _FAILURES and not any(run.is_good for run in runs[-_FAILURES:]):
            failing.append(spec)
    return failing


def schedule_words(schedule: Schedule, cells: int, block_s: float | None) -> str:
    """Return the plan as text; ``block_s`` is the expected time of a block in seconds, None if
    unknown.
    """
    fewest = schedule.repeats
    count = (
        plural(fewest, "repeat")
        if schedule.until_ci is None
        else f"{fewest} to {schedule.most} repeats"
    )
    words = [f"{plural(cells, 'cell')}, {count}"]
    if schedule.until_ci is not None:
        words.append(f"until every 95 % interval is within {schedule.aim}")
    if schedule.budget_s is not None:
        fits = ""
        if block_s:
            fits = f", enough for about {plural(int(schedule.budget_s / block_s), 'repeat')} by earlier runs"
        words.append(f"a budget of {schedule.budget_s:g} s{fits}")
    if schedule.order == "random":
        words.append(f"random order in blocks, seed {schedule.seed}")
    return "; ".join(words)


def plan_words(plan: Bench, expected: Sequence[tuple[RunSpec, float]]) -> str:
    """Return the plan of a bench as text; empty if it is not adaptive and has the default order.

    ``expected`` are cells with the seconds that a run of each is expected to take.
    """
    schedule = plan.schedule
    if not schedule.adapts and schedule.order != "random":
        return ""
    block_s = sum(took for _, took in expected) if len(expected) == len(plan.cells) else None
    return schedule_words(schedule, len(plan.cells), block_s)


def block_words(schedule: Schedule, width: Width | None, blocks: int, left_s: float | None) -> str:
    """Return the progress of an adaptive bench after ``blocks`` repeats as text."""
    words = [f"{blocks} of at most {schedule.most} repeats"]
    if width and math.isfinite(width.share):
        aim = f", aim {schedule.aim}" if schedule.until_ci is not None else ""
        words.append(f"widest 95 % interval ±{width.share:.2%}, {width.of}{aim}")
    if left_s is not None:
        words.append(f"{left_s:.0f} s of the budget left")
    return "; ".join(words)


def end_words(schedule: Schedule, reason: str, width: Width | None, blocks: int) -> str:
    """Return why an adaptive bench has ended as text; empty if it ended as planned."""
    if reason == "planned" or schedule.until_ci is None:
        return ""
    if width is not None and math.isfinite(width.share):
        shown = f"the widest is ±{width.share:.2%}, {width.of}"
    else:
        shown = "some cells have too few good repeats for an interval"
    shown += (
        "; intervals of other metrics are not considered"
        if width is not None and width.has_others
        else ""
    )
    return {
        "narrow": f"repeats were added until every 95 % interval was within {schedule.aim}: {blocks}; {shown}",
        "most": f"after {plural(blocks, 'repeat')}, the maximum, not every 95 % interval is within {schedule.aim}; {shown}",
        "budget": f"the budget ended before every 95 % interval was within {schedule.aim}; {shown}",
        "failing": "no further repeats: the last three of every cell failed",
    }[reason]


def left_out_words(schedule: Schedule, shapes: Sequence[str]) -> str:
    """Return a note on runs that were left out for lack of time; ``shapes`` has the shape of each
    of them.
    """
    if not shapes:
        return ""
    counts = ", ".join(f"{count} of {shape}" for shape, count in Counter(shapes).items())
    return f"left out for the budget of {schedule.budget_s:g} s: {plural(len(shapes), 'run')}, {counts}"


def _share(interval: Interval | None, middle: float | None) -> float:
    """Return the half-width of an interval as a share of the value; 0 if every repeat has the same
    value, even 0.
    """
    if interval is None or middle is None:
        return math.inf
    half = (interval.high - interval.low) / 2
    if middle:
        return half / abs(middle)
    if not half:
        return 0.0
    return math.inf

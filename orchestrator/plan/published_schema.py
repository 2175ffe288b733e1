"""The schema of ``published:`` in a ``framework.yaml``: the rules for reading published speeds from
logs.

A rule says which lines of a log count, what gives the time, how lines become the speed of a run,
and how that is rounded. What several keys of a rule must be together is in
`orchestrator.plan.published_faults`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from orchestrator.inventory.fields import (
    Pattern,
    Strict,
    Text,
    Truth,
    is_text,
    matches,
    takes,
    whole,
)
from orchestrator.inventory.values import KeyPath
from orchestrator.plan.schema_values import NAME, Unit

CLOCKS = ("timestamp", "elapsed_s")
"""Groups whose growth over the window is its time."""
RATES = ("step_time_s", "samples_per_s")
"""Groups that give a speed in each line."""
LINE_GROUPS = ("step", "first_step", "epoch", "epoch_steps", *CLOCKS, *RATES)
SIZE_GROUPS = ("nodes", "gpus", "world_size", "batch_size", "global_batch")


def _is_some(value: Any, fits: Any) -> bool:
    return fits(value) if not isinstance(value, list) else bool(value) and all(map(fits, value))


_Name = Annotated[
    str,
    takes(
        "a name of letters, digits, '.', '_', '+' and '-'",
        matches(NAME),
    ),
]
_Patterns = Annotated[
    str | list[str],
    takes(
        "a regular expression as text, or a list of them",
        lambda value: _is_some(value, is_text),
        "put single quotes around it",
    ),
]
_By = Annotated[
    str | list[str],
    takes(
        "the name of a group, or a list of them",
        lambda value: _is_some(value, is_text),
        "such as timestamp or step_time_s",
    ),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [*CLOCKS, *RATES]},
                {"type": "array", "minItems": 1, "items": {"enum": [*CLOCKS, *RATES]}},
            ]
        }
    ),
]
_Step = Annotated[int, whole(0, 10_000_000)]
_Steps = Annotated[int, whole(1, 10_000_000)]
_Count = Annotated[int, whole(1)]


class WindowEntry(Strict):
    """Which lines of a log count: the lines of certain steps, certain lines in the order of the log, or one total."""

    after: _Step | None = Field(
        None, description="the window begins after this step, whose line must be there"
    )
    first: _Step | None = Field(
        None, description="the first step that counts, if no line before it is needed"
    )
    last: _Steps | None = Field(None, description="the last step that counts")
    every: _Steps | None = Field(
        None,
        description="lines are so many steps apart, and all are needed; without it each step, or, by a clock, the two ends",
    )
    steps_per_line: _Steps = Field(
        1, description="steps of one line, if the lines are numbered by epochs"
    )
    steps_above: _Step | None = Field(
        None, description="with take_lines: only lines of a later step count"
    )
    skip_lines: _Step | None = Field(
        None, description="with take_lines: so many lines are left out first"
    )
    take_lines: _Steps | None = Field(
        None, description="so many lines count, in the order of the log, whatever their steps"
    )
    total: Truth = Field(False, description="one line has the rate of all steps from first to last")


class RoundingEntry(Strict):
    """How a number is rounded."""

    places: Annotated[int, whole(0, 12)] = Field(description="the number of decimal places")
    by: Literal["numpy", "python"] = Field(
        "numpy",
        description="numpy: rint(x · 10^places) / 10^places; python: the decimal number closest to x",
    )


class RuleEntry(Strict):
    """One rule: from the bytes of a log to the speed of a run."""

    title: Text = Field(description="what is measured, in a few words, for the note under a table")
    lines: _Patterns = Field(
        description=f"the lines that count, as a regular expression with groups of {', '.join(LINE_GROUPS)}"
    )
    clock: Pattern = Field(
        "",
        description="the time that stands before such a line: a pattern with the group timestamp",
    )
    size_lines: list[Pattern] = Field(
        [],
        description=f"lines that say the size of the run, which must be the planned one: groups of {', '.join(SIZE_GROUPS)}",
    )
    window: WindowEntry = Field(description="which lines count, such as {after: 20, last: 120}")
    by: _By = Field(
        description=f"the group that gives the time or the rate: {', '.join((*CLOCKS, *RATES))}; of a list, the first there"
    )
    over: Literal["harmonic_mean", "mean", "median", "min", "max"] = Field(
        "harmonic_mean",
        description="how the rates of lines become one; harmonic_mean combines them by time",
    )
    scope: Literal["global", "node", "process"] = Field(
        "global", description="what samples_per_s covers: the run, a node, or a process"
    )
    units: dict[Literal["timestamp", "elapsed_s", "step_time_s", "samples_per_s"], Unit] = Field(
        {}, description="the unit of time of a group that is not in seconds: {step_time_s: ms}"
    )
    printers: Literal["one", "gpus", "ranks"] = Field(
        "one",
        description="how many processes print each line: one, one for each of a node's gpus, or all ranks",
    )
    gaps: Literal["refused", "noted"] = Field(
        "refused",
        description="noted: by a clock, lines between the ends of the window may be missing",
    )
    steps_called: Text = Field(
        "steps", description="the program's word for its steps in messages, such as batches"
    )
    line_rounding: RoundingEntry | None = Field(
        None, description="the rounding of the rate of each line"
    )
    rounding: RoundingEntry | None = Field(
        None, description="the rounding of the speed of a run; without it, none"
    )


class PublishedEntry(Strict):
    """How published numbers of this system were computed."""

    rule: Text = Field(description="the name of one of rules")
    runs: _Count = Field(description="the number of published runs")
    statistic: Literal["median", "mean", "min", "max"] = Field(
        description="median, mean, min or max of the runs"
    )
    divisor: Literal["median/median", "mean/mean", "min/min", "max/max"] = Field(
        "median/median",
        description="how speedups are computed: the statistic of a case over that of 1n1g",
    )
    rules: Annotated[dict[_Name, RuleEntry], Field(min_length=1)] = Field(
        description="the rules by name, such as {mine: {title: …, lines: …, window: …, by: …}}"
    )


def published_entry(path: KeyPath) -> type[BaseModel]:
    """Return the model of the mapping at a path that begins with ``published``.

    >>> published_entry(("published", "rules", "mine", "window")).__name__
    'WindowEntry'
    """
    if path[1:2] != ("rules",) or len(path) < 3:
        return PublishedEntry
    inner: dict[str | int, type[BaseModel]] = {
        "window": WindowEntry,
        "rounding": RoundingEntry,
        "line_rounding": RoundingEntry,
    }
    return inner.get(path[3], RuleEntry) if len(path) > 3 else RuleEntry

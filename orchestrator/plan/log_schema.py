"""The schema of ``log:`` in a ``framework.yaml``: what the lines of a program's log mean.

What several of its keys must be together is in `orchestrator.plan.log_consistency`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.inventory.fields import Pattern, Strict, Text, Truth, takes
from orchestrator.logs import SIZES
from orchestrator.plan.schema_values import (
    Above0,
    Glob,
    Number,
    Scope,
    Separator,
    Share,
    Suffix,
    Term,
    Unit,
    Word,
)


class MetricEntry(Strict):
    """A metric: what a group of a line with results means."""

    unit: Text = Field(description="the unit of its values, such as GB/s")
    better: Literal["higher", "lower"] = Field(
        description="which values are better: higher or lower"
    )
    help: Text = Field("", description="what it is, in one line of text")
    group: Text = Field(
        "", description="the named group that holds its value; without it, the one of its name"
    )
    factor: Number = Field(1, description="what printed values are multiplied by to be in its unit")
    keys: list[Word] = Field(
        [], description="groups that tell values of one run apart, such as [size_bytes]"
    )
    scope: Literal["global", "node", "rank"] = Field(
        "global", description="what a line is about: the run, a node or a rank"
    )
    over: Literal["only", "mean", "harmonic_mean", "median", "min", "max", "sum", "last"] = Field(
        "only",
        description="how lines of one log with equal keys become one value; only expects a single line",
    )
    across: Literal["sum", "mean", "min", "max", "each"] | None = Field(
        None, description="how the values of nodes or ranks become one; each keeps them apart"
    )
    speedup: Truth = Field(False, description="it is compared with that of a single device")
    primary: Truth = Field(
        False, description="the metric that stands for the run; without it, the first one"
    )
    says: Literal["tokens_per_s", "tokens_per_s_per_device", "tflops_per_device", "mfu"] | None = (
        Field(
            None,
            description="the metric of a language model of which it is the program's own figure",
        )
    )
    ema: Share | None = Field(
        None,
        description="with says: the newest step's share, where the program prints an exponential moving average",
    )


class HeaderEntry(Strict):
    """The line above rows with results, which says their unit."""

    line: Pattern = Field(description="a regular expression for the line")
    factors: dict[Word, Above0] = Field(
        {},
        description="what the values of a group are multiplied by below it, such as {bandwidth: 0.008388608}",
    )


class AgreementEntry(Strict):
    """What holds for the numbers of one row: value = factor · the product of `of` / that of `over`."""

    value: Term = Field(description="what follows from others, such as algbw")
    of: list[Term] = Field(
        [],
        description="groups or sizes of the run that are multiplied, such as [size_bytes] or [world_size-1]",
    )
    over: list[Term] = Field([], description="what they are divided by, such as [time_us]")
    factor: Number = Field(1, description="what the quotient is multiplied by")
    within: Annotated[
        float, takes("a number ≥ 1", lambda value: type(value) in (int, float) and value >= 1)
    ] = Field(
        1.04,
        description="the ratio up to which both may differ, besides the digits that are printed",
    )
    models: list[Word] = Field([], description="the models it is about, by default all")
    at: Literal["", "least", "most"] = Field(
        "", description="least or most: the value is not more, or not less, than this"
    )
    rows: Literal["each", "most", "alike"] = Field(
        "each",
        description="each; most: the middle row is judged; alike: the factor is that of the middle row",
    )


class LogEntry(Strict):
    """What the lines of the program's log mean."""

    files: Annotated[list[Glob], Field(min_length=1)] = Field(
        description="the files with step lines, below the logs of a node: [rank-0.out] or [node.out]"
    )
    patterns: list[Pattern] = Field(
        [],
        description="regular expressions with the groups step and one that says how fast, and any of metrics",
    )
    nodes: Literal["first", "last", "every"] = Field(
        "first", description="the nodes whose files are read"
    )
    prefix: Pattern = Field(
        "", description="what a launcher puts before each line of a rank: group rank or local_rank"
    )
    thousands: Separator = Field(
        "", description="what separates thousands in numbers, such as ',' in 5,762"
    )
    suffixes: dict[Suffix, Above0] = Field(
        {}, description="what follows a number, and its factor: {K: 1000, M: 1000000}"
    )
    scope: Scope = Field(
        "global", description="what the rate in a line covers: the run, a node, or a process"
    )
    scope_by: dict[str, dict[str, Scope]] = Field(
        {}, description="scope for single values of options"
    )
    cumulative: Truth = Field(False, description="a rate is the mean since the start")
    counts_from: Annotated[
        int, takes("0 or 1", lambda value: type(value) is int and value in (0, 1))
    ] = Field(
        1, description="the number of the program's first step", json_schema_extra={"enum": [0, 1]}
    )
    after_warmup: Truth = Field(
        False, description="the program performs its warm-up before it counts"
    )
    rank: Pattern = Field(
        "", description="the line by which each rank says who it is: groups rank and world_size"
    )
    rank_files: list[Glob] = Field(
        [], description="the files with these lines; without it those of files"
    )
    rank_parts: Pattern = Field(
        "", description="the line with the parts of a rank's steps, as JSON in the group json"
    )
    closing: Pattern = Field(
        "", description="the last line, with the facts of the run as JSON in the group json"
    )
    nccl_files: list[Glob] = Field([], description="files in which NCCL logs, such as nccl-*.log")
    readings: Pattern | list[Pattern] = Field(
        [],
        description="lines with results other than steps: a regular expression with groups of any name, or several",
    )
    metrics: dict[Word, MetricEntry] = Field(
        {},
        description="what groups of readings and patterns are, by name: {bandwidth: {unit: GB/s, better: higher}}",
    )
    units: dict[
        Literal[
            "timestamp",
            "elapsed_s",
            "step_time_s",
            "mean_time_s",
            "samples_per_s",
            "tokens_per_s",
            "steps_per_s",
        ],
        Unit,
    ] = Field(
        {}, description="the unit of time of a group that is not in seconds: {step_time_s: ms}"
    )
    summed_over: dict[
        Literal["samples", "samples_per_s", "tokens_per_s", "steps_per_s"],
        Literal["nodes", "ranks"],
    ] = Field(
        {}, description="groups that the program has already added up over all nodes or ranks"
    )
    refuse: list[Pattern] = Field(
        [], description="lines by which the program says that its results are wrong: no number"
    )
    confirm: list[Pattern] = Field(
        [], description="lines of which every log with results has one: without them, no number"
    )
    end: Pattern = Field(
        "", description="the line after the last result: a log without it is cut, and has no number"
    )
    facts: list[Pattern] = Field(
        [],
        description=f"lines that say the size of the run: groups of {', '.join(SIZES)}, options, or keys of models",
    )
    rank_list: Pattern = Field(
        "",
        description="a line of the list of all ranks that one log has: group rank, and host and device if they stand there",
    )
    headers: list[HeaderEntry] = Field(
        [],
        description="lines above rows of readings that say their unit, or numbers of all of them",
    )
    agreements: list[AgreementEntry] = Field(
        [], description="what holds for the numbers of a row of readings"
    )
    micro_batches: Annotated[
        int | str,
        takes(
            "a whole number ≥ 1, or the name of an option",
            lambda value: type(value) is str or type(value) is int and value >= 1,
        ),
    ] = Field(
        1,
        description="how many numbers of a step in the log are one step, or the option that says so",
    )
    sampled: Truth = Field(
        False,
        description="a step time is that of the printed step alone, in which the program also evaluates or saves",
    )

"""A cell as every output shows it: the values of a metric, or the tables of a diagnosis.

A field of `Row` is declared once, by `column`: JSON has its name, the JSON Schema its description and
limits, CSV a column of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.notes import Note
from orchestrator.plan.measures import OWN_METRICS, SAMPLES_PER_S, SPEEDS
from orchestrator.results.cells import Repeat
from orchestrator.results.diagnosis_tables import Grid
from orchestrator.results.numbers.intervals import Interval
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.numbers.throughput import median, round_like_numpy
from orchestrator.results.slow_ranks import RankTimes, SlowRank

SPEED = SAMPLES_PER_S.name
"""The metric of most trainings: throughput over the measured window in samples/s."""

_POSITIVE = {"$ref": "#/$defs/positive"}
_RATIO = {"$ref": "#/$defs/ratio"}
_SCALAR = {"type": ["string", "number", "boolean", "null"]}


def _show(value: Any) -> str:
    """Return a value in CSV: a float with as many digits as in tables, parts after semicolons."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, Mapping):
        value = tuple(f"{name}={part}" for name, part in value.items() if part is not None)
    if isinstance(value, tuple):
        return "; ".join(value)
    return str(value)


def _show_share(value: float) -> str:
    return f"{round_like_numpy(value, 4):.4f}"


def _show_exactly(value: float) -> str:
    return f"{value:.6g}"


def _show_repeats(repeats: Sequence[Repeat]) -> str:
    return "; ".join(_show_exactly(repeat.value) for repeat in repeats)


def column(
    words: str = "",
    schema: Mapping[str, Any] | None = None,
    *,
    csv: Callable[[Any], str] | None = _show,
    of_speeds: bool = False,
) -> Any:
    """Declare a field: its description in the JSON Schema; its ``schema``, if that does not follow
    from its type; its text in CSV, which has no such column for None.

    ``of_speeds``: it is null except for speeds of training.
    """
    return field(metadata={"words": words, "schema": schema, "csv": csv, "of_speeds": of_speeds})


class Percentiles(NamedTuple):
    """Percentiles of the step times of a row in s, each the median over its repeats."""

    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell of any measurement, as every output shows it."""

    series: str = column("What a row shares with its baseline, in words.", csv=None)
    framework: str = column()
    model: str = column()
    dtype: str = column()
    device: str = column()
    shape: str = column(schema={"$ref": "#/$defs/shape"}, csv=None)
    nodes: int = column(schema=_POSITIVE)
    gpus: int = column("Ranks on each node.", _POSITIVE)
    world_size: int = column("Ranks on all nodes.", _POSITIVE)
    options: Mapping[str, Any] = column(
        "What else of the spec differs between rows, and options that somebody chose.",
        {"type": "object", "additionalProperties": _SCALAR},
    )
    simulated: bool = column("The program waits instead of computing.")
    n: int = column("Repeats with a number.")
    planned: int = column("Planned repeats: the sum of n and the four counts below.")
    failed: int = column("Repeats that failed.")
    interrupted: int = column("Repeats that were stopped before their end.")
    running: int = column("Repeats under way.")
    never_run: int = column("Repeats that were never started.")
    qualifications: tuple[Note, ...] = column("What is to be said beside the numbers.")
    failures: tuple[str, ...] = column("First cause of each repeat without a number.")
    run_ids: tuple[str, ...] = column()
    hardware: str = column()


@dataclass(frozen=True, slots=True)
class Row(Entry):
    """The values of one metric and key in a cell, over ``n`` good repeats, in ``unit``, unrounded,
    None if n is 0.

    ``speedup`` and both intervals belong to ``value``; ``average`` and ``median`` describe the
    repeats as they are. Intervals are 95 % intervals, None for too few repeats; the baseline has
    no interval of its speedup, which is 1 by definition.
    """

    metric: str = column(
        "The name of the metric; samples_per_s is the throughput of a training, tokens_per_s "
        "that of a language model."
    )
    unit: str = column(
        "The unit of average, median, minimum, maximum, deviation, value, interval, per_rank and "
        "of the values of the repeats."
    )
    better: str = column("Which values are better.", {"enum": ["higher", "lower"]})
    primary: bool = column("It is the metric that stands for the run.")
    says: str = column(
        "The metric of which it is the program's own figure, such as mfu; empty for others."
    )
    key: Mapping[str, str | int] = column(
        "What tells values of this metric in one run apart, such as size_bytes; empty for a "
        "metric with one value per run.",
        {"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
    )
    loader: str = column()
    batch_size: int = column("Samples per device and step.", _POSITIVE)
    global_batch: int = column("Samples of a step over all ranks.", _POSITIVE, csv=None)
    scaling: str = column(
        "What is the same in every shape: the work of a rank, or the global batch.",
        {"enum": ["weak", "strong"]},
        csv=None,
    )
    tokens: int = column(
        "Tokens of a sample; 0 for a program without tokens.",
        {"type": "integer", "minimum": 0},
        csv=None,
    )
    average: float | None = column()
    median: float | None = column()
    minimum: float | None = column()
    maximum: float | None = column()
    deviation: float | None = column(
        "Sample standard deviation of the values of the repeats.",
        {"type": ["number", "null"], "minimum": 0},
    )
    value: float | None = column(
        "Typical value: the geometric mean of the repeats, without the drift of the bench; the "
        "arithmetic mean if a value is not above 0."
    )
    interval: Interval | None = column()
    speedup: float | None = column(
        "Typical ratio of the value to that of the baseline in the same repeat, or of the "
        "baseline to it where lower is better, without the drift of the bench; with a published "
        "rule, the ratio of medians. Null for a metric that is not compared with that of one "
        "device.",
        _RATIO,
    )
    speedup_interval: Interval | None = column()
    efficiency: float | None = column(
        "Speedup over the ratio of world sizes.", _RATIO, csv=_show_share
    )
    efficiency_interval: Interval | None = column(csv=_show_share)
    step_s: float | None = column(
        "Time of a step in s: the global batch over the value.",
        {"type": ["number", "null"], "exclusiveMinimum": 0},
        csv=_show_exactly,
        of_speeds=True,
    )
    per_rank: float | None = column(
        "The value over the ranks.", {"$ref": "#/$defs/speed"}, of_speeds=True
    )
    repeats: tuple[Repeat, ...] = column(
        "The numbers of each repeat that has a value, in order of repeat.", csv=_show_repeats
    )
    ranks: tuple[RankTimes, ...] = column(
        "The parts of the steps of each rank, in order of rank, over all repeats; empty if the "
        "program does not report them.",
        csv=None,
    )
    slow: tuple[SlowRank, ...] = column(
        "The ranks and nodes that the others wait for, those that compute longest first.", csv=None
    )

    @property
    def is_speed(self) -> bool:
        """Return whether it is a speed of training."""
        return self.metric in SPEEDS

    @property
    def is_derived(self) -> bool:
        """Return whether it is derived from a speed of training, as an MFU is, or the program's own
        figure of such a number.
        """
        return bool(self.says) or self.metric in OWN_METRICS and not self.is_speed

    @property
    def title(self) -> str:
        """Its name for people: its metric, or the number that the program reports."""
        if self.says:
            return f"{self.says} said by the program"
        return self.metric

    @property
    def step_percentiles(self) -> Percentiles | None:
        """The percentiles of its step times; None without step times."""
        times = [repeat.step_times for repeat in self.repeats if repeat.step_times]
        if not times:
            return None
        return Percentiles(
            median([of_run.p50_s for of_run in times]),
            median([of_run.p90_s for of_run in times]),
            median([of_run.p99_s for of_run in times]),
        )


@dataclass(frozen=True, slots=True)
class Sheet(Entry):
    """One cell of a bench whose result is a diagnosis and not a metric, such as which link is
    slow.
    """

    measures: str = column(schema={"enum": ["pairs"]}, csv=None)
    grids: tuple[Grid, ...] = column(
        "Tables: each row has a value for each column, null for a number that does not exist.",
        csv=None,
    )
    said: tuple[str, ...] = column("What stands above the tables.")
    culprits: tuple[str, ...] = column("Nodes and links that were found unfit, in words.", csv=None)

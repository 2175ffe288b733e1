"""The grammar of a program's log: patterns, scope and window, as a framework folder declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.logs.metrics import Metric
from orchestrator.logs.numbers import NumberForm
from orchestrator.logs.steps import GROUPS

SETUP_LOG = "setup.out"
"""The log of a node's setup lines, which is not the program's output."""

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
"""Seconds in a unit of time."""
_UNIT_WORDS = {
    "sec": "s",
    "mil": "ms",
    "mic": "us",
    **{unit: unit for unit in UNITS if unit != "s"},
}
TIMES = ("timestamp", "elapsed_s", "step_time_s", "mean_time_s")
RATES = ("samples_per_s", "tokens_per_s", "steps_per_s")
SIZES = (
    "nodes",
    "gpus",
    "world_size",
    "batch_size",
    "global_batch",
    "tokens_per_step",
    "steps",
    "model",
    "dtype",
)
"""The facts of a run that any program may print; ``gpus`` is ranks per node, ``batch_size`` samples
of a device per step,
``model`` a model of the folder, ``dtype`` the program's name of a dtype."""

DTYPES = {
    "fp64": ("float64", "double", "f64"),
    "fp32": ("float32", "float", "single", "f32"),
    "fp16": ("float16", "half", "f16", "amp_fp16"),
    "bf16": ("bfloat16", "amp_bf16"),
}
"""The names that programs have for a dtype. A fact may have the name of one: whether it is used."""

FUNCTIONS = ("before", "mean", "distinct")
"""What a term of an agreement may be of groups: the text of the previous row of the same kind, the
mean of the rows so far, how many different texts they have."""


def is_multiplier(group: str) -> bool:
    """Return whether a group of a fact multiplies the others, as a program may say a grid of P
    times Q ranks.

    >>> [is_multiplier(group) for group in ("times", "times_2", "world_size")]
    [True, True, False]
    """
    return group.rstrip("_0123456789") == "times"


def is_named(log: str, globs: Iterable[str]) -> bool:
    """Return True if globs of a grammar name a log of a node. None names the output of setup lines,
    so no result is read there.

    >>> [is_named(name, ["rank-0.out", "*.out"]) for name in ("node.out", "node.err", "setup.out")]
    [True, False, False]
    """
    return log != SETUP_LOG and any(fnmatchcase(log, glob) for glob in globs)


def units_hint(names: Iterable[str]) -> str:
    """Return how to declare the unit of a group that is named after it; empty if no name is one of
    `TIMES` or `RATES` with another unit.

    >>> units_hint(["step", "step_time_ms"])
    'name the group step_time_s and write units: {step_time_s: ms} under log:'
    >>> units_hint(["samples_per_minute"]), units_hint(["step_time_s", "time_ms"])
    ('name the group samples_per_s and write units: {samples_per_s: min} under log:', '')
    """
    for name in names:
        for group in (*TIMES, *RATES):
            stem, _, unit = group.rpartition("_")
            word = name.removeprefix(f"{stem}_")
            if unit == "s" and word not in (name, unit) and (other := _unit_of(word)):
                units = f" and write units: {{{group}: {other}}} under log:" if other != "s" else ""
                return f"name the group {group}{units}"
    return ""


def _unit_of(word: str) -> str:
    """Return the unit of `UNITS` that a word such as ``msec`` means; empty for others."""
    return next((unit for start, unit in _UNIT_WORDS.items() if word.startswith(start)), "")


@dataclass(frozen=True, slots=True)
class Header:
    """A line above the rows of a table. ``factors``: what its unit multiplies the values of groups
    by, by group. Its own groups are numbers of all rows below it, for agreements.
    """

    line: str
    factors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Agreement:
    """An equation or a bound between the numbers of one row.

    ``value`` = ``factor`` · product of ``of`` / product of ``over``, up to a ratio of ``within``
    and the printed digits; with ``at``, the value is only ``least`` or ``most`` this much. A term
    is a group of the row or of a header, a size of the run, one of `FUNCTIONS` of groups, or a
    difference of two of these and whole numbers, such as ``world_size-1``. It is tried in rows that
    have a group of ``value``. ``rows``: it holds in ``each``; in ``most``, of which the middle one
    is judged; or they are ``alike``, with the factor of the middle one. ``models`` limits it to
    these models; empty: all. If several equations for each row have the same value, one has to hold.
    """

    value: str
    of: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    factor: float = 1.0
    within: float = 1.04
    models: tuple[str, ...] = ()
    at: str = ""
    rows: str = "each"

    @property
    def parts(self) -> list[str]:
        """The groups, sizes and functions of groups that it is about."""
        terms = (self.value, *self.of, *self.over)
        return [part for term in terms for part in term.split("-") if not part.isdecimal()]

    @property
    def names(self) -> list[str]:
        """The groups and sizes that it is about."""
        return [name for part in self.parts for name in groups_of(part)]

    @property
    def is_alternative(self) -> bool:
        """Whether another one may hold in its place."""
        return not self.at and self.rows == "each"


def groups_of(part: str) -> list[str]:
    """Return the groups of a part of a term: those of a function, else itself.

    >>> groups_of("mean(busbw,busbw_in_place)"), groups_of("algbw")
    (['busbw', 'busbw_in_place'], ['algbw'])
    """
    _, bracket, groups = part.partition("(")
    return groups.rstrip(")").split(",") if bracket else [part]


@dataclass(frozen=True, slots=True)
class LogGrammar:
    """The format of a program's log, as data.

    ``files``: globs, relative to a node's log folder, of the files with samples. ``nodes``:
    ``first``, ``last`` or ``every``, the nodes whose files are read. ``patterns``: regular
    expressions with the named group ``step`` and one or more of ``samples_per_s``,
    ``tokens_per_s``, ``step_time_s``, ``steps_per_s``, ``elapsed_s``, ``timestamp``, ``samples``,
    ``mean_time_s`` to verify step times, and ``loss`` and ``skipped`` to verify that the program
    trains; they may have groups of ``metrics`` too. ``scope``: ``global`` if a rate covers the
    whole run, ``node`` if it covers the devices of one node, ``process`` if it covers one rank;
    ``scope_by`` sets the scope for single values of options. ``units``: the unit of time of single
    values, from `UNITS`; for a rate, the unit of its denominator. ``summed_over``: rates and counts
    that the program has already added up over all ``nodes`` or all ``ranks``. ``cumulative``: a
    rate covers all steps so far. ``counts_from``: the number that the program gives to its first
    step. ``after_warmup``: the program does not count its warm-up, so its first step is the first
    of the window. ``rank``: pattern of the line with which each rank identifies itself (groups
    ``rank``, ``world_size``). ``rank_parts``: pattern of the line with the parts of a rank's steps,
    group ``json``, in the files of rank lines. ``closing``: pattern of the last line, group
    ``json`` with the facts of the run. ``nccl_files``: globs of the files with NCCL's own log.
    ``readings``: patterns of lines with results other than steps, with groups of any name.
    ``metrics`` defines these groups; without it, the reader of a kind of measurement knows them.
    ``thousands`` and ``suffixes`` define the `NumberForm`. ``prefix``: pattern of a launcher's
    prefix on each line of a rank, group ``rank`` or ``local_rank``. ``refuse``: patterns of lines
    by which the program says that its results are wrong. ``confirm``: patterns that match a line in
    every log with results, such as the program's verdict that they are right. ``end``: pattern of a
    line that follows the last result of a log that is not cut. ``facts``: patterns of lines that
    give the size of the run, with groups of `SIZES`, options or keys of models, and ``times``.
    ``rank_list``: pattern of a list of all ranks in one log, group ``rank``, and ``host`` and
    ``device`` where they stand there. ``headers``: the lines
    above rows of ``readings``, with their unit. ``agreements``: equations and bounds between the
    numbers of a row. ``micro_batches``: how many printed steps make one step, or the option that
    says so. ``sampled``: a step time covers the printed step alone, in which the program also
    evaluates or saves.
    """

    files: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    nodes: str = "first"
    scope: str = "global"
    scope_by: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cumulative: bool = False
    counts_from: int = 1
    after_warmup: bool = False
    rank: str = ""
    rank_files: tuple[str, ...] = ()
    closing: str = ""
    nccl_files: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    summed_over: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    thousands: str = ""
    suffixes: Mapping[str, float] = field(default_factory=dict)
    prefix: str = ""
    rank_parts: str = ""
    refuse: tuple[str, ...] = ()
    confirm: tuple[str, ...] = ()
    end: str = ""
    facts: tuple[str, ...] = ()
    rank_list: str = ""
    headers: tuple[Header, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    micro_batches: int | str = 1
    sampled: bool = False

    @property
    def numbers(self) -> NumberForm:
        """The form in which the program writes numbers."""
        return NumberForm(self.thousands, self.suffixes)

    @property
    def metric_groups(self) -> tuple[str, ...]:
        """The groups of metrics and their keys that lines of steps may have, besides those that say
        how fast a step is.
        """
        names = [name for metric in self.metrics for name in (metric.group, *metric.keys)]
        # Older folders have the program's own figure in a group that has since become a speed.
        reserved = set(GROUPS) - {"tokens_per_s"}
        return tuple(dict.fromkeys(name for name in names if name not in reserved))

    def factor(self, name: str) -> float:
        """Return the factor that converts a printed value to seconds, or to a rate per second."""
        seconds = UNITS[self.units.get(name, "s")]
        return 1 / seconds if name in RATES else seconds

    def by_key(self, kind: str) -> dict[str, str]:
        """Return the patterns of ``patterns`` or ``readings`` by their keys in the folder, such as
        ``log.patterns[0]``.
        """
        return {
            f"log.{kind}[{number}]": pattern for number, pattern in enumerate(getattr(self, kind))
        }

    def with_options(self, options: Mapping[str, Any]) -> LogGrammar:
        """Return the grammar for a run with these options."""
        scopes = (
            table[options[name]]
            for name, table in self.scope_by.items()
            if options.get(name) in table
        )
        counted = self.micro_batches
        if isinstance(counted, str):
            counted = options.get(counted, 1)
        return replace(self, scope=next(scopes, self.scope), scope_by={}, micro_batches=counted)

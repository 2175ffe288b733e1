"""Consistency of the keys of ``log:`` in a ``framework.yaml``: patterns and groups, metrics and
their lines.

Each fault is the path of its key, what was expected and what came, and a hint.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory.values import KeyPath
from orchestrator.logs import (
    DTYPES,
    SETUP_LOG,
    SIZES,
    Agreement,
    Header,
    LogGrammar,
    is_multiplier,
    units_hint,
)
from orchestrator.logs.metrics import Metric
from orchestrator.logs.parse import parse
from orchestrator.logs.steps import GROUPS, SPEEDS
from orchestrator.plan.log_schema import LogEntry, MetricEntry
from orchestrator.plan.measures import LANGUAGE_MODEL, MEASURES, OWN_METRICS
from orchestrator.plan.schema import FrameworkFile

Fault = tuple[KeyPath, str, str]
_GROUP = re.compile(r"\(\?P<(\w+)>")


def patterns_of(readings: str | list[str]) -> tuple[str, ...]:
    """Return the patterns of ``readings``, which may be a single one."""
    if isinstance(readings, str):
        return (readings,)
    return tuple(readings)


def log_inconsistencies(file: FrameworkFile, broken: Collection[KeyPath]) -> Iterator[Fault]:
    """Yield patterns that cannot be used, those that give no speed, and metrics that no pattern
    has. ``broken`` are the keys that were left out of ``file`` because they are at fault
    themselves."""
    log = file.log
    grammars: dict[KeyPath, LogGrammar] = {
        ("log", "patterns", index): LogGrammar(
            (), (pattern,), metrics=_metrics_of_pattern(log, pattern, broken)
        )
        for index, pattern in enumerate(log.patterns)
    }
    for key in ("rank", "rank_parts", "closing", "prefix", "rank_list", "end"):
        if pattern := getattr(log, key):
            grammars["log", key] = LogGrammar((), **{key: pattern})
    for key in ("refuse", "confirm", "facts"):
        for index, pattern in enumerate(getattr(log, key)):
            patterns: Any = (pattern,)
            grammars["log", key, index] = LogGrammar((), **{key: patterns})
    for index, header in enumerate(log.headers):
        grammars["log", "headers", index, "line"] = LogGrammar((), headers=(Header(header.line),))
    for index, pattern in enumerate(patterns_of(log.readings)):
        grammars[_reading(log, index)] = LogGrammar((), readings=(pattern,))
    unusable = set()
    for path, grammar in grammars.items():
        try:
            parse(b"", grammar)
        except ConfigError as error:
            unusable.add(str(path[1]))
            yield path, error.message, error.hint
    of_metrics = {entry.group for entry in log.metrics.values()}
    groups = {
        name for pattern in log.patterns for name in ("step", *SPEEDS) if f"(?P<{name}>" in pattern
    } - of_metrics
    if (
        "patterns" not in unusable
        and log.patterns
        and not ("step" in groups and groups & set(SPEEDS))
    ):
        got = ", ".join(sorted(groups)) or "none"
        number = "write (?P<step>[0-9]+) where a line has the number of its step"
        named = [name for pattern in log.patterns for name in _GROUP.findall(pattern)]
        hint = units_hint(named) if "step" in groups else number
        yield (
            ("log", "patterns"),
            f"expected the group step and one of {', '.join(SPEEDS)}, got {got}",
            hint,
        )
    if "tokens_per_s" in groups and file.measures != LANGUAGE_MODEL:
        hint = f"write measures: {LANGUAGE_MODEL}, and per_step: {{tokens: NAME}} with the option of a sample's tokens"
        yield (
            ("log", "patterns"),
            f"expected no tokens_per_s in a folder that measures {file.measures}",
            hint,
        )
    for key in ("rank", "rank_list"):
        if "(?P<rank>" not in (getattr(log, key) or "(?P<rank>"):
            hint = "write (?P<rank>[0-9]+) for the number"
            yield ("log", key), "expected a pattern with the group rank, got one without", hint
    yield from _statements(file)
    for key in ("files", "rank_files", "nccl_files"):
        for index, glob in enumerate(getattr(log, key)):
            if glob.startswith("logs/"):
                hint = f"write {glob.removeprefix('logs/')}"
                yield (
                    ("log", key, index),
                    f"expected files below the logs of a node, got {glob!r}",
                    hint,
                )
            elif glob == SETUP_LOG:
                hint = "it has the output of setup lines, where no results are read: start the program in launch.sh"
                yield ("log", key, index), f"expected another file, got {glob!r}", hint
    if not unusable & {"patterns", "readings"} and not {
        ("log",),
        ("log", "readings"),
        ("log", "metrics"),
    } & set(broken):
        yield from _metrics(file)


def _statements(file: FrameworkFile) -> Iterator[Fault]:
    """Yield groups that the lines about a run, or rows and their headers, do not have, and facts
    that are none.
    """
    log = file.log
    of_models = {key for entry in file.models.values() for key in entry.model_extra or {}}
    known = [*SIZES, *DTYPES, *file.options, *of_models]
    for index, pattern in enumerate(log.facts):
        for name in _GROUP.findall(pattern):
            if name not in known and not is_multiplier(name):
                hint = f"name a group after what it says of the run{nearest(name, known)}"
                expected = f"expected groups from {', '.join(SIZES)}, options, or keys of models"
                yield ("log", "facts", index), f"{expected}, got {name}", hint
    of_rows = {name for pattern in patterns_of(log.readings) for name in _GROUP.findall(pattern)}
    for index, header in enumerate(log.headers):
        for name in header.factors:
            if name not in of_rows:
                place = ("log", "headers", index, "factors", name)
                yield (
                    place,
                    f"expected a group of readings, got {name}",
                    _list_groups(name, of_rows),
                )
    of_headers = {name for header in log.headers for name in _GROUP.findall(header.line)}
    of_facts = {name for pattern in log.facts for name in _GROUP.findall(pattern)}
    numbers = of_rows | of_headers | of_facts | set(SIZES)
    for index, entry in enumerate(log.agreements):
        for name in Agreement(entry.value, tuple(entry.of), tuple(entry.over)).names:
            if name not in numbers:
                expected = (
                    f"expected groups of readings, headers or facts, or sizes of a run, got {name}"
                )
                yield ("log", "agreements", index), expected, _list_groups(name, numbers)
    counted = log.micro_batches
    if isinstance(counted, str) and counted not in file.options:
        hint = (
            f"the options are {', '.join(file.options) or 'none'}{nearest(counted, file.options)}"
        )
        yield (
            ("log", "micro_batches"),
            f"expected a whole number or the name of an option, got {counted!r}",
            hint,
        )


def _list_groups(name: str, groups: Collection[str]) -> str:
    return f"the groups are {', '.join(sorted(groups)) or 'none'}{nearest(name, groups)}"


def _metrics_of_pattern(
    log: LogEntry, pattern: str, broken: Collection[KeyPath]
) -> tuple[Metric, ...]:
    """Return the metrics whose groups a pattern of steps may have; any group if metrics are faulty."""
    if ("log", "metrics") in broken:
        return tuple(Metric(name, "") for name in _GROUP.findall(pattern))
    return tuple(
        Metric(name, entry.unit, group=entry.group, keys=tuple(entry.keys))
        for name, entry in log.metrics.items()
    )


def _reading(log: LogEntry, index: int) -> KeyPath:
    if isinstance(log.readings, str):
        return ("log", "readings")
    return ("log", "readings", index)


def _metrics(file: FrameworkFile) -> Iterator[Fault]:
    log = file.log
    by_pattern = [set(_GROUP.findall(pattern)) for pattern in patterns_of(log.readings)]
    declared = {metric.group or name for name, metric in log.metrics.items()}
    reserved = set(GROUPS) - ({"tokens_per_s"} & declared)
    by_step = [set(_GROUP.findall(pattern)) - reserved for pattern in log.patterns]
    groups = sorted(set().union(*by_pattern, *by_step))
    for name, metric in log.metrics.items():
        for key, message, hint in _metric(name, metric, by_pattern + by_step, groups, log):
            yield ("log", "metrics", name, *key), message, hint
        for key, message, hint in _figure(name, metric, file) if metric.says else ():
            yield ("log", "metrics", name, *key), message, hint
    for name in OWN_METRICS & set(log.metrics):
        hint = (
            "orch uses this name for a metric that it computes from the step lines of log.patterns"
        )
        yield ("log", "metrics", name), "expected another name", hint
    if len(primary := [name for name, metric in log.metrics.items() if metric.primary]) > 1:
        yield (
            ("log", "metrics", primary[1], "primary"),
            f"expected one primary metric, got {' and '.join(primary)}",
            "",
        )
    for index, names in enumerate(by_pattern if declared and declared <= set(groups) else ()):
        if not names & declared:
            got, hint = (
                ", ".join(sorted(names)),
                "declare it under log.metrics, or leave the pattern out",
            )
            yield (
                _reading(log, index),
                f"expected the group of a metric ({', '.join(sorted(declared))}), got {got}",
                hint,
            )


def _metric(
    name: str, metric: MetricEntry, by_pattern: list[set[str]], groups: list[str], log: LogEntry
) -> Iterator[tuple[KeyPath, str, str]]:
    group = metric.group or name
    if group not in groups:
        hint = f"the groups there are {', '.join(groups) or 'none'}{nearest(group, groups)}"
        place: KeyPath = ("group",) if metric.group else ()
        yield (
            place,
            f"expected a group of readings or patterns that holds its value, got {group!r}",
            hint,
        )
        return
    for index, key in enumerate(metric.keys):
        lacking = [names for names in by_pattern if group in names and key not in names]
        if lacking:
            expected = f"expected a group of each pattern that has {group}, got {key!r}"
            yield ("keys", index), expected, _list_groups(key, lacking[0])
    if metric.ema and not (metric.says and metric.over == "last"):
        hint = "add says: with a metric of a language model such as mfu, and over: last; or leave ema: out"
        yield ("ema",), "expected ema: only beside says: and over: last", hint
    if metric.scope == "global" and metric.across:
        hint = "write scope: rank if each log is about one rank, or scope: node"
        yield (
            ("across",),
            f"expected no across: for a metric of the whole run, got {metric.across}",
            hint,
        )
    if metric.scope != "global" and not metric.across:
        hint = "write across: sum, or mean, min, max, each"
        yield (
            ("across",),
            f"expected a rule to combine the values of all {metric.scope}s, got nothing",
            hint,
        )
    if metric.scope != "global" and log.nodes != "every":
        hint = "write nodes: every under log:"
        yield (
            ("scope",),
            f"expected logs of every node for a metric of each {metric.scope}, got those of the first",
            hint,
        )


def _figure(name: str, metric: MetricEntry, file: FrameworkFile) -> Iterator[Fault]:
    """Yield reasons why a metric cannot be the program's own figure of a language model's number."""
    measure = MEASURES[LANGUAGE_MODEL]
    if file.measures != LANGUAGE_MODEL:
        hint = f"write measures: {LANGUAGE_MODEL}, or leave says: out"
        yield (
            ("says",),
            f"expected no says: in a folder that measures {file.measures}, got {metric.says}",
            hint,
        )
        return
    (own,) = (own for own in (measure.speed, *measure.derived) if own and own.name == metric.says)
    if metric.unit != own.unit:
        hint = "write factor: if it prints another unit"
        if own.unit == "%":
            hint = "write factor: 100 if the program prints a fraction"
        yield ("unit",), f"expected the unit of {own.name}, {own.unit!r}, got {metric.unit!r}", hint
    if metric.better != own.better:
        yield ("better",), f"expected {own.better}, as for {own.name}, got {metric.better}", ""
    for key in ("primary", "speedup"):
        if getattr(metric, key):
            yield (
                (key,),
                f"expected false for a figure that the program reports, got true: orch computes {own.name} itself",
                "leave it out",
            )
    if metric.keys or metric.across == "each":
        place: KeyPath = ("keys",) if metric.keys else ("across",)
        yield place, f"expected one value of a run, as {own.name} is, got several", ""
    in_steps = any(f"(?P<{metric.group or name}>" in pattern for pattern in file.log.patterns)
    if in_steps and metric.over == "only":
        hint = "write over: harmonic_mean, the mean over the whole window, or over: median"
        yield ("over",), "expected a rule to combine the lines of all steps, got nothing", hint
    others = [other for other, entry in file.log.metrics.items() if entry.says == metric.says]
    if others[0] != name:
        yield (
            ("says",),
            f"expected one metric that says {metric.says}, got {' and '.join(others)}",
            "",
        )

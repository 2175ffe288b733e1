"""What the keys of ``log:`` in a ``framework.yaml`` must be together: patterns and groups, metrics and their lines.

Each fault is the path of its key, what was expected and what came, and a hint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from orchestrator.errors import ConfigError
from orchestrator.inventory import nearest
from orchestrator.inventory.values import KeyPath
from orchestrator.logs import LogGrammar
from orchestrator.logs.parse import parse
from orchestrator.logs.patterns import compiled
from orchestrator.logs.steps import SPEEDS
from orchestrator.plan.measures import OWN_METRICS
from orchestrator.plan.schema import FrameworkFile, LogEntry, MetricEntry

__all__ = ["log_inconsistencies", "patterns_of"]

Fault = tuple[KeyPath, str, str]


def patterns_of(readings: str | list[str]) -> tuple[str, ...]:
    """Return the patterns of ``readings``, which may be a single one."""
    return (readings,) if isinstance(readings, str) else tuple(readings)


def log_inconsistencies(file: FrameworkFile, broken: Collection[KeyPath]) -> Iterator[Fault]:
    """Yield patterns that cannot be used, those that give no speed, and metrics that no pattern has. ``broken`` are the keys
    that were left out of ``file`` because they are at fault themselves."""
    log = file.log
    grammars: dict[KeyPath, LogGrammar] = {
        ("log", "patterns", index): LogGrammar((), (pattern,)) for index, pattern in enumerate(log.patterns)
    }
    if log.rank:
        grammars["log", "rank"] = LogGrammar((), rank=log.rank)
    if log.closing:
        grammars["log", "closing"] = LogGrammar((), closing=log.closing)
    if log.prefix:
        grammars["log", "prefix"] = LogGrammar((), prefix=log.prefix)
    for index, pattern in enumerate(patterns_of(log.readings)):
        grammars[_reading(log, index)] = LogGrammar((), readings=(pattern,))
    unusable: set[str] = set()
    for path, grammar in grammars.items():
        try:
            parse(b"", grammar)
        except ConfigError as error:
            unusable.add(str(path[1]))
            yield path, error.message, error.hint
    groups = {name for pattern in log.patterns for name in ("step", *SPEEDS) if f"(?P<{name}>" in pattern}
    if "patterns" not in unusable and log.patterns and not ("step" in groups and groups & set(SPEEDS)):
        got = ", ".join(sorted(groups)) or "none"
        yield ("log", "patterns"), f"expected the group step and one of {', '.join(SPEEDS)}, got {got}", ""
    if log.rank and "(?P<rank>" not in log.rank:
        yield (
            ("log", "rank"),
            "expected a pattern with the group rank, got one without",
            "write (?P<rank>[0-9]+) for the number",
        )
    for key, globs in (("files", log.files), ("rank_files", log.rank_files), ("nccl_files", log.nccl_files)):
        for index, glob in enumerate(globs):
            if glob.startswith("logs/"):
                hint = f"write {glob.removeprefix('logs/')}"
                yield ("log", key, index), f"expected files below the logs of a node, got {glob!r}", hint
    if not unusable & {"readings"} and not {("log",), ("log", "readings"), ("log", "metrics")} & set(broken):
        yield from _metrics(file)


def _reading(log: LogEntry, index: int) -> KeyPath:
    return ("log", "readings") if isinstance(log.readings, str) else ("log", "readings", index)


def _metrics(file: FrameworkFile) -> Iterator[Fault]:
    log = file.log
    by_pattern = [set(compiled("log.readings", pattern, None).pattern.groupindex) for pattern in patterns_of(log.readings)]
    groups = sorted(set().union(*by_pattern))
    for name, metric in log.metrics.items():
        for key, message, hint in _metric(name, metric, by_pattern, groups, log):
            yield ("log", "metrics", name, *key), message, hint
    for name in OWN_METRICS & set(log.metrics):
        hint = "the throughput of a training, or what follows from it, has this one, and is read from the steps of patterns"
        yield ("log", "metrics", name), "expected another name", hint
    if len(primary := [name for name, metric in log.metrics.items() if metric.primary]) > 1:
        yield ("log", "metrics", primary[1], "primary"), f"expected one primary metric, got {' and '.join(primary)}", ""
    of_metrics = {metric.group or name for name, metric in log.metrics.items()}
    for index, names in enumerate(by_pattern if of_metrics and of_metrics <= set(groups) else ()):
        if not names & of_metrics:
            got = ", ".join(sorted(names))
            yield _reading(log, index), f"expected the group of a metric ({', '.join(sorted(of_metrics))}), got {got}", ""


def _metric(
    name: str, metric: MetricEntry, by_pattern: list[set[str]], groups: list[str], log: LogEntry
) -> Iterator[tuple[KeyPath, str, str]]:
    group = metric.group or name
    if group not in groups:
        hint = f"the groups of readings are {', '.join(groups) or 'none'}{nearest(group, groups)}"
        place: KeyPath = ("group",) if metric.group else ()
        yield place, f"expected a group of readings that holds its value, got {group!r}", hint
        return
    for index, key in enumerate(metric.keys):
        lacking = [names for names in by_pattern if group in names and key not in names]
        if lacking:
            hint = f"the groups are {', '.join(sorted(lacking[0]))}{nearest(key, lacking[0])}"
            yield ("keys", index), f"expected a group of each pattern that has {group}, got {key!r}", hint
    if metric.scope == "global" and metric.across:
        hint = "say scope: rank if each log is about a rank, or scope: node"
        yield ("across",), f"expected none for a metric of the whole run, got {metric.across}", hint
    if metric.scope != "global" and not metric.across:
        hint = f"write across: with sum, mean, min, max or each: what the values of all {metric.scope}s become"
        yield ("across",), f"expected how the values of {metric.scope}s become one, got nothing", hint
    if metric.scope != "global" and log.nodes != "every":
        hint = "write nodes: every under log:"
        yield ("scope",), f"expected logs of every node for a metric of each {metric.scope}, got those of the first", hint

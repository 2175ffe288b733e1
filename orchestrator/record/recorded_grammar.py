"""The log grammar that a manifest holds, of any version that has written one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from orchestrator.logs import UNITS, LogGrammar
from orchestrator.logs.metrics import metric_of
from orchestrator.plan import RunSpec

__all__ = ["grammar_of"]


def grammar_of(log: Mapping[str, Any], spec: RunSpec) -> LogGrammar:
    """Return a recorded grammar for the options of a run. Raises KeyError, TypeError or ValueError for what is none."""
    values: dict[str, Any] = {field.name: log[field.name] for field in fields(LogGrammar) if field.name in log}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if isinstance(values.get("readings"), str):  # written by an earlier version
        values["readings"] = (values["readings"],) if values["readings"] else ()
    values["metrics"] = tuple(map(metric_of, values.get("metrics", ())))
    grammar = LogGrammar(**values).with_options(spec.options)
    named = (*grammar.units.values(), *grammar.summed_over.values())
    texts = (grammar.nodes, grammar.scope, grammar.thousands, grammar.prefix)
    lines = (grammar.rank, grammar.rank_parts, grammar.closing)
    patterns, files = (*grammar.patterns, *grammar.readings), (*grammar.files, *grammar.rank_files, *grammar.nccl_files)
    if not set(grammar.units.values()) <= set(UNITS):
        raise ValueError("framework.log.units")
    if not all(isinstance(text, str) for text in (*texts, *lines, *patterns, *named, *files)):
        raise TypeError("framework.log")
    if not all(suffix and type(factor) in (int, float) and factor > 0 for suffix, factor in grammar.suffixes.items()):
        raise TypeError("framework.log.suffixes")
    return grammar

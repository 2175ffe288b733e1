"""The log grammar that a manifest holds, of any version that has written one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from orchestrator.logs import UNITS, Agreement, Header, LogGrammar
from orchestrator.logs.metrics import metric_of
from orchestrator.plan import RunSpec

__all__ = ["grammar_of"]


def grammar_of(log: Mapping[str, Any], spec: RunSpec) -> LogGrammar:
    """Return a recorded grammar for the options of a run. Raises KeyError, TypeError or ValueError
    for what is none.
    """
    values: dict[str, Any] = {
        field.name: log[field.name] for field in fields(LogGrammar) if field.name in log
    }
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    if isinstance(values.get("readings"), str):  # written by an earlier version
        values["readings"] = (values["readings"],) if values["readings"] else ()
    values["metrics"] = tuple(map(metric_of, values.get("metrics", ())))
    values["headers"] = tuple(
        Header(entry["line"], entry["factors"]) for entry in values.get("headers", ())
    )
    values["agreements"] = tuple(map(_agreement_of, values.get("agreements", ())))
    grammar = LogGrammar(**values).with_options(spec.options)
    named = (*grammar.units.values(), *grammar.summed_over.values())
    texts = (grammar.nodes, grammar.scope, grammar.thousands, grammar.prefix)
    lines = (grammar.rank, grammar.rank_parts, grammar.closing, grammar.rank_list, grammar.end)
    headers = tuple(header.line for header in grammar.headers)
    patterns = (
        *grammar.patterns,
        *grammar.readings,
        *grammar.refuse,
        *grammar.confirm,
        *grammar.facts,
        *headers,
    )
    files = (*grammar.files, *grammar.rank_files, *grammar.nccl_files)
    if not set(grammar.units.values()) <= set(UNITS):
        raise ValueError("framework.log.units")
    if not all(isinstance(text, str) for text in (*texts, *lines, *patterns, *named, *files)):
        raise TypeError("framework.log")
    if not all(
        suffix and type(factor) in (int, float) and factor > 0
        for suffix, factor in grammar.suffixes.items()
    ):
        raise TypeError("framework.log.suffixes")
    if not all(
        type(factor) in (int, float)
        for header in grammar.headers
        for factor in header.factors.values()
    ):
        raise TypeError("framework.log.headers")
    if type(grammar.micro_batches) is not int or grammar.micro_batches < 1:
        raise ValueError("framework.log.micro_batches")
    return grammar


def _agreement_of(content: Mapping[str, Any]) -> Agreement:
    value, of, over = content["value"], tuple(content["of"]), tuple(content["over"])
    factor, within = float(content["factor"]), float(content["within"])
    if not all(isinstance(name, str) for name in (value, *of, *over)) or within < 1:
        raise TypeError("framework.log.agreements")
    return Agreement(value, of, over, factor, within)

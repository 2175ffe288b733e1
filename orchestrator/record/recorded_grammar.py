"""The log grammar that a manifest holds, of any version that has written one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.documents import Invalid, read
from orchestrator.logs import UNITS, LogGrammar
from orchestrator.logs.metrics import metric_of
from orchestrator.plan import RunSpec


def grammar_of(log: Mapping[str, Any], spec: RunSpec) -> LogGrammar:
    """Return a recorded grammar for the options of a run. Raises Invalid, KeyError or TypeError."""
    values = {**log, "metrics": tuple(map(metric_of, log.get("metrics", ())))}
    if isinstance(log.get("readings"), str):  # written by an earlier version
        values["readings"] = tuple(filter(None, [log["readings"]]))
    grammar = read(LogGrammar, values).with_options(spec.options)
    if not set(grammar.units.values()) <= set(UNITS):
        raise Invalid(f"expected units among {', '.join(UNITS)}", "log", "units")
    if not all(suffix and factor > 0 for suffix, factor in grammar.suffixes.items()):
        raise Invalid("expected factors above 0", "log", "suffixes")
    if any(agreement.within < 1 for agreement in grammar.agreements):
        raise Invalid("expected ratios of at least 1", "log", "agreements")
    if type(grammar.micro_batches) is not int or grammar.micro_batches < 1:
        raise Invalid("expected a whole number ≥ 1", "log", "micro_batches")
    return grammar

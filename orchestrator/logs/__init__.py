"""Parsing of logs: from bytes to steps, NCCL's choices and known failures.

May use `inventory`. Pure: nothing in this package opens a file.
"""

from orchestrator.logs.columns import count_runs, last_attempt
from orchestrator.logs.grammar import (
    DTYPES,
    FUNCTIONS,
    SETUP_LOG,
    SIZES,
    UNITS,
    Agreement,
    Header,
    LogGrammar,
    is_multiplier,
    is_named,
    units_hint,
)
from orchestrator.logs.steps import RankAggregate, StepSample

__all__ = [
    "DTYPES",
    "FUNCTIONS",
    "SETUP_LOG",
    "SIZES",
    "UNITS",
    "Agreement",
    "Header",
    "LogGrammar",
    "RankAggregate",
    "StepSample",
    "count_runs",
    "is_multiplier",
    "is_named",
    "last_attempt",
    "units_hint",
]

"""Parsing of logs: from bytes to steps, NCCL's choices and known failures.

May use `inventory`. Pure: nothing in this package opens a file.
"""

from orchestrator.logs.columns import last_attempt
from orchestrator.logs.grammar import SETUP_LOG, UNITS, LogGrammar, is_named
from orchestrator.logs.steps import RankAggregate, StepSample

__all__ = ["SETUP_LOG", "UNITS", "LogGrammar", "RankAggregate", "StepSample", "is_named", "last_attempt"]

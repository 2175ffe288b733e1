"""Parsing of logs: from bytes to steps, NCCL's choices and known failures.

May use `inventory`. Pure: nothing in this package opens a file.
"""

from orchestrator.logs.failures import diagnose
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.parse import Parsed, parse
from orchestrator.logs.steps import RankAggregate, StepSample

__all__ = ["LogGrammar", "Parsed", "RankAggregate", "StepSample", "diagnose", "parse"]

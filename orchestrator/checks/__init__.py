"""Turn the facts of nodes into checks: `orch check` prints them, and a failed one refuses a bench.

May use `inventory` and `plan`. Pure: `orchestrator.nodes` captures the facts.
"""

from orchestrator.checks.check import Check
from orchestrator.checks.cross_node import same_machine
from orchestrator.checks.differences import by_value
from orchestrator.checks.facts import parse_facts
from orchestrator.checks.infiniband import split_names
from orchestrator.checks.judge import unfit

__all__ = ["Check", "by_value", "same_machine", "parse_facts", "split_names", "unfit"]

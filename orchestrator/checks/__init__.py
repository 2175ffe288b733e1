"""Turn the facts of nodes into checks: `orch check` prints them, and a failed one refuses a bench.

May use `inventory` and `plan`. Pure: `orchestrator.nodes` captures the facts.
"""

from orchestrator.checks.among import same_machine
from orchestrator.checks.check import Check
from orchestrator.checks.differences import by_value, differences
from orchestrator.checks.facts import told_facts
from orchestrator.checks.judge import among, judge, unfit

__all__ = ["Check", "among", "by_value", "differences", "judge", "same_machine", "told_facts", "unfit"]

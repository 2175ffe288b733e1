"""Turn the facts of nodes into checks: `orch check` prints them, and a failed one refuses a bench.

May use `inventory` and `plan`. Pure: `orchestrator.nodes` captures the facts.
"""

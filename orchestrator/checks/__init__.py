"""Facts of nodes to checks: what `orch check` prints and a bench is refused for.

May use `inventory` and `plan`. Pure: the facts are captured by `orchestrator.nodes`.
"""

"""Hangs: explain in one sentence why a run does not go on, from every node's observations of its
ranks.
"""

from orchestrator.feature import Feature

FEATURE = Feature(
    group="While it runs",
    commands={"stacks": {"stacks": "Show what every rank of the current run is doing."}},
    provides={"section": "section", "remarks": "section", "run_monitor": "watch"},
)

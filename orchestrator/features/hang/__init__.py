"""Hangs: from what every node saw of its ranks to one sentence on why a run does not go on."""

from orchestrator.feature import Feature

FEATURE = Feature(
    group="While it runs",
    commands={"stacks": {"stacks": "Show what every rank of the current run is doing."}},
    provides={"section": "section", "remarks": "section", "run_monitor": "watch"},
)

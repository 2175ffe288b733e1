"""Published tables of others: recompute them from their own runs, read logs by their rules, compare
a bench with them.
"""

from orchestrator.feature import Feature

FEATURE = Feature(
    group="Set up",
    commands={"command": {"published": "Recompute published tables from their runs."}},
    provides={
        "reference": "against",
        "log_rules": "log_trees",
        "folder_check": "folders",
        "file_schema": "schema",
    },
)

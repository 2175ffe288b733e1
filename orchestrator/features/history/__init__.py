"""The past of a project or a store: every configuration of every bench, and acceptances of the same
hosts over time.
"""

from orchestrator.feature import Feature

FEATURE = Feature(
    group="Compare",
    commands={"command": {"history": "List every configuration of every bench."}},
)

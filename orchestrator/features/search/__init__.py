"""Search round by round: settings that make one shape faster, and the difference between two
benches that explains a change.
"""

from orchestrator.feature import Feature

FEATURE = Feature(
    group="Compare",
    commands={
        "tune": {"tune": "Search for settings that make one shape faster."},
        "bisect": {"bisect": "Find which difference between two benches explains a change."},
    },
    provides={"bench_kind": "kinds"},
)

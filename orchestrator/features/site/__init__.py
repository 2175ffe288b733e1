"""All benches of a project as one site: what overviews show of each, the files, and the server that
shows the same live.
"""

from orchestrator.feature import Feature

FEATURE = Feature(
    group="Keep and share",
    commands={
        "command": {"site": "Write a static site of all benches in the project."},
        "serve": {"serve": "Serve that site live, on this machine only."},
    },
)

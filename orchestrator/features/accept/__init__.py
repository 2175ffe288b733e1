"""Acceptance of nodes and links: a suite of benches, its bars, and a certificate."""

from orchestrator.feature import Feature

FEATURE = Feature(
    group="Accept",
    commands={"command": {"accept": "Measure every node and link against the bars of a suite."}},
    provides={"bench_group": "bench_group", "gate": "gate", "past_acceptances": "past"},
)

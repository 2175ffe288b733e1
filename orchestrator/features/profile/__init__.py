"""Traces of extra runs: the share of communication in a step, and of computing beside it."""

from orchestrator.feature import Feature

FEATURE = Feature(provides={"section": "section", "extra_runs": "extra_runs"})

"""Compare two benches: which configurations differ, how certain that is, and the likeliest causes."""

from orchestrator.analysis.compare.benches import Comparison, compare

__all__ = ["Comparison", "compare"]

"""One bench against another: which cells differ, how sure that is, and the likeliest causes."""

from orchestrator.analysis.compare.benches import Comparison, compare

__all__ = ["Comparison", "compare"]

"""Compare two benches: which configurations differ, how certain that is, and the likeliest causes."""

from orchestrator.analysis.compare.benches import (
    By,
    Comparison,
    compare,
    counterparts,
    find_differences,
)

__all__ = ["By", "Comparison", "compare", "counterparts", "find_differences"]

"""Compare a bench with a prediction from separate measurements, and divide the gap to the ideal into parts."""

from orchestrator.analysis.explain.bench import explain_bench
from orchestrator.analysis.explain.prediction import Explanation

__all__ = ["Explanation", "explain_bench"]

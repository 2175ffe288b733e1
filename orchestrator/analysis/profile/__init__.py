"""What the traces of the extra runs of a bench say: the share of communication in a step, and of computing beside it."""

from orchestrator.analysis.profile.bench import Profiled, profiled_bench

__all__ = ["Profiled", "profiled_bench"]

"""A tune against its own default: which candidates are run, and what was proven."""

from orchestrator.analysis.tune.answer import Tuned, tuned
from orchestrator.analysis.tune.state import State, state_of

__all__ = ["State", "Tuned", "state_of", "tuned"]

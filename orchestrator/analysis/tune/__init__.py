"""Search for faster settings than the default: which candidates are run, and which result is verified."""

from orchestrator.analysis.tune.answer import Tuned, tuned
from orchestrator.analysis.tune.state import State, state_of

__all__ = ["State", "Tuned", "state_of", "tuned"]

"""Search for faster settings than the default: which candidates are run, and which result is
verified.
"""

from orchestrator.features.search.halving.answer import Tuned, tuned
from orchestrator.features.search.halving.state import State, state_of

__all__ = ["State", "Tuned", "state_of", "tuned"]

"""Which differences between two benches explain that one is slower: what is run again, and what is
proven by it.
"""

from orchestrator.features.search.bisection.answer import Bisected, bisected
from orchestrator.features.search.bisection.differences import Today, sides
from orchestrator.features.search.record import BisectRecord, Fixed

__all__ = ["BisectRecord", "Bisected", "Today", "Fixed", "bisected", "sides"]

"""Which differences between two benches explain that one is slower: what is run again, and what is proven by it."""

from orchestrator.analysis.bisect.answer import Bisected, bisected
from orchestrator.analysis.bisect.differences import Today, sides
from orchestrator.record.bisect_record import BisectRecord, Fixed

__all__ = ["BisectRecord", "Bisected", "Today", "Fixed", "bisected", "sides"]

"""Why a run does not go on: from what every node saw of its ranks to one sentence."""

from orchestrator.analysis.hang.verdict import Verdict, verdict

__all__ = ["Verdict", "verdict"]

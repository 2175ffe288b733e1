"""Why a run does not go on: from what every node saw of its ranks to one sentence, and the hangs of a bench."""

from orchestrator.analysis.hang.bench import Hang, RankAccount, Suspicion, hangs_of_bench
from orchestrator.analysis.hang.verdict import verdict

__all__ = ["Hang", "RankAccount", "Suspicion", "hangs_of_bench", "verdict"]

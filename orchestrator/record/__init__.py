"""The files of a bench on disk: `runs/`, `.orch/`, seals and archives.

May use `inventory`, `logs` and `plan`.
"""

from orchestrator.record.ownership import Ownership, hold, holder, take
from orchestrator.record.project import Project
from orchestrator.record.rundir import BenchDir, RunDir, latest

__all__ = ["BenchDir", "Ownership", "Project", "RunDir", "holder", "latest", "hold", "take"]

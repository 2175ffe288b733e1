"""Slurm as the way to a host: each command is a step of a job that has the host, by the program
``srun``.

The job exists before, and is not ended here. `Spawners` is the step that keeps runs going when the
step of a connection ends.
"""

from orchestrator.transport.slurm.connection import SrunConnector
from orchestrator.transport.slurm.spawners import Spawners
from orchestrator.transport.slurm.step import job_of

__all__ = ["Spawners", "SrunConnector", "job_of"]

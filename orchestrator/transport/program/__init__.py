"""Channels over a local program that carries a command's streams to a host, as ``ssh`` and ``srun``
do.
"""

from orchestrator.transport.program.channel import Outcome, ProgramChannel

__all__ = ["Outcome", "ProgramChannel"]

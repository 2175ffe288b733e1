"""Channels and connections over local programs that carry a command's streams to a host, as
``ssh``, ``srun`` and ``kubectl`` do.
"""

from orchestrator.transport.program.channel import Outcome, ProgramChannel
from orchestrator.transport.program.transport import ProgramTransport

__all__ = ["Outcome", "ProgramChannel", "ProgramTransport"]

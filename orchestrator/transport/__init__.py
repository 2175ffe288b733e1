"""Connections to one machine, which carry bytes without interpreting them.

May use `inventory`. The inventory names the transport of a host; `connections` makes the
connections of a command. The folders are the transports: `ssh` is paramiko's, `program` is what
those have in common that speak through a local program.
"""

from orchestrator.transport.protocols import Channel, Connector, Result, Transport
from orchestrator.transport.streams import Taker
from orchestrator.transport.trust import Trust

__all__ = ["Channel", "Connector", "Result", "Taker", "Transport", "Trust"]

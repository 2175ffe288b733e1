"""SSH: the one place that makes connections, and the only one that knows fabric and paramiko.

    with closing(connect(host, Trust(store))) as transport:
        result = transport.run(["uname", "-r"], timeout_s=10)

Commands are argument lists, their streams are bytes; lines, text and the node's protocol are other modules' business.
"""

from orchestrator.transport.channel import Channel
from orchestrator.transport.connection import Result, Transport, connect, prepare
from orchestrator.transport.hostkeys import Trust
from orchestrator.transport.quoting import remote_command
from orchestrator.transport.sshconfig import Endpoint

__all__ = ["Channel", "Endpoint", "Result", "Transport", "Trust", "connect", "prepare", "remote_command"]

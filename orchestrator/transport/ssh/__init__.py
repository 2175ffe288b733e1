"""SSH: the one place that makes connections, and the only one that knows fabric and paramiko.

    with closing(connect(host, Trust(store))) as transport:
        result = transport.run(["uname", "-r"], timeout_s=10)

Commands are argument lists, their streams are bytes; lines, text and the node's protocol are other modules' business.
"""

import sys

# Paramiko wants Invoke only to run a `Match exec` of ssh's configuration, for which ssh itself is asked here, and does without
# where there is none. To import it takes a fifth of the start of every command; Fabric does so, where there is a jump host.
if "paramiko" not in sys.modules and "invoke" not in sys.modules:
    sys.modules["invoke"] = None  # type: ignore[assignment]
    import paramiko  # noqa: F401

    del sys.modules["invoke"]

from orchestrator.transport.ssh.channel import Channel  # noqa: E402
from orchestrator.transport.ssh.config import Endpoint  # noqa: E402
from orchestrator.transport.ssh.connection import Result, Transport, connect, prepare  # noqa: E402
from orchestrator.transport.ssh.hostkeys import Trust  # noqa: E402
from orchestrator.transport.ssh.quoting import remote_command  # noqa: E402

__all__ = ["Channel", "Endpoint", "Result", "Transport", "Trust", "connect", "prepare", "remote_command"]

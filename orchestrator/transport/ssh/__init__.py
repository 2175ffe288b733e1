"""SSH: the only package that makes connections and uses fabric and paramiko.

    with closing(connect(host, Trust(store))) as transport:
        result = transport.run(["uname", "-r"], timeout_s=10)

Commands are argument lists and their streams are bytes; other packages handle lines, text and the
node's protocol.
"""

import sys

# Paramiko needs Invoke only for a `Match exec` of ssh's configuration, which `ssh -G` evaluates for
# orch, and works without it. Its import takes a fifth of the start of every command; only Fabric
# imports it, for jump hosts.
if "paramiko" not in sys.modules and "invoke" not in sys.modules:
    sys.modules["invoke"] = None  # type: ignore[assignment]
    import paramiko  # noqa: F401

    del sys.modules["invoke"]

from orchestrator.transport.ssh.channel import Channel  # noqa: E402
from orchestrator.transport.ssh.config import Endpoint  # noqa: E402
from orchestrator.transport.ssh.connection import SshConnector, Transport, connect, prepare  # noqa: E402
from orchestrator.transport.ssh.quoting import remote_command  # noqa: E402

__all__ = [
    "Channel",
    "Endpoint",
    "SshConnector",
    "Transport",
    "connect",
    "prepare",
    "remote_command",
]

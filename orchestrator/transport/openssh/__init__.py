"""SSH through the program ``ssh``, with any log-in that it supports; passwords and codes are asked
for at the terminal.

One connection per host, a master, carries all commands (``ControlMaster``): the user's, if it is
alive, or one that orch starts and ends. This package starts programs and reads their output; it
opens no connection itself.
"""

from orchestrator.transport.openssh.connection import OpensshConnector

__all__ = ["OpensshConnector"]

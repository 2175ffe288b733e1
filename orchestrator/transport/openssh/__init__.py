"""SSH through the program ``ssh``: whatever it can log in with, it carries; passwords and codes are
asked for at the terminal.

One connection per host, a master, carries all commands (``ControlMaster``): a live one of the user,
or one that orch starts and ends. This package starts programs and reads what they print; it opens
no connection itself.
"""

from orchestrator.transport.openssh.connection import OpensshConnector

__all__ = ["OpensshConnector"]

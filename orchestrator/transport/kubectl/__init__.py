"""Kubernetes as the way to a host: each command is run in a pod by the program ``kubectl``.

The image needs a shell and Python, and no SSH server. What a command has started goes on when its
kubectl ends, as over ssh: supervisor and lease end it.
"""

from orchestrator.transport.kubectl.connection import KubectlConnector

__all__ = ["KubectlConnector"]

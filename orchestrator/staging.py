"""Bringing to a node what all runs of a framework need there."""

from __future__ import annotations

from orchestrator.framework import payload_path
from orchestrator.library import FrameworkFolder
from orchestrator.node import Node, Upload

__all__ = ["stage_payload"]


def stage_payload(node: Node, folder: FrameworkFolder) -> int:
    """Bring the runner and the framework's payload to a node, named by digest. Returns the bytes that had to be sent."""
    digests = folder.payload_digests
    files = [Upload(payload_path(name, digests[name]), content) for name, content in folder.payload.items()]
    return node.put(files, timeout_s=60)

"""Bringing to a node what all runs of a framework need there."""

from __future__ import annotations

from orchestrator.framework import payload_path
from orchestrator.library import FrameworkFolder
from orchestrator.node import Node, Upload

__all__ = ["stage_payload"]


def stage_payload(node: Node, folder: FrameworkFolder) -> int:
    """Bring the runner and the framework's payload to a node as one set, named by its digest.

    Returns the bytes that had to be sent: what the node holds of it in another set is copied there.
    """
    digest = folder.payload_digest
    files = [
        Upload(payload_path(name, digest), content, elsewhere=payload_path(name, "*"))
        for name, content in folder.payload.items()
    ]
    return node.put(files, timeout_s=60)

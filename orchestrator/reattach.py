"""A run found again after its line broke: a new line to its keeper, or the record that it left, or the end of what it left.

This runs beside the watch loop, which decides by the silence alone when a node is lost; whatever is found here goes to it as an
event like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from orchestrator.cluster import Cluster
from orchestrator.collect import exit_record
from orchestrator.errors import OrchError, RunError, TransportError
from orchestrator.peer import Peer

__all__ = ["Search"]

_PAUSE_S = 0.2
_HELLO_S = 2.0


class Search:
    """The search for one node's keeper, from the moment at which its line was lost."""

    def __init__(
        self, cluster: Cluster, peer: Peer, run_id: str, ask_s: float, deliver: Callable[[dict[str, Any]], None]
    ) -> None:
        self.cluster = cluster
        self.peer = peer
        self.name = peer.line.host.name
        self.run_id = run_id
        self.ask_s = ask_s
        self.deliver = deliver
        self.lost_at = time.monotonic()

    def run(self) -> None:
        """Try until the keeper is found, its end is known, or the watch loop has given the node up."""
        while not self.peer.over:
            try:
                line = self.cluster.reconnect(self.name).keeper(self.run_id, "", start=False, timeout_s=_HELLO_S)
            except TransportError as error:
                if error.kind == "node_lost" and self.name in self.cluster.nodes and self._without_keeper():
                    return
                time.sleep(_PAUSE_S)
                continue
            except OrchError as error:
                self.peer.error = error
                return
            self.deliver({**line.hello, "event": "attached", "line": line, "at": time.monotonic()})
            return

    def _without_keeper(self) -> bool:
        """The node answers and no keeper does: take the exit record that it left, or end what it left running."""
        node = self.cluster.nodes[self.name]
        try:
            record, alive = exit_record(node, self.run_id, timeout_s=self.ask_s)
            if alive:
                return False  # it is there and slow to answer; the next try may find it
            if record is not None:
                self.deliver({"event": "ended", "record": record, "line": self.peer.line, "at": time.monotonic()})
                return True
            node.ask("stop", run=self.run_id, grace_s=1.0, reason="its keeper died", timeout_s=self.ask_s)
        except OrchError:
            return False
        message = "the node runner was killed; the ranks it left were ended"
        error = RunError(message, kind="node_lost", host=self.name, run_id=self.run_id, phase="watch")
        self.peer.give_up(error, self.lost_at, None)
        return True

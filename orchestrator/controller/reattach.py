"""A run found again on a node: a line to its keeper, or the record that it left, or what it has become.

`Reattachment` does so for a line that broke, while the watch loop decides by the silence alone when a node is lost; whatever
is found goes to it as an event like any other. `find` does so once, for a controller that takes over a run from a dead one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.controller.peer import Peer
from orchestrator.errors import OrchError, RunError, TransportError
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.collect import left_behind
from orchestrator.nodes.conversation import KeeperLine
from orchestrator.nodes.node import Node
from orchestrator.record.node_record import ExitRecord

__all__ = ["Reattachment", "Trace", "ask_beside", "find"]

_PAUSE_S = 0.2
_HELLO_S = 2.0
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True)
class Trace:
    """What one node still has of a run.

    ``state``: nothing (never heard of it, or nothing was started), running (there is a ``line`` to its keeper), ended (there is
    its ``record``), or broken (it was started, and neither a keeper nor a record is left).
    """

    state: str
    line: KeeperLine | None = None
    record: ExitRecord | None = None


def find(node: Node, run_id: str, *, timeout_s: float) -> Trace:
    """Return what a node still has of a run. A keeper that has started nothing is let go, and goes."""
    deadline = time.monotonic() + _LEAVE_S
    while True:
        left = left_behind(node, run_id, timeout_s=timeout_s)
        if left is None:
            return Trace("nothing")
        if left.record is not None:
            return Trace("ended", record=left.record)
        if not left.alive:
            return Trace("broken" if left.started else "nothing")
        try:
            line = node.keeper(run_id, start=False, timeout_s=_HELLO_S)
        except TransportError as error:
            if error.kind != "node_lost" or not node.transport.alive:
                raise
        else:
            if line.hello["state"] in ("running", "stopping"):
                return Trace("running", line)
            # Without a go-word a keeper leaves with its last line, as one does whose run is over.
            line.send("bye")
            line.close()
        if time.monotonic() > deadline:
            message = f"its node runner neither answers nor leaves within {_LEAVE_S:g} s"
            raise RunError(message, kind="node_busy", host=node.host.name, run_id=run_id, hint="orch cancel ends it")
        time.sleep(_PAUSE_S)


def ask_beside(cluster: Cluster, peer: Peer) -> None:
    """While a node is silent, ask its server for a greeting on fresh connections, and note when one came.

    A line that lost several packets in a row waits twice as long before each further try; a fresh one does not. So a node that
    greets is there, and may be given the benefit of the doubt for a moment. A greeting that comes after the node has answered
    is none of the next silence.
    """
    silent_since = peer.last_answer

    def doubted() -> bool:
        return not peer.over and peer.last_answer == silent_since

    while doubted() and peer.greeted_at < silent_since:
        node = cluster.nodes.get(peer.name)
        with suppress(TransportError):
            if node is not None and node.transport.greets(doubted) and doubted():
                peer.greeted_at = time.monotonic()
        time.sleep(_PAUSE_S)
    peer.asking = False


class Reattachment:
    """The search for one node's keeper, from the moment at which its line was lost."""

    def __init__(
        self, cluster: Cluster, peer: Peer, run_id: str, ask_s: float, deliver: Callable[[dict[str, Any]], None]
    ) -> None:
        self.cluster = cluster
        self.peer = peer
        self.name = peer.name
        self.run_id = run_id
        self.ask_s = ask_s
        self.deliver = deliver
        self.lost_at = time.monotonic()

    def run(self) -> None:
        """Try until the keeper is found, its end is known, or the watch loop has given the node up."""
        while not self.peer.over:
            try:
                line = self.cluster.reconnect(self.name).keeper(self.run_id, start=False, timeout_s=_HELLO_S)
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
            left = left_behind(node, self.run_id, timeout_s=self.ask_s)
            if left is not None and left.alive:
                return False  # it is there and slow to answer; the next try may find it
            if left is not None and left.record is not None:
                self.deliver({"event": "left_behind", "record": left.record, "line": self.peer.line, "at": time.monotonic()})
                return True
            if left is not None and left.boot_id and self.peer.boot_id not in ("", left.boot_id):
                # Process numbers of the boot before mean nothing now; there is nothing to end. It was gone before its line was:
                # ranks elsewhere that lost their peer may have ended by then, and are not the cause.
                self._give_up("node_rebooted", "it was started again in the middle of the run", self.peer.last_answer)
                return True
            node.ask("stop", run=self.run_id, grace_s=1.0, reason="its keeper died", timeout_s=self.ask_s)
        except OrchError:
            return False
        self._give_up("node_lost", "the node runner was killed; the ranks it left were ended", self.lost_at)
        return True

    def _give_up(self, kind: str, message: str, at: float) -> None:
        error = TransportError if kind == "node_rebooted" else RunError
        self.peer.give_up(error(message, kind=kind, host=self.name, run_id=self.run_id, phase="watch"), at, None)

"""Finding a run on a node again: a connection to its supervisor, its exit record, or another trace
of it.

`Reattachment` reconnects after a connection was lost, while the watch loop decides only by the
silence when a node is lost; the result reaches the watch loop as an event. `find` asks once, for a
controller that takes over a run from a dead one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.controller.peer import Peer
from orchestrator.errors import OrchError, RunError, TransportError
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.collect import left_behind
from orchestrator.nodes.conversation import SupervisorLine
from orchestrator.nodes.leftovers import Leftovers
from orchestrator.nodes.node import Node
from orchestrator.record.node_record import ExitRecord

_PAUSE_S = 0.2
_HELLO_S = 2.0
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a run on one node.

    ``state`` is nothing (unknown there, or not started), running (``line`` connects to its
    supervisor), ended (``record`` is its exit record), or broken (it was started, and neither a
    supervisor nor an exit record is left).
    """

    state: str
    line: SupervisorLine | None = None
    record: ExitRecord | None = None
    boot_id: str = ""


def find(node: Node, run_id: str, *, timeout_s: float) -> Trace:
    """Return the trace of a run on a node. A supervisor that has started nothing is dismissed and
    exits.
    """
    deadline = time.monotonic() + _LEAVE_S
    while True:
        left = left_behind(node, run_id, timeout_s=timeout_s)
        if left is None:
            return Trace("nothing")
        if left.record is not None:
            return Trace("ended", record=left.record)
        if not left.alive:
            return Trace("broken" if left.started else "nothing", boot_id=left.boot_id)
        try:
            line = node.supervisor(run_id, start=False, timeout_s=_HELLO_S)
        except TransportError as error:
            if error.kind != "node_lost" or not node.transport.alive:
                raise
        else:
            if line.hello["state"] in ("running", "stopping", "closing"):
                return Trace("running", line)
            # Without a start signal, or after its run, a supervisor exits when its last connection
            # closes.
            line.send("bye")
            line.close()
        if time.monotonic() > deadline:
            message = f"its node runner neither answers nor exits within {_LEAVE_S:g} s"
            raise RunError(
                message,
                kind="node_busy",
                host=node.host.name,
                run_id=run_id,
                hint="orch cancel ends it",
            )
        time.sleep(_PAUSE_S)


def ask_beside(cluster: Cluster, peer: Peer) -> None:
    """While a node is silent, ask its SSH server for a greeting on new connections, and record when
    one came.

    A connection that lost several packets in a row doubles its wait before each retransmission; a
    new one does not. A node that sends a greeting is alive and is given some more time. A greeting
    that comes after the node has answered does not count for its next silence.
    """
    silent_since = peer.last_answer

    def still_silent() -> bool:
        return not peer.over and peer.last_answer == silent_since

    while still_silent() and peer.greeted_at < silent_since:
        node = cluster.nodes.get(peer.name)
        with suppress(TransportError):
            if node is not None and node.transport.greets(still_silent) and still_silent():
                peer.greeted_at = time.monotonic()
        time.sleep(_PAUSE_S)
    peer.asking = False


class Reattachment:
    """The search for the supervisor of one node, from the moment at which its connection was lost."""

    def __init__(
        self,
        cluster: Cluster,
        peer: Peer,
        run_id: str,
        ask_s: float,
        deliver: Callable[[dict[str, Any]], None],
    ) -> None:
        self.cluster = cluster
        self.peer = peer
        self.name = peer.name
        self.run_id = run_id
        self.ask_s = ask_s
        self.deliver = deliver
        self.lost_at = time.monotonic()

    def run(self) -> None:
        """Try until the supervisor is found, its end is known, or the watch loop has given the node
        up.

        A server with another host key is not the node, and a pod that is deleted does not come back:
        it is reported at once and not contacted again.
        """
        while not self.peer.over:
            try:
                line = self.cluster.reconnect(self.name).supervisor(
                    self.run_id, start=False, timeout_s=_HELLO_S
                )
            except TransportError as error:
                if error.is_final:
                    # The node was last itself when it last answered: ranks that lost their peer may
                    # have ended since then.
                    error.run_id, error.phase = self.run_id, "watch"
                    self._give_up(error, self.peer.alive_at)
                    return
                if (
                    error.kind == "node_lost"
                    and self.name in self.cluster.nodes
                    and self._without_supervisor()
                ):
                    return
                time.sleep(_PAUSE_S)
                continue
            except OrchError as error:
                self._give_up(error, self.lost_at)
                return
            self._deliver("attached", {**line.hello, "line": line})
            return

    def _without_supervisor(self) -> bool:
        """Handle a node that answers without a supervisor: take its exit record, or end the
        processes that it left running.

        Return False if the search has to continue.
        """
        node = self.cluster.nodes[self.name]
        place = {"host": self.name, "run_id": self.run_id, "phase": "watch"}
        try:
            left = left_behind(node, self.run_id, timeout_s=self.ask_s)
            if left is not None and left.alive:
                return False  # it is alive but slow to answer; the next attempt may reach it
            if left is not None and left.record is not None:
                self._deliver("left_behind", {"record": left.record})
                return True
            if left is not None and left.boot_id and self.peer.boot_id not in ("", left.boot_id):
                # After a reboot the recorded process ids are meaningless, and nothing is left to
                # end. The node went down before its connection was lost: ranks that lost their peer
                # may have ended in between, and are not the cause.
                self._give_up(
                    TransportError("it rebooted during the run", kind="node_rebooted", **place),
                    self.peer.alive_at,
                )
                return True
            answer = node.ask(
                "stop",
                run=self.run_id,
                grace_s=1.0,
                reason="its supervisor died",
                timeout_s=self.ask_s,
            )
            remains = Leftovers.of(answer, self.name)
        except OrchError:
            return False
        message = f"the node runner was killed; {remains.words or 'its remaining ranks were ended'}"
        self._give_up(RunError(message, kind="node_lost", **place), self.lost_at)
        return True

    def _give_up(self, error: OrchError, since: float) -> None:
        self._deliver("given_up", {"error": error, "since": since})

    def _deliver(self, event: str, fields: Mapping[str, Any]) -> None:
        self.deliver({"line": self.peer.line, **fields, "event": event, "at": time.monotonic()})

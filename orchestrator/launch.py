"""One run on all its nodes at once: stage, arm, go, watch, stop, and the proof that nothing is left.

Nothing starts anywhere before every node is armed. Beats with answers decide who is alive, not the connection: a broken line is
re-made and re-attached while the run goes on. The first failure stops everything, and the verdict names the first cause, by
the nodes' own clocks corrected with offsets that were measured over the same lines.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster import Cluster
from orchestrator.errors import Faults, Interrupted, OrchError, RunError, TransportError
from orchestrator.fanout import each, each_or_raise
from orchestrator.library import FrameworkFolder
from orchestrator.node import KeeperLine, Node, Upload, refusal
from orchestrator.peer import Interrupt, Limits, Peer, close_seconds, first_cause
from orchestrator.reattach import Search
from orchestrator.render import NodePlan, Plan, payload_path

__all__ = ["Interrupt", "Launch", "Limits", "Outcome", "stage_payload"]

_SYNC_ROUNDS = 6
_TICK_S = 0.1
_UNSTOPPED_S = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: finished, failed, lost or interrupted, with the first cause, the record of the start, and ``rivals``,
    failures of ranks that may have come before that cause, as far as clocks can tell."""

    state: str
    error: OrchError | None
    start: Mapping[str, Any] | None
    rivals: tuple[OrchError, ...] = ()


def stage_payload(node: Node, folder: FrameworkFolder) -> int:
    """Bring the runner and the framework's payload to a node, named by digest. Returns the bytes that had to be sent."""
    digests = folder.payload_digests
    files = [Upload(payload_path(name, digests[name]), content) for name, content in folder.payload.items()]
    return node.put(files, timeout_s=60)


class Launch:
    """One run from stage to the last proof. ``journal(event, **fields)`` records transitions, ``observe`` shows progress."""

    def __init__(
        self,
        plan: Plan,
        folder: FrameworkFolder,
        cluster: Cluster,
        *,
        limits: Limits,
        interrupt: Interrupt,
        owner: Mapping[str, Any],
        journal: Callable[..., None],
        observe: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.cluster = cluster
        self.limits = limits
        self.interrupt = interrupt
        self.owner = owner
        self.journal = journal
        self.observe = observe
        self.inbox: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self.peers: dict[str, Peer] = {}
        self.hosts = [node.slot.host for node in plan.nodes]
        self.beats = 0
        self.stopping_since: float | None = None
        self.stop_reason = ""
        self.deadline = float("inf")
        self.released = False
        self.finishing = False
        self.tail_offset = 0

    def run(self) -> Outcome:
        """Run it. Raises OrchError where nothing was started; any later trouble is in the outcome."""
        try:
            each_or_raise(self.hosts, self._stage)
            self.journal("staged")
            self._arm()
            self._synchronise()
            start = self._go()
            self._watch()
        finally:
            for peer in self.peers.values():
                peer.line.send("bye")
                peer.line.close()
            if not self.released:
                each(self.hosts, self._drop)
        return Outcome(*self._verdict(), start, close_seconds(self.peers, self.plan.run_id))

    # -- stage, arm, go

    def _stage(self, name: str) -> None:
        node = self.cluster.nodes[name]
        stage_payload(node, self.folder)
        base = f"runs/{self.plan.run_id}"
        node.put(
            [Upload(f"{base}/{file.path}", file.content.encode(), file.mode) for file in self._plan_of(name).files],
            timeout_s=60,
        )

    def _drop(self, name: str) -> None:
        """Take back what was staged for a run that never started, its variables above all."""
        self.cluster.nodes[name].ask("drop", run=self.plan.run_id, finished=False, timeout_s=self.limits.ask_s)

    def _plan_of(self, name: str) -> NodePlan:
        return next(node for node in self.plan.nodes if node.slot.host == name)

    def _arm(self) -> None:
        noderun = payload_path("noderun.py", self.plan.payload["noderun.py"])

        def open_line(name: str) -> KeeperLine:
            return self.cluster.nodes[name].keeper(self.plan.run_id, noderun, start=True, timeout_s=self.limits.arm_s)

        lines, errors = each(self.hosts, open_line)
        self.peers = {name: Peer(line) for name, line in lines.items()}
        if errors:
            raise Faults(list(errors.values()))
        for name, peer in self.peers.items():
            peer.line.start(lambda host, event: self.inbox.put((host, event)))
            peer.line.send("arm", **self._order(name))
        self._wait(lambda peer: peer.armed, self.limits.arm_s, "arm")
        self.journal("armed")

    def _order(self, name: str) -> dict[str, Any]:
        node = self._plan_of(name)
        return {
            "run_id": self.plan.run_id,
            "node_rank": node.slot.node_rank,
            "argv": list(node.argv),
            "files": {file.path: hashlib.sha256(file.content.encode()).hexdigest() for file in node.files},
            "ports": list(node.ports),
            # What another node's launcher starts here is no descendant of the keeper; it is known by the run's marker.
            "by_marker": self.plan.launch == "first_node",
            "lease_s": self.limits.lease_s,
            "limit_s": self.plan.spec.timeout_s,
            "grace_s": self.limits.grace_s,
            "output_limit_bytes": self.limits.output_bytes,
            "owner": {**self.owner, "run_id": self.plan.run_id},
        }

    def _wait(self, ready: Callable[[Peer], bool], limit_s: float, phase: str) -> None:
        """Take events until every peer is ready. Raises Faults of every refusal, or start_timeout naming who is late."""
        deadline = time.monotonic() + limit_s
        while not all(ready(peer) for peer in self.peers.values()):
            self._take_events(0.05)
            errors = [peer.error for peer in self.peers.values() if peer.error]
            if errors:
                # Others may be about to refuse for the same reason; name them together.
                self._take_events(0.1)
                raise Faults([peer.error for peer in self.peers.values() if peer.error])
            if self.interrupt.signal:
                raise Interrupted(self.interrupt.signal, "stopped before the start; nothing was started", phase=phase)
            if time.monotonic() > deadline:
                late = [name for name, peer in self.peers.items() if not ready(peer)]
                message = f"expected every node ready within {limit_s:g} s, this one was not; nothing was started"
                raise Faults([RunError(message, kind="start_timeout", host=name, phase=phase) for name in late])

    def _synchronise(self) -> None:
        """Measure each node's clock offset over its line; the quickest of a few round trips bounds the error best."""
        for _ in range(_SYNC_ROUNDS):
            self._beat(tail=False)
            number = self.beats
            self._wait(lambda peer, number=number: number not in peer.sent, 5.0, "arm")  # type: ignore[misc]

    def _go(self) -> dict[str, Any] | None:
        """Release every node for one instant, named on its own clock; return the record of who started when.

        From here on nothing is raised: what has been released is watched to its end. None where not every node started.
        """
        slowest = max(peer.round_trip_s for peer in self.peers.values())
        instant = time.monotonic() + max(0.03 + 0.002 * len(self.peers), 4 * slowest)
        self.released = True
        for peer in self.peers.values():
            peer.line.send("go", at=instant + peer.offset_s)
        deadline = time.monotonic() + self.limits.arm_s
        while any(peer.started is None and not peer.over for peer in self.peers.values()) and not self.interrupt.signal:
            self._take_events(0.05)
            if time.monotonic() > deadline:
                break
        late = [name for name, peer in self.peers.items() if peer.started is None]
        if late:
            if not self.interrupt.signal:
                message = f"expected a start within {self.limits.arm_s:g} s of the release, none was told"
                for name in late:
                    error = RunError(message, kind="start_timeout", host=name, run_id=self.plan.run_id, phase="go")
                    self.peers[name].error = self.peers[name].error or error
            return None
        starts = {name: (peer.started or 0.0) - peer.offset_s for name, peer in self.peers.items()}
        bounds = sorted(peer.round_trip_s / 2 for peer in self.peers.values())
        start = {
            "skew_s": max(starts.values()) - min(starts.values()),
            "bound_s": sum(bounds[-2:]) if len(bounds) > 1 else 0.0,
            "hosts": {
                name: {"started_mono_s": peer.started, "offset_s": peer.offset_s, "bound_s": peer.round_trip_s / 2}
                for name, peer in self.peers.items()
            },
        }
        self.journal("started", skew_s=start["skew_s"], bound_s=start["bound_s"])
        self.observe("started", start)
        return start

    # -- watch and stop

    def _watch(self) -> None:
        """Beat, listen and judge until every node has ended or is given up."""
        beat_due = judged_from = turn = time.monotonic()
        self.deadline = turn + self.plan.spec.timeout_s + self.limits.grace_s + _UNSTOPPED_S
        for peer in self.peers.values():
            peer.last_answer = max(peer.last_answer, judged_from)
        while not all(peer.over for peer in self.peers.values()):
            if turn >= beat_due:
                self._beat(tail=True)
                beat_due = turn + self.limits.beat_s
            self._take_events(_TICK_S)
            before, turn = turn, time.monotonic()
            if turn - before > 1.0:
                # We slept, not they: a stopped or suspended controller must not blame the nodes for its own silence.
                judged_from = turn
            if turn > self.deadline:
                self._stop_all(f"run_timeout: not over {_UNSTOPPED_S:g} s after the time limit that the nodes keep")
            for name, peer in self.peers.items():
                if not peer.over:
                    self._judge(name, peer, judged_from)
            if self.interrupt.signal:
                self._stop_all("interrupted: the controller got a signal")
            if any(peer.causes or peer.error for peer in self.peers.values()):
                error = first_cause(self.peers, self.plan.run_id)[1]
                self._stop_all(f"another node failed first: {error.host if error else ''}")
            self._finish_waiting()
            self._give_up_late_stops()

    def _judge(self, name: str, peer: Peer, judged_from: float) -> None:
        silence = time.monotonic() - max(peer.last_answer, judged_from)
        if silence > self.limits.lost_s:
            error = TransportError(
                f"no sign of life for {silence:.1f} s; it stops the run by itself within {self.limits.lease_s:g} s",
                kind="node_lost",
                host=name,
                run_id=self.plan.run_id,
                phase="watch",
                hint="when it is back, orch collect brings its logs home",
            )
            peer.give_up(error, peer.last_answer, self.stopping_since)

    def _stop_all(self, reason: str) -> None:
        if self.stopping_since is None:
            self.stopping_since = time.monotonic()
            self.stop_reason = reason
            # First the stop: a full disk or a closed terminal must not keep it from the nodes.
            for peer in self.peers.values():
                if not peer.over:
                    peer.line.send("stop", reason=reason)
            self.journal("stopping", reason=reason)
            self.observe("stopping", {"reason": reason})

    def _finish_waiting(self) -> None:
        """Where only the first node starts something, its good end is the end of those that wait."""
        first = self.peers[self.hosts[0]].record
        if self.plan.launch != "first_node" or self.finishing or not first or first["state"] != "finished":
            return
        self.finishing = True
        for peer in self.peers.values():
            if not peer.over:
                peer.line.send("finish")

    def _give_up_late_stops(self) -> None:
        if self.stopping_since is None or time.monotonic() < self.stopping_since + self.limits.grace_s + 5.0:
            return
        for name, peer in self.peers.items():
            if not peer.over:
                peer.error = TransportError(
                    "did not end in time after the stop", kind="node_lost", host=name, run_id=self.plan.run_id, phase="stop"
                )

    def _beat(self, *, tail: bool) -> None:
        """Send one beat to every node that still owes an end; the first node's answer carries the newest log lines."""
        self.beats += 1
        now = time.monotonic()
        for name, peer in self.peers.items():
            if peer.over or peer.attaching:
                continue
            peer.sent[self.beats] = now
            fields: dict[str, Any] = {"n": self.beats}
            if tail and name == self.hosts[0]:
                fields["tail"] = {"file": self.folder.framework.log.files[0], "offset": self.tail_offset}
            peer.line.send("beat", **fields)

    def _take_events(self, wait_s: float) -> None:
        """Wait a moment for events and take in all that came."""
        try:
            host, event = self.inbox.get(timeout=wait_s)
            while True:
                peer = self.peers[host]
                if event["line"] is peer.line or event["event"] == "attached":
                    self._take(host, peer, event)
                host, event = self.inbox.get_nowait()
        except queue.Empty:
            return

    def _take(self, name: str, peer: Peer, event: Mapping[str, Any]) -> None:
        peer.last_answer = event["at"] if event["event"] != "lost" else peer.last_answer
        try:
            self._understand(name, peer, event)
        except (KeyError, TypeError, ValueError) as fault:
            message = f"its runner said something malformed: {fault!r}"
            peer.error = RunError(message, kind="result_invalid", host=name, run_id=self.plan.run_id, phase="watch")

    def _understand(self, name: str, peer: Peer, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "armed":
                peer.armed, peer.boot_id = True, event["boot_id"]
            case "beat":
                self._take_beat(name, peer, event)
            case "started":
                peer.started = event["mono"]
            case "attached":
                self._take_state(peer, event)
            case "rank":
                peer.blame_rank(event, self.stopping_since)
                self.observe("rank", event)
            case "stopping":
                if event["reason"] != self.stop_reason:
                    peer.blame_stop(event["reason"], event["mono"], self.stopping_since)
            case "ended":
                self._take_end(name, peer, event["record"])
            case "error":
                peer.error = refusal(event, name)
            case "lost":
                self._line_lost(name, peer, event["error"])

    def _take_beat(self, name: str, peer: Peer, event: Mapping[str, Any]) -> None:
        sent = peer.sent.pop(event["n"], None)
        if sent is None:
            return
        round_trip = event["at"] - sent
        # Before the start the quickest answer counts; later any quick one, because clocks drift apart in a long run.
        if round_trip < peer.round_trip_s * (1.0 if peer.started is None else 1.5):
            peer.round_trip_s = min(round_trip, peer.round_trip_s)
            peer.offset_s = event["mono"] - (sent + event["at"]) / 2
        if event.get("data") and event["offset"] == self.tail_offset:
            import base64

            data = base64.b64decode(event["data"])
            self.tail_offset += len(data)
            self.observe("log", {"data": data})

    def _take_state(self, peer: Peer, event: Mapping[str, Any]) -> None:
        """Go on over a new line; what happened while there was none stands in the keeper's hello."""
        peer.line, peer.attaching = event["line"], False
        peer.line.start(lambda host, more: self.inbox.put((host, more)))
        self.journal("reattached", host=peer.line.host.name)
        if self.stopping_since is not None:
            peer.line.send("stop", reason=self.stop_reason)
        elif self.finishing:
            peer.line.send("finish")
        if event.get("record"):
            self._take_end(peer.line.host.name, peer, event["record"])

    def _take_end(self, name: str, peer: Peer, record: Mapping[str, Any]) -> None:
        peer.record = record
        self.observe("ended", {"host": name, "state": record["state"]})
        peer.blame_record(record, self.stopping_since, self.stop_reason)

    # -- lost lines

    def _line_lost(self, name: str, peer: Peer, error: OrchError) -> None:
        if peer.over:
            return
        if not self.released:
            peer.error = error
            return
        self.journal("line_lost", host=name, error=str(error))
        peer.attaching = True
        peer.sent.clear()
        search = Search(self.cluster, peer, self.plan.run_id, self.limits.ask_s, lambda event: self.inbox.put((name, event)))
        threading.Thread(target=search.run, name=f"reattach-{name}", daemon=True).start()

    # -- the end

    def _verdict(self) -> tuple[str, OrchError | None]:
        """Return the state of the run and its first cause: what happened earliest, not what was heard first."""
        if self.interrupt.signal:
            message = "stopped by a signal to the controller"
            return "interrupted", Interrupted(self.interrupt.signal, message, run_id=self.plan.run_id, phase="watch")
        return first_cause(self.peers, self.plan.run_id)

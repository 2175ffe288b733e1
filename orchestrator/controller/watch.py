"""The open lines of one run, from armed to ended: beats go out, events come in, and the first failure stops everything.

Beats with answers decide who is alive, not the connection: a broken line is re-made and re-attached while the run goes on. The
verdict names the first cause, by the nodes' own clocks corrected with offsets that were measured over the same lines.
"""

from __future__ import annotations

import base64
import queue
import threading
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from orchestrator.controller.events import LogGrew, NodeEnded, Stopping
from orchestrator.controller.peer import A_NODE_FAILED, Peer, first_cause
from orchestrator.controller.reattach import Reattachment, ask_beside
from orchestrator.controller.stage import Stage
from orchestrator.errors import Faults, Interrupted, OrchError, RunError, TransportError
from orchestrator.nodes.conversation import KeeperLine, refusal
from orchestrator.plan.render import Plan
from orchestrator.record.journal import Event
from orchestrator.record.manifest import Answer, NodeStart, StartRecord
from orchestrator.record.node_record import ExitRecord, RankRecord

__all__ = ["Watch"]

_SYNC_ROUNDS = 6
_TICK_S = 0.1
_LISTENED_S = 0.25
_DOUBT_AFTER_S = 1.2
_UNSTOPPED_S = 20.0
_GOODBYE_S = 1.0


class Watch:
    """All that the controller hears from the nodes of one run, and says to them. ``tail`` names the log that is shown."""

    def __init__(self, plan: Plan, stage: Stage, *, tail: str) -> None:
        self.plan = plan
        self.stage = stage
        self.tail = tail
        self.hosts = [node.slot.host for node in plan.nodes]
        self.peers: dict[str, Peer] = {}
        self.released = False
        # No SimpleQueue: its wait has no end where a signal comes and the handler is not through when the time is over.
        self._inbox: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._beats = 0
        self._stopping_since: float | None = None
        self._stop_reason = ""
        self._finishing = False
        self._tail_offset = 0

    def listen(self, line: KeeperLine) -> None:
        """Take in what comes over a line from now on."""
        line.start(lambda host, event: self._inbox.put((host, event)))

    def close(self) -> None:
        """Say goodbye on every line. Keepers that were not released leave without starting anything."""
        for peer in self.peers.values():
            peer.send("bye")
        until = time.monotonic() + _GOODBYE_S
        for peer in self.peers.values():
            if peer.line:
                goes = not peer.error and (peer.record is not None or not self.released)
                peer.line.close(max(0.0, until - time.monotonic()) if goes else 0.0)

    # -- before the start

    def wait(self, ready: Callable[[Peer], bool], limit_s: float, phase: str) -> None:
        """Take events until every peer is ready. Raises Faults of every refusal, or start_timeout naming who is late."""
        deadline = time.monotonic() + limit_s
        while not all(ready(peer) for peer in self.peers.values()):
            self.take_events(0.05)
            errors = [peer.error for peer in self.peers.values() if peer.error]
            if errors:
                # Others may be about to refuse for the same reason; name them together.
                self.take_events(0.1)
                raise Faults([peer.error for peer in self.peers.values() if peer.error])
            if self.stage.interrupt.signal:
                raise Interrupted(self.stage.interrupt.signal, "stopped before the start; nothing was started", phase=phase)
            if time.monotonic() > deadline:
                late = [name for name, peer in self.peers.items() if not ready(peer)]
                message = f"expected every node ready within {limit_s:g} s, this one was not; nothing was started"
                raise Faults([RunError(message, kind="start_timeout", host=name, phase=phase) for name in late])

    def synchronise(self) -> None:
        """Measure each node's clock offset over its line; the quickest of a few round trips bounds the error best."""
        for _ in range(_SYNC_ROUNDS):
            self._beat(tail=False)
            number = self._beats
            self.wait(lambda peer, number=number: number not in peer.sent, 5.0, "arm")  # type: ignore[misc]

    def start_record(self) -> StartRecord | None:
        """Return who started when, on the controller's clock, and how exact that is; None where not every node started."""
        hosts = {
            name: NodeStart(peer.started, peer.offset_s, peer.round_trip_s / 2)
            for name, peer in self.peers.items()
            if peer.started is not None
        }
        if len(hosts) < len(self.peers):
            return None
        starts = [node.started_mono_s - node.offset_s for node in hosts.values()]
        bounds = sorted(peer.round_trip_s / 2 for peer in self.peers.values())
        return StartRecord(max(starts) - min(starts), sum(bounds[-2:]) if len(bounds) > 1 else 0.0, hosts)

    # -- while it runs

    def run(self) -> None:
        """Beat, listen and judge until every node has ended or is given up."""
        beat_due = turn = time.monotonic()
        deadline = turn + self.plan.spec.timeout_s + self.stage.limits.grace_s + _UNSTOPPED_S
        for peer in self.peers.values():
            peer.last_answer = max(peer.last_answer, turn)
        while not all(peer.over for peer in self.peers.values()):
            if turn >= beat_due:
                self._beat(tail=True)
                beat_due = turn + self.stage.limits.beat_s
            self._take_turn()
            before, turn = turn, time.monotonic()
            if turn > deadline:
                self.stop(f"run_timeout: not over {_UNSTOPPED_S:g} s after the time limit that the nodes keep")
            # In the rest of a longer turn we were stopped or held up, and must not blame the nodes for our own silence.
            listened_s = min(turn - before, _LISTENED_S)
            for name, peer in self.peers.items():
                if not peer.over:
                    peer.listened(turn, listened_s)
                    self._judge(name, peer)
            if self.stage.interrupt.signal:
                self.stop("interrupted: the controller got a signal")
            if any(peer.causes or peer.error for peer in self.peers.values()):
                state, error = first_cause(self.peers, self.plan.run_id)
                self.stop(error.message if error and state == "interrupted" else A_NODE_FAILED)
            self._finish_waiting()
            self._give_up_late_stops()

    def stop(self, reason: str) -> None:
        """Tell every node that has not ended to stop, once; the first reason counts."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._stop_reason = reason
            # First the stop: a full disk or a closed terminal must not keep it from the nodes.
            for peer in self.peers.values():
                if not peer.over:
                    peer.send("stop", reason=reason)
            self.stage.journal(Event.STOPPING, reason=reason)
            self.stage.observe(Stopping(reason))

    def verdict(self) -> tuple[str, OrchError | None]:
        """Return the state of the run and its first cause: what happened earliest, not what was heard first."""
        if self.stage.interrupt.signal:
            message = "stopped by a signal to the controller"
            return "interrupted", Interrupted(self.stage.interrupt.signal, message, run_id=self.plan.run_id, phase="watch")
        return first_cause(self.peers, self.plan.run_id)

    def answers(self) -> dict[str, Answer]:
        """Return how each node answered while it ran: longest silence and median round trip in seconds, silent at the end."""
        return {
            name: Answer(
                round(peer.longest_silence_s, 3),
                round(median(peer.round_trips_s), 6) if peer.round_trips_s else 0.0,
                peer.silent,
            )
            for name, peer in self.peers.items()
        }

    def _judge(self, name: str, peer: Peer) -> None:
        if peer.silence_s > _DOUBT_AFTER_S and not peer.asking and peer.greeted_at < peer.last_answer:
            peer.asking = True
            threading.Thread(target=ask_beside, args=(self.stage.cluster, peer), name=f"ask-{name}", daemon=True).start()
        limits = self.stage.limits
        doubt_s = limits.doubt_s if peer.greeted_at > peer.last_answer else 0.0
        if peer.silence_s > limits.lost_s + doubt_s and not self._unread(name):
            via = f"{peer.line.via}, or this host behind it: " if peer.line and peer.line.via else ""
            error = TransportError(
                f"{via}no sign of life for {peer.silence_s:.1f} s; it stops the run by itself within {limits.lease_s:g} s",
                kind="node_lost",
                host=name,
                run_id=self.plan.run_id,
                phase="watch",
                hint="when it is back, orch collect brings its logs home",
            )
            peer.silent = True
            peer.give_up(error, peer.last_answer, self._stopping_since)

    def _unread(self, name: str) -> bool:
        """Whether something lies on a node's line that its thread was held up from reading: then the silence is ours."""
        node = self.stage.cluster.nodes.get(name)
        return node is not None and node.transport.unread

    def _finish_waiting(self) -> None:
        """Where only the first node starts something, its good end is the end of those that wait."""
        first = self.peers[self.hosts[0]].record
        if self.plan.launch != "first_node" or self._finishing or not first or first.state != "finished":
            return
        self._finishing = True
        for peer in self.peers.values():
            if not peer.over:
                peer.send("finish")

    def _give_up_late_stops(self) -> None:
        if self._stopping_since is None or time.monotonic() < self._stopping_since + self.stage.limits.grace_s + 5.0:
            return
        for name, peer in self.peers.items():
            if not peer.over:
                peer.error = TransportError(
                    "did not end in time after the stop", kind="node_lost", host=name, run_id=self.plan.run_id, phase="stop"
                )

    def _beat(self, *, tail: bool) -> None:
        """Send one beat to every node that still owes an end; the first node's answer carries the newest log lines."""
        self._beats += 1
        now = time.monotonic()
        for name, peer in self.peers.items():
            if peer.over or peer.attaching:
                continue
            peer.sent[self._beats] = now
            fields: dict[str, Any] = {"n": self._beats}
            if tail and name == self.hosts[0]:
                fields["tail"] = {"file": self.tail, "offset": self._tail_offset}
            peer.send("beat", **fields)

    # -- what comes in

    def take_events(self, wait_s: float) -> bool:
        """Wait a moment for events and take in all that came. Tells whether any of them was more than an answer to a beat."""
        telling = False
        try:
            host, event = self._inbox.get(timeout=wait_s)
            while True:
                peer = self.peers[host]
                telling = telling or event["event"] != "beat"
                if event["line"] is peer.line or event["event"] == "attached":
                    self._take(host, peer, event)
                host, event = self._inbox.get_nowait()
        except queue.Empty:
            return telling

    def _take_turn(self) -> None:
        """Take events for one tick, or up to one that may decide something: hundreds of nodes answer all the time."""
        over = time.monotonic() + _TICK_S
        while (left_s := over - time.monotonic()) > 0:
            if self.take_events(left_s):
                return

    def _take(self, name: str, peer: Peer, event: Mapping[str, Any]) -> None:
        if event["event"] != "lost":
            peer.heard(event["at"])
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
                self._take_beat(peer, event)
            case "started":
                peer.started = float(event["mono"])
            case "attached":
                self._take_state(peer, event)
            case "rank":
                peer.blame_rank(RankRecord.of(event), self._stopping_since)
            case "stopping":
                if event["reason"] != self._stop_reason:
                    peer.blame_stop(event["reason"], event["mono"], self._stopping_since)
            case "ended":
                self.take_end(peer, ExitRecord.of(event["record"]))
            case "left_behind":
                self.take_end(peer, event["record"])
            case "error":
                peer.error = refusal(event, name)
            case "lost":
                self._line_lost(name, peer, event["error"])

    def _take_beat(self, peer: Peer, event: Mapping[str, Any]) -> None:
        sent = peer.sent.pop(event["n"], None)
        if sent is None:
            return
        round_trip = event["at"] - sent
        if peer.started is not None:
            peer.round_trips_s.append(round_trip)
        # Before the start the quickest answer counts; later any quick one, because clocks drift apart in a long run.
        if round_trip < peer.round_trip_s * (1.0 if peer.started is None else 1.5):
            peer.round_trip_s = min(round_trip, peer.round_trip_s)
            peer.offset_s = event["mono"] - (sent + event["at"]) / 2
        if event.get("data") and event["offset"] == self._tail_offset:
            data = base64.b64decode(event["data"])
            self._tail_offset += len(data)
            self.stage.observe(LogGrew(data))

    def _take_state(self, peer: Peer, event: Mapping[str, Any]) -> None:
        """Go on over a new line; what happened while there was none stands in the keeper's hello."""
        peer.line, peer.attaching = event["line"], False
        self.listen(event["line"])
        self.stage.journal(Event.REATTACHED, host=peer.name)
        if self._stopping_since is not None:
            peer.send("stop", reason=self._stop_reason)
        elif self._finishing:
            peer.send("finish")
        if event.get("record"):
            self.take_end(peer, ExitRecord.of(event["record"]))

    def take_end(self, peer: Peer, record: ExitRecord) -> None:
        """Take in a node's own record of its end."""
        peer.record = record
        self.stage.observe(NodeEnded(peer.name, record.state))
        peer.blame_record(record, self._stopping_since, self._stop_reason)

    def _line_lost(self, name: str, peer: Peer, error: OrchError) -> None:
        if peer.over:
            return
        if not self.released:
            peer.error = error
            return
        self.stage.journal(Event.LINE_LOST, host=name, error=str(error))
        peer.attaching = True
        peer.sent.clear()
        reattachment = Reattachment(
            self.stage.cluster, peer, self.plan.run_id, self.stage.limits.ask_s, lambda event: self._inbox.put((name, event))
        )
        threading.Thread(target=reattachment.run, name=f"reattach-{name}", daemon=True).start()

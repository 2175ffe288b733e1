"""The connections to all nodes of one run, from armed to ended: send beats, receive events, stop
the run at a failure.

Answered beats decide whether a node is alive, not its connection: after a lost connection the
controller reconnects while the run continues. The verdict names the first cause, by the nodes' own
clocks corrected with offsets that were measured over the same connections.
"""

from __future__ import annotations

import base64
import queue
import threading
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from orchestrator.controller.events import (
    FilesAnswer,
    FilesSilent,
    LeftOver,
    LogGrew,
    NodeEnded,
    Stopping,
    Stuck,
)
from orchestrator.controller.monitor import Monitors
from orchestrator.controller.peer import A_NODE_FAILED, Peer, first_cause
from orchestrator.controller.reattach import Reattachment, ask_beside
from orchestrator.controller.stage import Stage
from orchestrator.errors import Faults, Interrupted, OrchError, RunError, TransportError
from orchestrator.inventory import fold
from orchestrator.nodes.conversation import SupervisorLine, refusal
from orchestrator.nodes.fanout import each
from orchestrator.plan.render import Plan
from orchestrator.record.journal import Event
from orchestrator.record.manifest import Answer, NodeStart, StartRecord
from orchestrator.record.node_record import ExitRecord, RankRecord

_SYNC_ROUNDS, _SYNC_S = 6, 5.0
_TICK_S, _LISTENED_S = 0.1, 0.25
_DOUBT_AFTER_S = 1.2
_UNSTOPPED_S = 20.0
_GOODBYE_S = 1.0
_FILES_SILENT_S = 5.0
_MOST_MOUNT = 400
_STUCK_S = (
    15.0  # after the grace period a node tries for 10 s to end what does not end, and then says so
)


class Watch:
    """All messages between the controller and the nodes of one run. ``tail`` names the log that is
    shown.
    """

    def __init__(self, plan: Plan, stage: Stage, *, tail: str, of_last: bool = False) -> None:
        self.plan = plan
        self.stage = stage
        self.tail = tail
        self.hosts = [node.slot.host for node in plan.nodes]
        self._shown_host = self.hosts[-1 if of_last else 0]
        self.peers: dict[str, Peer] = {}
        self.released = False
        # Not a SimpleQueue: its timed wait never ends if a signal handler is still running when the
        # timeout expires.
        self._inbox: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._beats = 0
        self._stopping_since: float | None = None
        self._stop_reason = ""
        self._finishing = False
        self._tail_offset = 0
        self.monitors = Monitors(plan, stage)

    def listen(self, line: SupervisorLine) -> None:
        """Receive the events of a connection from now on."""
        line.start(lambda host, event: self._inbox.put((host, event)))

    def close(self) -> None:
        """Send a goodbye on every connection. Supervisors that were not released exit without
        starting anything.
        """
        for peer in self.peers.values():
            peer.send("bye")
        until = time.monotonic() + _GOODBYE_S
        for peer in self.peers.values():
            if peer.line:
                goes = not peer.error and (peer.record is not None or not self.released)
                peer.line.close(max(0.0, until - time.monotonic()) if goes else 0.0)

    # -- before the start

    def wait(self, ready: Callable[[Peer], bool], limit_s: float, phase: str) -> None:
        """Take events until every peer is ready, and renew the leases meanwhile. Raises Faults with
        every refusal, or a start_timeout for each late node."""
        renewed = time.monotonic()
        deadline = renewed + limit_s
        while not all(map(ready, self.peers.values())):
            self.take_events(0.05)
            if time.monotonic() > renewed + self.stage.limits.lease_s / 3:
                renewed = time.monotonic()
                self._beat(tail=False)
            errors = [peer.error for peer in self.peers.values() if peer.error]
            if errors:
                # Other nodes may be about to refuse for the same reason; report them together.
                self.take_events(0.1)
                raise Faults([peer.error for peer in self.peers.values() if peer.error])
            if self.stage.interrupt.signal:
                raise Interrupted(
                    self.stage.interrupt.signal,
                    "interrupted before the start; nothing was started",
                    phase=phase,
                )
            if time.monotonic() > deadline:
                late = [name for name, peer in self.peers.items() if not ready(peer)]
                message = f"expected this node to be ready within {limit_s:g} s, it was not; nothing was started"
                raise Faults(
                    [
                        RunError(message, kind="start_timeout", host=name, phase=phase)
                        for name in late
                    ]
                )

    def synchronise(self) -> None:
        """Measure each node's clock offset over its connection; the fastest of several round trips
        bounds the error best.
        """
        for _ in range(_SYNC_ROUNDS):
            self._beat(tail=False)
            number = self._beats
            limit_s = self.stage.limits.round_s(_SYNC_S, len(self.peers))
            self.wait(lambda peer, number=number: number not in peer.sent, limit_s, "arm")  # type: ignore[misc]

    def start_record(self) -> StartRecord | None:
        """Return the start of each node on the controller's clock, with its error bound; None if
        not every node started.
        """
        hosts = {
            name: NodeStart(peer.started, peer.offset_s, peer.round_trip_s / 2)
            for name, peer in self.peers.items()
            if peer.started is not None
        }
        if len(hosts) < len(self.peers):
            return None
        starts = [node.started_mono_s - node.offset_s for node in hosts.values()]
        bounds = sorted(peer.round_trip_s / 2 for peer in self.peers.values())
        return StartRecord(
            max(starts) - min(starts), sum(bounds[-2:]) if len(bounds) > 1 else 0.0, hosts
        )

    # -- while it runs

    def run(self) -> None:
        """Send beats, take events and judge silence until every node has ended or is given up."""
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
                self.stop(
                    f"run_timeout: still running {_UNSTOPPED_S:g} s after the time limit, which the nodes enforce"
                )
            # For the rest of a longer turn the controller itself was stopped or delayed, which must
            # not count as silence.
            listened_s = min(turn - before, _LISTENED_S)
            for name, peer in self.peers.items():
                if not peer.over:
                    peer.extend_silence(turn, listened_s)
                    self._judge(name, peer)
            if self.stage.interrupt.signal:
                self.stop("interrupted: the controller got a signal")
            if any(peer.causes or peer.error for peer in self.peers.values()):
                state, error = first_cause(self.peers, self.plan.run_id)
                self.stop(error.message if error and state == "interrupted" else A_NODE_FAILED)
            if self._stopping_since is None and (reason := self.monitors.turn(turn, self.peers)):
                self.stop(reason)
            self._finish_waiting()
            self._give_up_late_stops()

    def stop(self, reason: str) -> None:
        """Send a stop to every node that has not ended, once; the first reason counts."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._stop_reason = reason
            # Send the stop first: a full disk or a closed terminal must not prevent it.
            for peer in self.peers.values():
                if not peer.over:
                    peer.send("stop", reason=reason)
            self.stage.journal(Event.STOPPING, reason=reason)
            self.stage.observe(Stopping(reason))

    def verdict(self) -> tuple[str, OrchError | None]:
        """Return the state of the run and its first cause: the earliest event, not the first one
        received.
        """
        silent = [name for name, peer in self.peers.items() if peer.silent]
        for name, why in each(silent, self.stage.cluster.fate)[0].items():
            if why:
                self.peers[name].explain(why)
        state, error = first_cause(self.peers, self.plan.run_id)
        waiting = [peer for peer in self.peers.values() if peer.waits_for and not peer.record]
        if error and waiting:
            names = fold(peer.name for peer in waiting)
            words = f"not verified: whether the run has ended on {names}: {waiting[0].waiting}"
            words += "; when it answers, orch collect fetches the logs"
            error.hint = "; ".join(filter(None, [error.hint, words]))
        if self.stage.interrupt.signal and not (
            isinstance(error, TransportError) and error.is_of_identity
        ):
            message = "interrupted by a signal to the controller"
            return "interrupted", Interrupted(
                self.stage.interrupt.signal, message, run_id=self.plan.run_id, phase="watch"
            )
        return self.monitors.outcome(state, error)

    def answers(self) -> dict[str, Answer]:
        """Return for each node its longest silence and median round trip in seconds, and whether it
        was silent at the end.
        """
        return {
            name: Answer(
                round(peer.longest_silence_s, 3),
                round(median(peer.round_trips_s), 6) if peer.round_trips_s else 0.0,
                peer.silent,
            )
            for name, peer in self.peers.items()
        }

    def _judge(self, name: str, peer: Peer) -> None:
        if (
            peer.silence_s > _DOUBT_AFTER_S
            and not peer.asking
            and peer.greeted_at < peer.last_answer
        ):
            peer.asking = True
            threading.Thread(
                target=ask_beside, args=(self.stage.cluster, peer), name=f"ask-{name}", daemon=True
            ).start()
        limits = self.stage.limits
        doubt_s = limits.doubt_s if peer.greeted_at > peer.last_answer else 0.0
        if peer.silence_s > limits.lost_s + doubt_s and not self._unread(name):
            via = ""
            if peer.line and peer.line.via:
                via = f"{peer.line.via}, or this host behind it: "
            silence = f"{via}no sign of life for {peer.silence_s:.1f} s"
            error = TransportError(
                f"{silence}; if it still runs, it stops the run by itself within {limits.lease_s:g} s",
                kind="node_lost",
                host=name,
                run_id=self.plan.run_id,
                phase="watch",
                hint="when it is back, orch collect fetches its logs",
            )
            peer.silent = True
            peer.give_up(error, peer.alive_at, self._stopping_since)

    def _unread(self, name: str) -> bool:
        """Return whether a node's connection has unread data because its reader was delayed.

        Such a node is not silent.
        """
        node = self.stage.cluster.nodes.get(name)
        return node is not None and node.transport.unread

    def _finish_waiting(self) -> None:
        """Finish the waiting nodes after the first node has ended well, if only the first one
        starts a program.
        """
        first = self.peers[self.hosts[0]].record
        if (
            self.plan.launch != "first_node"
            or self._finishing
            or not first
            or first.state != "finished"
        ):
            return
        self._finishing = True
        for peer in self.peers.values():
            if not peer.over:
                peer.send("finish")

    def _give_up_late_stops(self) -> None:
        if (
            self._stopping_since is None
            or time.monotonic() < self._stopping_since + self.stage.limits.grace_s + _STUCK_S
        ):
            return
        for name, peer in self.peers.items():
            # Hashing long logs takes its time; a node that falls silent meanwhile is lost as any
            # other.
            if not peer.over and (not peer.closing or peer.waits_s > _STUCK_S):
                why = f": {peer.waiting}" if peer.waits_for else ""
                peer.error = TransportError(
                    f"run did not end in time after its stop{why}",
                    kind="node_lost",
                    host=name,
                    run_id=self.plan.run_id,
                    phase="stop",
                )

    def _beat(self, *, tail: bool) -> None:
        """Send a beat to every node that has not ended; the answer of the node whose log is shown
        carries the newest lines of it.
        """
        self._beats += 1
        now = time.monotonic()
        for name, peer in self.peers.items():
            if peer.over or peer.attaching:
                continue
            peer.sent[self._beats] = now
            fields: dict[str, Any] = {"n": self._beats}
            if tail and name == self._shown_host:
                fields["tail"] = {"file": self.tail, "offset": self._tail_offset}
            peer.send("beat", **fields)

    # -- incoming events

    def take_events(self, wait_s: float) -> bool:
        """Wait up to ``wait_s`` for events and take all. Return True if any was more than an answer
        to a beat.
        """
        significant = False
        try:
            host, event = self._inbox.get(timeout=wait_s)
            while True:
                peer = self.peers[host]
                significant = significant or event["event"] != "beat"
                if event["line"] is peer.line or event["event"] == "attached":
                    self._take(host, peer, event)
                host, event = self._inbox.get_nowait()
        except queue.Empty:
            return significant

    def _take_turn(self) -> None:
        """Take events for one tick, or until one may decide something: hundreds of nodes answer
        continuously.
        """
        over = time.monotonic() + _TICK_S
        while (left_s := over - time.monotonic()) > 0:
            if self.take_events(left_s):
                return

    def _take(self, name: str, peer: Peer, event: Mapping[str, Any]) -> None:
        if event["event"] not in ("lost", "given_up"):
            peer.heard(event["at"])
        try:
            self._dispatch(name, peer, event)
        except (KeyError, TypeError, ValueError) as fault:
            message = f"its node runner sent a malformed event: {fault!r}"
            peer.error = RunError(
                message, kind="result_invalid", host=name, run_id=self.plan.run_id, phase="watch"
            )

    def _dispatch(self, name: str, peer: Peer, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "armed":
                peer.armed, peer.boot_id = True, event["boot_id"]
            case "beat":
                self._take_beat(peer, event)
            case "started":
                peer.started = float(event["mono"])
            case "attached":
                self._take_state(peer, event)
            case (
                "stalled" | "finishing" | "resumed" | "overdue" | "examined" | "collectives" as what
            ):
                if (
                    self._stopping_since is None or what == "collectives"
                ):  # a run that is being stopped neither hangs nor goes on
                    self.monitors.take(name, event)
            case "rank":
                peer.blame_rank(RankRecord.of(event), self._stopping_since)
            case "stopping":
                if event["reason"] != self._stop_reason:
                    peer.blame_stop(event["reason"], event["mono"], self._stopping_since)
            case "ended":
                self.take_end(peer, ExitRecord.of(event["record"]))
            case "closing":
                peer.closing = True
            case "left_behind":
                self.take_end(peer, event["record"])
            case "error":
                peer.error = refusal(event, name)
            case "lost":
                self._lose_line(name, peer, event["error"])
            case "given_up":
                peer.give_up(event["error"], event["since"], None)

    def _take_wait(self, peer: Peer, mount: str, seconds: float) -> None:
        """Take which mount has not answered a node for how long, none if all its files can be read."""
        if seconds >= _FILES_SILENT_S > peer.waits_s:
            self.stage.observe(FilesSilent(peer.name, mount, seconds))
        elif peer.waits_s >= _FILES_SILENT_S > seconds:
            self.stage.observe(FilesAnswer(peer.name, peer.waits_for, peer.waits_s))
        peer.waits_for, peer.waits_s = mount, seconds

    def _take_beat(self, peer: Peer, event: Mapping[str, Any]) -> None:
        peer.spoke_at = event["mono"] - peer.offset_s
        waits_s = float(event.get("waits_s", 0.0))
        self._take_wait(peer, str(event.get("waits_for", ""))[:_MOST_MOUNT], waits_s)
        sent = peer.sent.pop(event["n"], None)
        if sent is None:
            return
        round_trip = event["at"] - sent
        if peer.started is not None:
            peer.round_trips_s.append(round_trip)
        # Before the start only the fastest answer counts; later any fast one, because clocks drift
        # apart in a long run.
        if round_trip < peer.round_trip_s * (1.0 if peer.started is None else 1.5):
            peer.round_trip_s = min(round_trip, peer.round_trip_s)
            peer.offset_s = event["mono"] - (sent + event["at"]) / 2
        if event.get("data") and event["offset"] == self._tail_offset:
            data = base64.b64decode(event["data"])
            self._tail_offset += len(data)
            self.tail = str(event.get("file", self.tail))  # where it was a pattern
            self.stage.observe(LogGrew(data))

    def _take_state(self, peer: Peer, event: Mapping[str, Any]) -> None:
        """Continue over a new connection; the supervisor's hello holds what happened in between."""
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
        """Process a node's own record of its end."""
        peer.record = record
        self.stage.observe(NodeEnded(peer.name, record.state))
        if record.left_over:
            self.stage.observe(LeftOver(peer.name, record.left_over))
        if record.stuck:
            self.stage.observe(Stuck(peer.name, record.stuck))
        peer.blame_record(record, self._stopping_since, self._stop_reason)

    def _lose_line(self, name: str, peer: Peer, error: OrchError) -> None:
        if peer.over:
            return
        if not self.released:
            peer.error = error
            return
        self.stage.journal(Event.LINE_LOST, host=name, error=str(error))
        peer.attaching = True
        peer.sent.clear()
        reattachment = Reattachment(
            self.stage.cluster,
            peer,
            self.plan.run_id,
            self.stage.limits.ask_s,
            lambda event: self._inbox.put((name, event)),
        )
        threading.Thread(target=reattachment.run, name=f"reattach-{name}", daemon=True).start()

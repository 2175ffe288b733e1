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
from dataclasses import dataclass, field
from typing import Any

from orchestrator.cluster import Cluster
from orchestrator.errors import Faults, Interrupted, OrchError, RunError, TransportError
from orchestrator.fanout import each, each_or_raise
from orchestrator.library import FrameworkFolder
from orchestrator.node import KeeperLine, Node, Upload, refusal
from orchestrator.render import Plan, payload_path

__all__ = ["Interrupt", "Launch", "Limits", "Outcome", "stage_payload"]

_SYNC_ROUNDS = 6
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a run in seconds; `docs/structure.md` says which promise each one keeps."""

    beat_s: float = 0.5
    lost_s: float = 3.0
    lease_s: float = 60.0
    grace_s: float = 5.0
    arm_s: float = 30.0
    ask_s: float = 20.0
    output_bytes: int = 1 << 30


@dataclass(slots=True)
class Interrupt:
    """Set by a signal handler, looked at by the watch loop."""

    signal: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: finished, failed, lost or interrupted, with the first cause and the record of the start."""

    state: str
    error: OrchError | None
    start: Mapping[str, Any] | None


@dataclass(slots=True)
class _Peer:
    """What the controller knows of one node of the run."""

    line: KeeperLine
    armed: bool = False
    boot_id: str = ""
    started: float | None = None
    record: Mapping[str, Any] | None = None
    error: OrchError | None = None
    last_answer: float = 0.0
    offset_s: float = 0.0
    round_trip_s: float = float("inf")
    sent: dict[int, float] = field(default_factory=dict)
    causes: list[tuple[float, str, str]] = field(default_factory=list)
    attaching: bool = False

    @property
    def over(self) -> bool:
        """The node has ended its part, or is given up."""
        return self.record is not None or self.error is not None


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
        self.peers: dict[str, _Peer] = {}
        self.hosts = [node.slot.host for node in plan.nodes]
        self.beats = 0
        self.stopping_since: float | None = None
        self.stop_reason = ""
        self.tail_offset = 0

    def run(self) -> Outcome:
        """Run it. Raises OrchError where nothing was started; any later trouble is in the outcome."""
        each_or_raise(self.hosts, self._stage)
        self.journal("staged")
        try:
            self._arm()
            self._synchronise()
            start = self._go()
            self._watch()
        finally:
            for peer in self.peers.values():
                peer.line.send("bye")
                peer.line.close()
        return Outcome(*self._verdict(), start)

    # -- stage, arm, go

    def _stage(self, name: str) -> None:
        node = self.cluster.nodes[name]
        stage_payload(node, self.folder)
        base = f"runs/{self.plan.run_id}"
        node.put([Upload(f"{base}/{file.path}", file.content.encode(), file.mode) for file in self._files(name)], timeout_s=60)

    def _files(self, name: str) -> Any:
        return next(node.files for node in self.plan.nodes if node.slot.host == name)

    def _arm(self) -> None:
        noderun = payload_path("noderun.py", self.plan.payload["noderun.py"])

        def open_line(name: str) -> KeeperLine:
            return self.cluster.nodes[name].keeper(self.plan.run_id, noderun, start=True, timeout_s=self.limits.arm_s)

        lines, errors = each(self.hosts, open_line)
        self.peers = {name: _Peer(line) for name, line in lines.items()}
        if errors:
            raise Faults(list(errors.values()))
        for name, peer in self.peers.items():
            peer.line.start(lambda host, event: self.inbox.put((host, event)))
            peer.line.send("arm", **self._order(name))
        self._wait(lambda peer: peer.armed, self.limits.arm_s, "arm")
        self.journal("armed")

    def _order(self, name: str) -> dict[str, Any]:
        node = next(node for node in self.plan.nodes if node.slot.host == name)
        return {
            "run_id": self.plan.run_id,
            "node_rank": node.slot.node_rank,
            "argv": list(node.argv),
            "files": {file.path: hashlib.sha256(file.content.encode()).hexdigest() for file in node.files},
            "ports": [self.plan.placement.master_port] if node.slot.node_rank == 0 else [],
            "lease_s": self.limits.lease_s,
            "limit_s": self.plan.spec.timeout_s,
            "grace_s": self.limits.grace_s,
            "output_limit_bytes": self.limits.output_bytes,
            "owner": {**self.owner, "run_id": self.plan.run_id},
        }

    def _wait(self, ready: Callable[[_Peer], bool], limit_s: float, phase: str) -> None:
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

    def _go(self) -> dict[str, Any]:
        """Release every node for one instant, named on its own clock; return the record of who started when."""
        slowest = max(peer.round_trip_s for peer in self.peers.values())
        instant = time.monotonic() + max(0.03 + 0.002 * len(self.peers), 4 * slowest)
        for peer in self.peers.values():
            peer.line.send("go", at=instant + peer.offset_s)
        self._wait(lambda peer: peer.started is not None, self.limits.arm_s, "go")
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
        for peer in self.peers.values():
            peer.last_answer = max(peer.last_answer, judged_from)
        while not all(peer.over for peer in self.peers.values()):
            now = time.monotonic()
            if now - turn > 1.0:
                # We slept, not they: a stopped or suspended controller must not blame the nodes for its own silence.
                judged_from = now
            turn = now
            if now >= beat_due:
                self._beat(tail=True)
                beat_due = now + self.limits.beat_s
            self._take_events(_TICK_S)
            for name, peer in self.peers.items():
                if not peer.over:
                    self._judge(name, peer, judged_from)
            if self.interrupt.signal:
                self._stop_all("interrupted: the controller got a signal")
            failed = [name for name, peer in self.peers.items() if peer.causes or peer.error]
            if failed:
                self._stop_all(f"another node failed first: {failed[0]}")
            self._give_up_late_stops()

    def _judge(self, name: str, peer: _Peer, judged_from: float) -> None:
        silence = time.monotonic() - max(peer.last_answer, judged_from)
        if silence > self.limits.lost_s:
            peer.error = TransportError(
                f"no sign of life for {silence:.1f} s; it stops the run by itself within {self.limits.lease_s:g} s",
                kind="node_lost",
                host=name,
                run_id=self.plan.run_id,
                phase="watch",
                hint="when it is back, orch collect brings its logs home",
            )

    def _stop_all(self, reason: str) -> None:
        if self.stopping_since is None:
            self.stopping_since = time.monotonic()
            self.stop_reason = reason
            self.journal("stopping", reason=reason)
            self.observe("stopping", {"reason": reason})
            for peer in self.peers.values():
                if not peer.over:
                    peer.line.send("stop", reason=reason)

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

    def _take(self, name: str, peer: _Peer, event: Mapping[str, Any]) -> None:
        peer.last_answer = event["at"] if event["event"] != "lost" else peer.last_answer
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
                if event["code"] != 0 and self.stopping_since is None:
                    how = event["signal"] or f"exit code {event['code']}"
                    cause = (event["ended_mono_s"] - peer.offset_s, "rank_failed", f"rank {event['rank']} ended with {how}")
                    peer.causes.append(cause)
                self.observe("rank", event)
            case "stopping":
                kind, _, text = event["reason"].partition(": ")
                if self.stopping_since is None and kind != "rank_failed":
                    peer.causes.append((event["at"], kind, text))
            case "ended":
                self._take_end(name, peer, event["record"])
            case "error":
                peer.error = refusal(event, name)
            case "lost":
                self._line_lost(name, peer, event["error"])

    def _take_beat(self, name: str, peer: _Peer, event: Mapping[str, Any]) -> None:
        sent = peer.sent.pop(event["n"], None)
        if sent is None:
            return
        round_trip = event["at"] - sent
        if round_trip < peer.round_trip_s and peer.started is None:
            peer.round_trip_s = round_trip
            peer.offset_s = event["mono"] - (sent + event["at"]) / 2
        if event.get("data") and event["offset"] == self.tail_offset:
            import base64

            data = base64.b64decode(event["data"])
            self.tail_offset += len(data)
            self.observe("log", {"data": data})

    def _take_state(self, peer: _Peer, event: Mapping[str, Any]) -> None:
        """Go on over a new line; what happened while there was none stands in the keeper's hello."""
        peer.line, peer.attaching = event["line"], False
        peer.line.start(lambda host, more: self.inbox.put((host, more)))
        self.journal("reattached", host=peer.line.host.name)
        if self.stopping_since is not None:
            peer.line.send("stop", reason=self.stop_reason)
        if event.get("record"):
            self._take_end(peer.line.host.name, peer, event["record"])

    def _take_end(self, name: str, peer: _Peer, record: Mapping[str, Any]) -> None:
        peer.record = record
        self.observe("ended", {"host": name, "state": record["state"]})
        if record["state"] == "failed" and not peer.causes and self.stopping_since is None:
            how = record["signal"] or f"exit code {record['code']}"
            peer.causes.append((record["ended_mono_s"] - peer.offset_s, "rank_failed", f"its launch script ended with {how}"))

    # -- lost lines

    def _line_lost(self, name: str, peer: _Peer, error: OrchError) -> None:
        if peer.over:
            return
        if not peer.armed or peer.started is None:
            peer.error = error
            return
        self.journal("line_lost", host=name, error=str(error))
        peer.attaching = True
        peer.sent.clear()
        threading.Thread(target=self._reattach, args=(name, peer), name=f"reattach-{name}", daemon=True).start()

    def _reattach(self, name: str, peer: _Peer) -> None:
        """Make a new line and find the run again, until the node counts as lost. Runs beside the watch loop."""
        while not peer.over:
            try:
                node = self.cluster.reconnect(name)
                line = node.keeper(self.plan.run_id, "", start=False, timeout_s=2.0)
            except TransportError as error:
                if error.kind == "node_lost" and name in self.cluster.nodes and self._without_keeper(name, peer):
                    return
                time.sleep(0.2)
                continue
            except OrchError as error:
                peer.error = error
                return
            self.inbox.put((name, {**line.hello, "event": "attached", "line": line, "at": time.monotonic()}))
            return

    def _without_keeper(self, name: str, peer: _Peer) -> bool:
        """The node answers and no keeper does: take the exit record it left, or end what it left running."""
        from orchestrator.collect import exit_record

        node = self.cluster.nodes[name]
        try:
            record = exit_record(node, self.plan.run_id, timeout_s=self.limits.ask_s)
            if record is not None:
                event = {"event": "ended", "record": record, "line": peer.line, "at": time.monotonic()}
                self.inbox.put((name, event))
                return True
            node.ask("stop", run=self.plan.run_id, grace_s=1.0, reason="its keeper died", timeout_s=self.limits.ask_s)
        except OrchError:
            return False
        peer.error = RunError(
            "the node runner was killed; the ranks it left were ended",
            kind="node_lost",
            host=name,
            run_id=self.plan.run_id,
            phase="watch",
        )
        return True

    # -- the end

    def _verdict(self) -> tuple[str, OrchError | None]:
        """Return the state of the run and its first cause: what happened earliest, not what was heard first."""
        if self.interrupt.signal:
            message = "stopped by a signal to the controller"
            return "interrupted", Interrupted(self.interrupt.signal, message, run_id=self.plan.run_id, phase="watch")
        causes = sorted((at, name, kind, text) for name, peer in self.peers.items() for at, kind, text in peer.causes)
        lost = [peer.error for peer in self.peers.values() if peer.error]
        if causes:
            _, name, kind, text = causes[0]
            return "failed", RunError(text, kind=kind, host=name, run_id=self.plan.run_id, phase="watch")
        if lost:
            return "lost", lost[0]
        stopped = [(name, peer) for name, peer in self.peers.items() if peer.record and peer.record["state"] != "finished"]
        if stopped:
            name, peer = stopped[0]
            reason = str(peer.record["reason"] if peer.record else "")
            kind, _, text = reason.partition(": ")
            return "failed", RunError(text or reason, kind=kind, host=name, run_id=self.plan.run_id, phase="watch")
        return "finished", None

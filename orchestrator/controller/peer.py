"""What the controller knows of one node of a run, how long it waits for it, and whose fault the end of a run was.

The first cause is what happened earliest, not what was heard first: every cause carries its instant on the controller's clock,
taken from the node's own clock and the offset that was measured over the same line. What happened after our stop is its
consequence, and blames nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import OrchError, RunError, TransportError
from orchestrator.nodes.conversation import KeeperLine
from orchestrator.record.node_record import ExitRecord, RankRecord

__all__ = ["A_NODE_FAILED", "CANCELLED", "Interrupt", "Peer", "close_seconds", "first_cause"]

A_NODE_FAILED = "a node of the run has failed"
"""The reason of a stop that a failure made necessary. It names no node: who was first may not have been heard by then."""
CANCELLED = "cancelled"
"""Begins the reason of a stop that somebody asked the nodes for; then it says who."""

_OWN_REASONS = ("rank_failed", "lease_expired", "run_timeout", "output_limit", "storage_full")
"""Why a node stops a run by itself."""
_CLOSE_S = 1.0


@dataclass(slots=True)
class Interrupt:
    """Set by a signal handler, looked at by the watch loop."""

    signal: int = 0


@dataclass(slots=True)
class Peer:
    """One node of a run.

    ``causes`` of an end are (instant, kind, text); instants are seconds of the controller's monotonic clock. ``late`` are
    ranks that failed by themselves, whether or not we had stopped the run by then.
    """

    name: str
    line: KeeperLine | None
    armed: bool = False
    boot_id: str = ""
    started: float | None = None
    record: ExitRecord | None = None
    error: OrchError | None = None
    last_answer: float = 0.0
    silence_s: float = 0.0
    longest_silence_s: float = 0.0
    offset_s: float = 0.0
    round_trip_s: float = float("inf")
    round_trips_s: list[float] = field(default_factory=list)
    sent: dict[int, float] = field(default_factory=dict)
    causes: list[tuple[float, str, str]] = field(default_factory=list)
    late: list[tuple[float, str, str]] = field(default_factory=list)
    attaching: bool = False
    silent: bool = False
    asking: bool = False
    greeted_at: float = 0.0

    @property
    def over(self) -> bool:
        """The node has ended its part, or is given up."""
        return self.record is not None or self.error is not None

    def send(self, do: str, **fields: Any) -> None:
        """Send one order where there is a line; what is lost with one shows as an event."""
        if self.line:
            self.line.send(do, **fields)

    def heard(self, at: float) -> None:
        """Note a sign of life."""
        if self.started is not None and self.last_answer:
            self.longest_silence_s = max(self.longest_silence_s, at - self.last_answer)
        self.last_answer = max(at, self.last_answer)

    def listened(self, until: float, seconds: float) -> None:
        """Count its silence on, up to ``until``: the controller listened for ``seconds`` since it was last counted.

        So it is never longer than the time since its last answer, nor than the time in which anyone listened for one.
        """
        self.silence_s = min(self.silence_s + seconds, until - self.last_answer)

    def blame(self, at: float, kind: str, text: str, stopped_at: float | None) -> None:
        """Note a cause, unless it came after our stop."""
        if stopped_at is None or at < stopped_at:
            self.causes.append((at, kind, text))

    def blame_rank(self, rank: RankRecord, stopped_at: float | None) -> None:
        """Note a rank that ended badly, by the record of its wrapper."""
        if rank.code != 0 and rank.ended_mono_s is not None:
            how = f"{rank.how}, {rank.note}" if rank.note else rank.how
            cause = rank.ended_mono_s - self.offset_s, "rank_failed", f"rank {rank.rank} ended with {how}"
            self.blame(*cause, stopped_at)
            if rank.signal is None:
                # It was not our signal that ended it, so it may have been on its way out before we stopped anything.
                self.late.append(cause)

    def blame_stop(self, reason: str, mono_s: float, stopped_at: float | None) -> None:
        """Note that the node was stopped, by its own limits or by somebody else than us; ``mono_s`` is on its clock."""
        kind, _, text = reason.partition(": ")
        # Of a rank's end the rank's own record tells more.
        if kind != A_NODE_FAILED and not (kind == "rank_failed" and text.startswith("rank ")):
            own = kind in _OWN_REASONS
            self.blame(mono_s - self.offset_s, kind if own else "interrupted", text if own else reason, stopped_at)

    def blame_record(self, record: ExitRecord, stopped_at: float | None, our_reason: str) -> None:
        """Note what an exit record tells and no event did: the line may have been broken when it happened."""
        if record.reason not in ("", our_reason) and record.stopped_mono_s is not None:
            self.blame_stop(record.reason, record.stopped_mono_s, stopped_at)
        for rank in record.ranks:
            self.blame_rank(rank, stopped_at)
        if record.state == "failed" and not self.causes:
            at = (record.ended_mono_s or 0.0) - self.offset_s
            self.blame(at, "rank_failed", f"its launch script ended with {record.how}", stopped_at)

    def give_up(self, error: OrchError, at: float, stopped_at: float | None) -> None:
        """Count the node as lost since ``at``."""
        self.blame(at, error.kind, error.message, stopped_at)
        self.error = error  # last: the watch loop takes it as the end of this node


def first_cause(peers: Mapping[str, Peer], run_id: str) -> tuple[str, OrchError | None]:
    """Return the state that a run ended in (finished, failed, lost or interrupted), and what came first of all that went wrong.

    A run that was cancelled is interrupted, and no node's fault.
    """
    causes = _causes(peers)
    lost = [peer.error for peer in peers.values() if peer.error]
    if causes:
        _, name, kind, text = causes[0]
        given_up = peers[name].error
        if given_up and given_up.message == text:
            return "lost" if isinstance(given_up, TransportError) else "failed", given_up
        if text.startswith(CANCELLED):
            hint = "orch resume repeats it and goes on"
            return "interrupted", RunError(text, kind="interrupted", run_id=run_id, phase="watch", hint=hint)
        return "failed", RunError(text, kind=kind, host=name, run_id=run_id, phase="watch")
    if lost:
        return "lost", lost[0]
    for name, peer in peers.items():
        if peer.record and peer.record.state != "finished":
            kind, _, text = peer.record.reason.partition(": ")
            return "failed", RunError(text or kind, kind=kind, host=name, run_id=run_id, phase="watch")
    return "finished", None


def close_seconds(peers: Mapping[str, Peer], run_id: str) -> tuple[OrchError, ...]:
    """Return the ranks that failed so soon after the first one that their clocks alone cannot tell who was first.

    A rank that loses its peer may be gone before that peer is: what each of them said last has to decide. Ranks that were
    told to end are none of these.
    """
    first, *others = _causes(peers) or [(0.0, "", "", "")]
    others += [(at, name, kind, text) for name, peer in peers.items() for at, kind, text in peer.late]
    return tuple(
        RunError(text, kind=kind, host=name, run_id=run_id, phase="watch")
        for at, name, kind, text in sorted(set(others) - {first})
        if first[2] == kind == "rank_failed" and at - first[0] <= _CLOSE_S and not text.endswith("SIGTERM")
    )


def _causes(peers: Mapping[str, Peer]) -> list[tuple[float, str, str, str]]:
    return sorted({(at, name, kind, text) for name, peer in peers.items() for at, kind, text in peer.causes})

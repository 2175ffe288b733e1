"""The controller's state of one node of a run: its silence, and the causes of an end of the run
that it reported.

The first cause is the earliest event, not the first one received: every cause has its instant on
the controller's clock, from the node's own clock and the offset measured over the same connection.
An event after the controller's stop is a consequence of the stop and no cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import OrchError, RunError, TransportError
from orchestrator.nodes.conversation import SupervisorLine
from orchestrator.record.node_record import ExitRecord, RankRecord, cause_of

A_NODE_FAILED = "a node of the run has failed"
"""The reason of a stop because of a failure. It names no node: the first failure may not have been
received yet.
"""
CANCELLED = "cancelled"
"""The first word of the reason of a stop by `orch cancel`; the rest says who requested it."""

_CLOSE_S = 1.0


@dataclass(slots=True)
class Interrupt:
    """Set by a signal handler, checked by the watch loop."""

    signal: int = 0


@dataclass(slots=True)
class Peer:
    """One node of a run.

    ``causes`` of an end are (instant, kind, text); instants are seconds of the controller's
    monotonic clock. ``late`` are ranks that failed by themselves, even if the controller had
    already stopped the run. ``closing``: all its processes have ended, and its supervisor hashes
    its logs. ``stopped_mono_s``: when the node stopped the run, on its own clock. ``last_answer``
    is when an answer was read, ``spoke_at`` when the node wrote the newest one, by its own clock: a
    controller that was stopped reads late. ``waits_for`` is the mount that has not answered the
    node for ``waits_s``, and empty while its files can be read.
    """

    name: str
    line: SupervisorLine | None
    armed: bool = False
    boot_id: str = ""
    started: float | None = None
    record: ExitRecord | None = None
    error: OrchError | None = None
    last_answer: float = 0.0
    spoke_at: float = 0.0
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
    closing: bool = False
    stopped_mono_s: float = float("inf")
    greeted_at: float = 0.0
    waits_s: float = 0.0
    waits_for: str = ""

    @property
    def over(self) -> bool:
        """Return whether the node has ended its part or is given up."""
        return self.record is not None or self.error is not None

    @property
    def alive_at(self) -> float:
        """The latest instant at which the node is known to have been alive."""
        return min(self.last_answer, self.spoke_at or self.last_answer)

    @property
    def waiting(self) -> str:
        """Which mount does not answer the node, in words."""
        return f"{self.waits_for} has not answered for {self.waits_s:.0f} s"

    def send(self, do: str, **fields: Any) -> None:
        """Send an order if there is a connection; a lost connection shows as an event."""
        if self.line:
            self.line.send(do, **fields)

    def heard(self, at: float) -> None:
        """Record a sign of life."""
        if self.started is not None and self.last_answer:
            self.longest_silence_s = max(self.longest_silence_s, at - self.last_answer)
        self.last_answer = max(at, self.last_answer)

    def extend_silence(self, until: float, seconds: float) -> None:
        """Extend the node's silence to ``until``: the controller listened for ``seconds`` since the
        last call.

        The silence is never longer than the time since the node's last answer, nor than the time
        spent listening.
        """
        self.silence_s = min(self.silence_s + seconds, until - self.last_answer)

    def blame(self, at: float, kind: str, text: str, stopped_at: float | None) -> None:
        """Record a cause, unless it came after the controller's stop."""
        if stopped_at is None or at < stopped_at:
            self.causes.append((at, kind, text))

    def blame_rank(self, rank: RankRecord, stopped_at: float | None) -> None:
        """Record a rank that failed, from the record of its wrapper."""
        if rank.code != 0 and rank.ended_mono_s is not None:
            how = f"{rank.how}, {rank.note}" if rank.note else rank.how
            cause = (
                rank.ended_mono_s - self.offset_s,
                "rank_failed",
                f"rank {rank.rank} ended with {how}",
            )
            # On one clock: the estimate of its offset may change between the two events, by more
            # than a rank takes to end.
            if rank.signal is None or rank.ended_mono_s < self.stopped_mono_s:
                self.blame(*cause, stopped_at)
            if rank.signal is None:
                # No signal ended it, so it may have been failing before the controller stopped the
                # run.
                self.late.append(cause)

    def blame_stop(self, reason: str, mono_s: float, stopped_at: float | None) -> None:
        """Record that the node was stopped by its own limits or by another process; ``mono_s`` is
        on its clock.
        """
        self.stopped_mono_s = min(mono_s, self.stopped_mono_s)
        kind, text = cause_of(reason)
        # The rank's own record has more details of its end.
        if reason != A_NODE_FAILED and not (kind == "rank_failed" and text.startswith("rank ")):
            self.blame(mono_s - self.offset_s, kind, text, stopped_at)

    def blame_record(self, record: ExitRecord, stopped_at: float | None, stop_reason: str) -> None:
        """Record causes from an exit record that no event reported, for example while the
        connection was lost.
        """
        if record.reason not in ("", stop_reason) and record.stopped_mono_s is not None:
            self.blame_stop(record.reason, record.stopped_mono_s, stopped_at)
        for rank in record.ranks:
            self.blame_rank(rank, stopped_at)
        if record.state == "failed" and not self.causes:
            at = (record.ended_mono_s or 0.0) - self.offset_s
            self.blame(at, "rank_failed", f"its launch script ended with {record.how}", stopped_at)

    def give_up(self, error: OrchError, at: float, stopped_at: float | None) -> None:
        """Count the node as lost since ``at``.

        That is no cause of the run's end if the node itself has told one before, such as a failed
        disk. The ends of its ranks may be a consequence of what the node was lost for. Of a node
        that has been given up for its silence, the error explains that silence.
        """
        if self.error:
            self.explain(error)
            return
        if all(kind == "rank_failed" for _, kind, _ in self.causes):
            self.blame(at, error.kind, error.message, stopped_at)
        self.error = error

    def explain(self, why: OrchError) -> None:
        """Tell what became of the node in place of its silence, or what could not be asked beside it."""
        silence = self.error
        if silence is None or silence.kind != "node_lost":
            return
        if not (isinstance(why, TransportError) and why.is_final):
            silence.hint = f"{silence.hint}; {why.message}"
            return
        why.run_id, why.phase = silence.run_id, silence.phase
        self.causes = [
            (at, why.kind, why.message) if text == silence.message else (at, kind, text)
            for at, kind, text in self.causes
        ]
        self.error = why


def first_cause(peers: Mapping[str, Peer], run_id: str) -> tuple[str, OrchError | None]:
    """Return the state that a run ended in (finished, failed, lost or interrupted), and its first
    cause.

    A cancelled run is interrupted, without a cause on a node. A host key that changed outranks
    every other cause: until it is explained, nothing else that was said about this node can be
    trusted.
    """
    causes = _causes(peers)
    lost = [peer.error for peer in peers.values() if peer.error]
    for error in lost:
        if isinstance(error, TransportError) and error.is_of_identity:
            return "lost", error
    if causes:
        _, name, kind, text = _decisive(causes)
        given_up = peers[name].error
        if given_up and given_up.message == text:
            return "lost" if isinstance(given_up, TransportError) else "failed", given_up
        if text.startswith(CANCELLED):
            hint = "orch resume repeats it and continues the bench"
            return "interrupted", RunError(
                text, kind="interrupted", run_id=run_id, phase="watch", hint=hint
            )
        return "failed", RunError(text, kind=kind, host=name, run_id=run_id, phase="watch")
    if lost:
        return "lost", lost[0]
    for name, peer in peers.items():
        if peer.record and peer.record.state != "finished":
            kind, text = cause_of(peer.record.reason)
            return "failed", RunError(text, kind=kind, host=name, run_id=run_id, phase="watch")
    return "finished", None


def _decisive(causes: list[tuple[float, str, str, str]]) -> tuple[float, str, str, str]:
    """Return the first cause, or the cancellation behind it.

    Where Slurm ends a job, a process may hear of it before the supervisor of its node does.
    """
    at, _, _, text = causes[0]
    cancelled = [
        cause for cause in causes if cause[3].startswith(CANCELLED) and cause[0] - at <= _CLOSE_S
    ]
    if cancelled and text.endswith("SIGTERM"):
        return cancelled[0]
    return causes[0]


def close_seconds(peers: Mapping[str, Peer], run_id: str) -> tuple[OrchError, ...]:
    """Return the ranks that failed so soon after the first one that clocks alone cannot determine
    the order.

    A rank that loses its peer may exit before that peer does, so their last log lines have to
    decide. Ranks that were ended by SIGTERM are not included.
    """
    first, *others = _causes(peers) or [(0.0, "", "", "")]
    others += [
        (at, name, kind, text) for name, peer in peers.items() for at, kind, text in peer.late
    ]
    return tuple(
        RunError(text, kind=kind, host=name, run_id=run_id, phase="watch")
        for at, name, kind, text in sorted(set(others) - {first})
        if first[2] == kind == "rank_failed"
        and at - first[0] <= _CLOSE_S
        and not text.endswith("SIGTERM")
    )


def _causes(peers: Mapping[str, Peer]) -> list[tuple[float, str, str, str]]:
    return sorted(
        {(at, name, kind, text) for name, peer in peers.items() for at, kind, text in peer.causes}
    )

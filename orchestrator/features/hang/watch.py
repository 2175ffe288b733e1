"""A run that does not go on: the ranks of all nodes are looked at, the suspicion is said, and a
proven hang is ended.

A node tells when its ranks, or its logs, are silent for longer than their own past explains.
Nothing is stopped for that. All nodes then look at what every rank does, again and again while the
silence lasts. A verdict is said where two looks agree on it and no rank has gone on in between; the
run is stopped if it names a cause, and the silence is long enough for its kind. Where nothing is
proven the limits of the run decide, as without this. A run that reaches one of them is looked at
before it is stopped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.controller.events import Resumed, Stalled
from orchestrator.controller.peer import Peer
from orchestrator.controller.stage import Stage
from orchestrator.errors import OrchError, RunError
from orchestrator.features.hang.cause import VERDICT_KEY, Verdict, subject
from orchestrator.features.hang.collectives import find_agreement, find_difference
from orchestrator.features.hang.node_report import HangReport, RankSeen
from orchestrator.features.hang.verdict import (
    LATE,
    NOW,
    SOON,
    declares_pauses,
    find_progress,
    verdict,
)
from orchestrator.plan.render import Plan
from orchestrator.record.journal import Event

_FAILED = re.compile(r"rank (?P<rank>\d+) ended with (?:exit code|SIGABRT)")
"""A rank that ended by itself."""
_LOOK_S = 8.0
_BETWEEN_S = 1.0
_LEFT_S = 5.0
_LONGEST_BETWEEN_S = 15.0
_PAUSES = ("alone", "asleep", "computes", "input", "pipe", "reads", "storage")
"""Kinds that a checkpoint, an evaluation or an upload looks like."""


@dataclass(frozen=True, slots=True)
class _Silence:
    """Since when a node's ranks are silent, on the controller's clock; the usual seconds of a step
    and the longest pause.
    """

    since: float
    usual_s: float
    pause_s: float


def patience_s(kind: str, usual_s: float, pause_s: float, *, declares: bool = True) -> float:
    """Return how long a run has to be silent before a verdict of this kind ends it; infinite if it
    never does. Ranks that do not declare their pauses may be in one wherever they do not wait for
    others.

    >>> patience_s("stopped", 0.3, 1.0), patience_s("asleep", 0.3, 1.0), patience_s("computes", 0.3, 8.0)
    (0.0, 10.0, 40.0)
    >>> patience_s("asleep", 0.3, 1.0, declares=False), patience_s("computes", 0.3, 8.0, declares=False)
    (60.0, 180.0)
    """
    may_pause = not declares and kind in _PAUSES
    if kind in NOW:
        return 0.0
    if kind == "alone" and may_pause:  # one rank often writes or evaluates what all have trained
        return float("inf")
    if kind in SOON:
        return max(60.0 if may_pause else 10.0, 20 * usual_s, 3 * pause_s)
    if kind in LATE:
        return max(180.0 if may_pause else 30.0, 50 * usual_s, 5 * pause_s)
    return float("inf")


class HangWatch:
    """The silence of one run. The watch loop hands in the events of nodes and asks
    whether to stop.
    """

    def __init__(self, plan: Plan, stage: Stage) -> None:
        self.stage = stage
        self.run_id = plan.run_id
        self.placed = {rank: node.slot.host for node in plan.nodes for rank in node.slot.ranks}
        self.overdue = ""
        self.ended_by: Verdict | None = None
        self._silences: dict[str, _Silence] = {}
        self._reports: dict[str, HangReport] = {}
        self._asked: frozenset[str] = frozenset()
        self._asked_at: float | None = None
        self._asked_since = 0.0
        self._next_look = 0.0
        self._seen: Mapping[str, HangReport] = {}
        self._verdict: Verdict | None = None
        self._said: Verdict | None = None
        self._ended_text = ""
        self._last_calls: dict[int, RankSeen] = {}
        self._others_ended = 0.0
        self._finishing: set[str] = set()

    def take(self, name: str, event: Mapping[str, Any]) -> None:
        """Take an event of a node. Raises KeyError, TypeError or ValueError if it is malformed."""
        match event["event"]:
            case "stalled":
                silent_s, usual_s, pause_s = (
                    float(event[key]) for key in ("silent_s", "usual_s", "pause_s")
                )
                self._silences[name] = _Silence(event["at"] - silent_s, usual_s, pause_s)
            case "resumed":
                self._resume(name, event["at"])
            case "finishing":
                self._finishing |= set(self.placed.values()) if event["of_run"] else {name}
            case "overdue":
                if not self.overdue:
                    self.overdue, self._next_look = str(event["reason"]), 0.0
            case "examined":
                self._reports[name] = HangReport.of(event.get("report"))
            case "collectives":
                self._last_calls |= {
                    seen.rank: seen for seen in HangReport.of(event.get("report")).ranks
                }

    def turn(self, now: float, peers: Mapping[str, Peer]) -> str:
        """Let all nodes look if that is due, and judge what they saw; return the reason to stop the
        run, empty without one.
        """
        self._note_survivors(now, peers)
        if not self.overdue and not self._silences:
            return ""
        if self._asked_at is None:
            if now >= self._next_look:
                self._ask(now, peers)
            return ""
        if not self._asked <= self._reports.keys() and now - self._asked_at < _LOOK_S:
            return ""
        self._asked_at = None
        seen = {name: report for name, report in self._reports.items() if name in self._asked}
        for name, peer in peers.items():
            if peer.record is not None:
                seen[name] = HangReport(
                    ended=tuple(rank.rank for rank in peer.record.ranks if rank.code == 0)
                )
        judged = verdict(seen, self.placed)
        moving = find_progress(self._seen, seen) if judged.kind != "ahead" else None
        before, self._verdict, self._seen = self._verdict, judged, seen
        agrees = before is not None and before.key == judged.key
        if self.overdue:
            is_first = before is None
            return self._judge_overdue(
                now, moving or judged, agrees or moving is not None, is_first
            )
        # A program may save and tear down for any time after its last step.
        is_over = self._silences.keys() <= self._finishing and judged.kind not in NOW
        return self._judge_silence(now, judged, agrees and moving is None and not is_over)

    def _note_survivors(self, now: float, peers: Mapping[str, Peer]) -> None:
        """Take nodes that run on for a while after others have ended for silent: the others' logs
        may have had the steps.
        """
        left = [name for name, peer in peers.items() if not peer.over]
        if not left or len(left) == len(peers):
            return
        self._others_ended = self._others_ended or now
        if now - self._others_ended > _LEFT_S:
            for name in left:
                self._silences.setdefault(name, _Silence(self._others_ended, 0.0, 0.0))

    def outcome(self, state: str, error: OrchError | None) -> tuple[str, OrchError | None]:
        """Return the state and the cause of a run: the verdict if the run was ended for it, and
        nothing failed before.
        """
        told = self.cause(error)
        if told is None:
            return state, self._of_suspicion(error) or self._of_collectives(error)
        return state, RunError(
            self._ended_text, kind="run_timeout", host=told.host, run_id=self.run_id, phase="watch"
        )

    def _of_suspicion(self, error: OrchError | None) -> OrchError | None:
        """Return the error of a run of which a rank gave up waiting: who was missed is its cause,
        and not who had the shortest limit. None if that rank failed for another reason."""
        said = self._said
        if said is None or not said.ranks or said.kind in NOW:
            return None
        if error is None or error.kind != "rank_failed":
            return None
        failed = _FAILED.match(error.message)
        if failed is None or int(failed["rank"]) in said.ranks:
            return None
        text = f"{said.message}; {error.host}: {error.message}"
        told = RunError(text, kind="rank_failed", host=said.host, run_id=self.run_id, phase="watch")
        told.cause = "the others waited for it until one of them gave up"
        told.hint = "orch summarize shows what each rank did: docs/hangs.md"
        return told

    def _of_collectives(self, error: OrchError | None) -> OrchError | None:
        """Return the error of a run that failed because ranks called different collectives: one of
        most ranks may be the first that ends with an error."""
        if error is None or error.kind != "rank_failed":
            return error
        found = find_difference(self._last_calls, len(self.placed))
        if found is None:
            failed = _FAILED.match(error.message)
            if (
                isinstance(error, RunError)
                and failed
                and int(failed["rank"]) not in self._last_calls
            ):
                error.others_agree = find_agreement(self._last_calls, len(self.placed))
            return error
        named = "" if found.odd is None else f"{subject((found.odd,))} "
        text = f"{named}{found.words}; {error.host}: {error.message}"
        host = "" if found.odd is None else self.placed.get(found.odd, "")
        told = RunError(text, kind="rank_failed", host=host, run_id=self.run_id, phase="watch")
        told.cause = "ranks called different collectives"
        told.hint = "the flight recorder of PyTorch tells the calls of each rank: docs/hangs.md"
        return told

    def cause(self, error: OrchError | None) -> Verdict | None:
        """Return the verdict for which the run was ended; None if it was not, or if something
        failed before.
        """
        if error is not None and error.kind == "run_timeout":
            return self.ended_by
        return None

    def evidence(self, error: OrchError | None) -> Mapping[str, Any]:
        """Return the verdict for the manifest, empty for a run that was not ended for one."""
        told = self.cause(error)
        return {VERDICT_KEY: asdict(told)} if told else {}

    def _ask(self, now: float, peers: Mapping[str, Peer]) -> None:
        self._asked_at = self._asked_since = now
        self._reports = {}
        self._asked = frozenset(
            name for name, peer in peers.items() if not peer.over and not peer.attaching
        )
        for name in self._asked:
            peers[name].send("examine")

    def _judge_overdue(self, now: float, judged: Verdict, agrees: bool, is_first: bool) -> str:
        """Return the reason to stop a run that has reached a limit: the verdict if it is proven,
        after two looks at most.
        """
        if judged.kind not in NOW and not agrees:
            if is_first and now - self._asked_since < _LOOK_S / 2:
                self._next_look = now + _BETWEEN_S
                return ""
            judged = Verdict("unknown", "it cannot be determined which rank is the cause")
        kind, _, limit = self.overdue.partition(": ")
        if judged.ranks:
            return self._end(judged, f"{judged.message}; {limit}", kind)
        return self._end(judged, f"{limit}; {judged.message}", kind)

    def _judge_silence(self, now: float, judged: Verdict, agrees: bool) -> str:
        """Report a verdict that two looks agree on, and return the reason to stop the run.

        It is stopped if it has been silent for long enough for its cause.
        """
        silences = self._silences.values()
        silent_s = now - min(silence.since for silence in silences)
        usual_s = max(silence.usual_s for silence in silences)
        pause_s = max(silence.pause_s for silence in silences)
        words = f"no step for {silent_s:.1f} s, usually {usual_s:.2g} s"
        patience = patience_s(judged.kind, usual_s, pause_s, declares=declares_pauses(self._seen))
        if agrees:
            self._say(judged, words)
            if silent_s >= patience:
                return self._end(judged, f"{judged.message}; {words}")
        wait_s = min(silent_s / 4, _LONGEST_BETWEEN_S)
        if silent_s < patience:
            wait_s = min(wait_s, patience - silent_s)
        self._next_look = now + max(_BETWEEN_S, wait_s)
        return ""

    def _say(self, judged: Verdict, silence: str) -> None:
        """Tell a suspicion once."""
        if self._said is None or self._said.key != judged.key:
            self._said = judged
            words = f"{silence}: {judged.sentence}"
            self.stage.journal(Event.STALLED, words=words)
            self.stage.observe(Stalled(words))

    def _end(self, judged: Verdict, text: str, kind: str = "run_timeout") -> str:
        self.ended_by, self._ended_text = judged, text
        return f"{kind}: {text}"

    def _resume(self, name: str, at: float) -> None:
        silence = self._silences.pop(name, None)
        self._verdict, self._seen, self._asked_at = None, {}, None
        if self._said is not None and silence is not None and not self._silences:
            self._said = None
            self.stage.journal(Event.RESUMED, silent_s=round(at - silence.since, 1))
            self.stage.observe(Resumed(at - silence.since))


def monitor(plan: Plan, stage: Stage) -> HangWatch:
    """Return a monitor that watches a run for hangs."""
    return HangWatch(plan, stage)

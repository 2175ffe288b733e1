"""When a silent run is looked at, what is said of it, and when a verdict ends it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.controller.events import Resumed, Stalled
from orchestrator.errors import RunError
from orchestrator.features.hang.watch import HangWatch, patience_s

WAITS: dict[str, Any] = {
    "state": "S",
    "was": "S",
    "progress": {"step": 7, "phase": "collective", "marks": 1},
}
STOPPED = {"state": "T", "was": "T", "progress": {"step": 7, "phase": "compute", "marks": 1}}
ASLEEP = {
    "state": "S",
    "was": "S",
    "call": "futex",
    "window_s": 0.5,
    "progress": {"step": 7, "phase": "compute", "marks": 1},
}
BUSY = ASLEEP | {"cpu_s": 0.5}
STARVED = ASLEEP | {"progress": {"step": 7, "phase": "input", "marks": 1}}


@dataclass
class Run:
    """A run of two ranks on two nodes, whose nodes answer every question with what ``does`` says;
    the clock is the test's.
    """

    does: list[dict[str, Any]]
    usual_s: float = 0.3
    pause_s: float = 1.0
    now: float = 100.0
    asked: list[float] = field(default_factory=list)
    said: list[object] = field(default_factory=list)
    journal: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        stage = SimpleNamespace(
            journal=lambda event, **fields: self.journal.append((event, fields)),
            observe=self.said.append,
        )
        nodes = [
            SimpleNamespace(slot=SimpleNamespace(host=f"node{rank + 1}", ranks=(rank,)))
            for rank in (0, 1)
        ]
        self.watch = HangWatch(SimpleNamespace(run_id="run", nodes=nodes), stage)  # type: ignore[arg-type]
        self.peers = {
            f"node{rank + 1}": SimpleNamespace(
                over=False,
                attaching=False,
                record=None,
                send=lambda do, rank=rank: self.answer(rank),
            )
            for rank in (0, 1)
        }

    def answer(self, rank: int) -> None:
        if f"node{rank + 1}" not in self.silent:
            self.asked.append(self.now)
            self.tell(rank, "examined", report={"ranks": [{"rank": rank, **self.does[rank]}]})

    def tell(self, rank: int, event: str, **fields: Any) -> None:
        self.watch.take(f"node{rank + 1}", {"event": event, "at": self.now, **fields})

    def stall(self, silent_s: float = 3.0) -> None:
        for rank in (0, 1):
            self.tell(
                rank, "stalled", silent_s=silent_s, usual_s=self.usual_s, pause_s=self.pause_s
            )

    def stops(self, within_s: float = 1000.0) -> str:
        """Let time pass; return the reason of the stop, or nothing after ``within_s``."""
        until = self.now + within_s
        while self.now < until:
            if reason := self.watch.turn(self.now, self.peers):  # type: ignore[arg-type]
                return reason
            self.now += 0.1
        return ""


def test_a_run_that_goes_on_is_never_asked() -> None:
    run = Run([WAITS, STOPPED])
    assert run.stops(100) == "" and run.asked == []


def test_two_looks_that_agree_end_a_run_with_a_stopped_rank_in_seconds() -> None:
    run = Run([WAITS, STOPPED])
    run.stall(3.0)
    assert run.stops().startswith(
        "run_timeout: rank 1 stopped in step 7 (state T); rank 0 waits in a collective of step 7; no step"
    )
    assert run.now < 102.0 and len(set(run.asked)) == 2
    (suspicion,) = run.said
    assert isinstance(suspicion, Stalled) and "rank 1 on node2 stopped in step 7" in suspicion.words
    fallback = RunError("rank 1 stopped", kind="run_timeout", host="node1")
    state, error = run.watch.outcome("failed", fallback)
    assert (state, error and error.host, error and error.kind) == ("failed", "node2", "run_timeout")


def test_what_failed_before_the_stop_stays_the_cause() -> None:
    run = Run([WAITS, STOPPED])
    run.stall()
    assert run.stops()
    earlier = RunError("rank 0 ended with exit code 1", kind="rank_failed", host="node1")
    assert run.watch.outcome("failed", earlier) == ("failed", earlier)


@pytest.mark.parametrize(
    ("does", "usual_s", "pause_s", "after_s"),
    [
        (STARVED, 0.3, 1.0, 30),
        (ASLEEP, 0.3, 1.0, 10),
        (ASLEEP, 2.0, 1.0, 40),
        (ASLEEP, 0.3, 20.0, 60),
        (BUSY, 0.3, 1.0, 30),
        (BUSY, 0.3, 60.0, 300),
    ],
)
def test_what_a_pause_may_look_like_needs_a_longer_silence(
    does: dict[str, Any], usual_s: float, pause_s: float, after_s: float
) -> None:
    run = Run([WAITS, does], usual_s, pause_s)
    run.stall(3.0)
    assert run.stops()
    assert after_s <= run.now - 100.0 + 3.0 < after_s + 1.5


@pytest.mark.parametrize(
    ("does", "of_run", "is_said"),
    [(ASLEEP, True, False), (ASLEEP, False, True), (STOPPED, True, True)],
)
def test_only_what_no_program_does_is_said_after_the_last_planned_step(
    does: dict[str, Any], of_run: bool, is_said: bool
) -> None:
    run = Run([WAITS, does])
    run.tell(0, "finishing", of_run=of_run)
    run.stall()
    assert (bool(run.stops(100.0)), bool(run.said)) == (is_said, is_said)


@pytest.mark.parametrize("kind", ["unknown", "pause", "reads", "traced"])
def test_what_names_nobody_ends_nothing(kind: str) -> None:
    assert patience_s(kind, 0.3, 1.0) == float("inf")


def test_an_unknown_cause_is_said_once_and_looked_at_less_and_less_often() -> None:
    run = Run([WAITS, WAITS])
    run.stall()
    assert run.stops(600) == ""
    assert [type(event) for event in run.said] == [Stalled]
    assert 600 / 15 < len(set(run.asked)) < 60


def test_a_run_that_goes_on_again_is_no_hang() -> None:
    run = Run([WAITS, ASLEEP])
    run.stall()
    assert run.stops(4) == ""
    for rank in (0, 1):
        run.tell(rank, "resumed")
    assert run.stops(100) == ""
    assert [type(event) for event in run.said] == [Stalled, Resumed]
    assert [event for event, _ in run.journal] == ["stalled", "resumed"]


def test_a_node_whose_rank_has_left_before_the_others_is_named() -> None:
    run = Run([WAITS, WAITS])
    left = SimpleNamespace(ranks=(SimpleNamespace(rank=1, code=0),))
    run.peers["node2"] = SimpleNamespace(over=True, attaching=False, record=left, send=None)
    run.stall()
    assert run.stops().startswith(
        "run_timeout: rank 1 ended, with success; rank 0 waits in a collective of step 7; no step for 1"
    )


def test_a_look_from_before_a_pause_is_not_taken_for_one_after_it() -> None:
    run = Run([WAITS, STOPPED])
    run.silent = {"node1", "node2"}
    run.stall()
    assert run.stops(2) == ""  # asked, and nobody has answered yet
    for rank in (0, 1):
        run.tell(rank, "examined", report={"ranks": [{"rank": rank, **run.does[rank]}]})
        run.tell(rank, "resumed")
    assert run.stops(5) == ""
    run.silent, run.does = set(), [WAITS, WAITS]
    run.stall()
    assert run.stops(30) == "" and all("rank 1 stopped" not in str(event) for event in run.said)


def test_a_verdict_that_changes_between_two_looks_ends_nothing() -> None:
    run = Run([WAITS, STOPPED])
    run.stall()
    for _ in range(40):
        run.does = [run.does[1], run.does[0]]
        asked = len(run.asked)
        while len(run.asked) == asked:
            assert run.watch.turn(run.now, run.peers) == ""  # type: ignore[arg-type]
            run.now += 0.1
        assert run.watch.turn(run.now, run.peers) == ""  # type: ignore[arg-type]


def test_a_run_that_goes_on_when_it_reaches_a_limit_has_no_culprit() -> None:
    run = Run([WAITS, ASLEEP])
    run.tell(0, "overdue", reason="run_timeout: longer than 60 s")
    while len(run.asked) < 2:
        assert run.watch.turn(run.now, run.peers) == ""  # type: ignore[arg-type]
    run.does = [
        does | {"progress": {"step": 9, "phase": "compute", "marks": 40}} for does in run.does
    ]
    assert run.stops() == "run_timeout: longer than 60 s; ranks 0, 1 still made progress, in step 9"
    _, error = run.watch.outcome("failed", RunError("x", kind="run_timeout", host="node1"))
    assert error is not None and error.host == ""


def test_a_silence_in_which_a_rank_goes_on_ends_nothing_and_names_nobody() -> None:
    run = Run([WAITS, ASLEEP])
    run.stall()
    for mark in range(200):
        run.does[1] = ASLEEP | {"progress": {"step": 7, "phase": "input", "marks": mark}}
        assert run.stops(0.5) == ""
    assert run.said == []


def test_a_limit_ends_a_run_after_two_looks_with_all_that_was_seen() -> None:
    run = Run([WAITS, WAITS])
    run.tell(0, "overdue", reason="run_timeout: no new line for 600 s")
    reason = run.stops()
    assert reason.startswith(
        "run_timeout: no new line for 600 s; it cannot be determined which rank is the cause: ranks 0, 1 wait"
    )
    _, error = run.watch.outcome("failed", RunError("x", kind="run_timeout", host="node1"))
    assert error is not None and error.host == ""


def test_a_node_that_does_not_answer_holds_up_no_stop() -> None:
    run = Run([WAITS, STOPPED])
    run.silent = {"node1"}
    run.tell(1, "overdue", reason="run_timeout: longer than 60 s")
    reason = run.stops()
    assert (
        reason == "run_timeout: rank 1 stopped in step 7 (state T); longer than 60 s"
        and run.now < 110.0
    )


@pytest.mark.parametrize("silent_s", ["long", None, [1]])
def test_a_malformed_event_is_an_error_of_its_node(silent_s: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Run([WAITS, WAITS]).tell(0, "stalled", silent_s=silent_s, usual_s=1.0, pause_s=1.0)


def calls(*names: str) -> list[dict[str, Any]]:
    entries = enumerate(names)
    return [
        {
            "group": "0",
            "number": at,
            "name": f"gloo:{name}",
            "over": at < len(names),
            "sizes": "[[4]]",
        }
        for at, name in entries
    ]


def test_a_rank_that_called_another_collective_is_the_cause_of_the_failure_of_others() -> None:
    run = Run([WAITS, WAITS])
    run.watch.placed = {0: "node1", 1: "node2", 2: "node3"}
    healthy, odd = (
        calls("all_reduce", "all_reduce", "barrier"),
        calls("all_reduce", "barrier", "all_reduce"),
    )
    for rank, earlier in enumerate((healthy, odd, healthy)):
        name = f"node{rank + 1}"
        run.watch.take(
            name,
            {"event": "collectives", "report": {"ranks": [{"rank": rank, "earlier": earlier}]}},
        )
    failed = RunError("rank 0 ended with exit code 1", kind="rank_failed", host="node1")
    _, error = run.watch.outcome("failed", failed)
    assert error and (error.host, error.kind) == ("node2", "rank_failed")
    assert error.message.startswith(
        "rank 1 called barrier 1, the others all-reduce 1; node1: rank 0 ended with exit code 1"
    )
    run.watch._last_calls.pop(2)  # it was aborted, and said nothing
    _, told = run.watch.outcome("failed", failed)
    assert told and not told.host
    assert told.message.startswith(
        "ranks disagree, and nobody is known to be wrong: rank 0 called all-reduce 1 of sizes [[4]]; "
        "rank 1 called barrier 1; node1:"
    )
    killed = RunError("no sign of life", kind="node_lost", host="node1")
    assert run.watch.outcome("lost", killed) == ("lost", killed)


@pytest.mark.parametrize(
    ("said", "agreed"),
    [
        (
            {0: ["reduce", "barrier"] * 2, 2: ["reduce", "barrier"] * 2},
            "ranks 0, 2 called barrier 3",
        ),
        ({0: ["barrier", "barrier", "reduce"], 2: ["barrier", "barrier", "reduce"]}, ""),
        ({0: ["reduce", "barrier"] * 2, 2: ["reduce", "barrier", "reduce"]}, ""),
        ({0: ["reduce", "barrier"] * 2}, ""),
        ({1: ["reduce", "barrier"] * 2, 2: ["reduce", "barrier"] * 2}, ""),
        ({0: ["all_to_all", "barrier"] * 2, 2: ["all_to_all", "barrier"] * 2}, ""),
        ({0: ["send 0->1", "barrier"] * 2, 2: ["recv 2<-1", "barrier"] * 2}, ""),
    ],
    ids=["as before", "new", "one is behind", "two ended", "its own", "uneven parts", "pairs"],
)
def test_the_call_of_all_but_the_rank_that_failed_is_told_if_it_is_the_usual_one(
    said: dict[int, list[str]], agreed: str
) -> None:
    run = Run([WAITS, WAITS])
    run.watch.placed = {0: "node1", 1: "node2", 2: "node3"}
    for rank, names in said.items():
        seen = {"rank": rank, "earlier": calls(*names)[:-1], "collectives": calls(*names)[-2:]}
        run.watch.take(f"node{rank + 1}", {"event": "collectives", "report": {"ranks": [seen]}})
    failed = RunError("rank 1 ended with SIGABRT", kind="rank_failed", host="node2")
    assert run.watch.outcome("failed", failed) == ("failed", failed)
    assert failed.others_agree == agreed


def test_who_was_missed_is_the_cause_if_another_gives_up_waiting() -> None:
    """A limit of a collective, of a barrier or of a store may be shorter than the patience here."""
    run = Run([WAITS, ASLEEP])
    run.stall()
    assert run.stops(5.0) == "" and run.said
    gives_up = RunError("rank 0 ended with exit code 1", kind="rank_failed", host="node1")
    _, told = run.watch.outcome("failed", gives_up)
    assert told and told.host == "node2"
    assert re.match("rank 1 .*; node1: rank 0 ended with exit code 1$", told.message)
    for own in ("rank 1 ended with exit code 1", "rank 0 ended with SIGKILL"):
        error = RunError(own, kind="rank_failed", host="node1")
        assert run.watch.outcome("failed", error) == ("failed", error)
    for rank in (0, 1):
        run.tell(rank, "resumed")
    assert run.watch.outcome("failed", gives_up) == ("failed", gives_up)


def test_the_last_node_is_looked_at_although_its_logs_name_no_step() -> None:
    run = Run([WAITS, {"state": "S", "was": "S", "call": "futex", "window_s": 0.5}])
    ended = SimpleNamespace(ranks=(SimpleNamespace(rank=0, code=0),))
    run.peers["node1"] = SimpleNamespace(over=True, attaching=False, record=ended, send=None)
    assert run.stops(600) == ""  # it may write what all have trained
    (suspicion,) = run.said
    assert (
        isinstance(suspicion, Stalled)
        and "rank 1 on node2 runs on alone, and sleeps in futex" in suspicion.words
    )


def test_a_rank_that_declares_no_pauses_may_be_in_one_for_longer() -> None:
    recorded = {
        "collectives": [
            {"group": "0", "number": 7, "name": "gloo:all_reduce", "over": False, "sizes": ""}
        ]
    }
    idle = {
        "collectives": [
            {"group": "0", "number": 6, "name": "gloo:all_reduce", "over": True, "sizes": ""}
        ]
    }
    plain = {"state": "S", "was": "S", "window_s": 0.5}
    run = Run([plain | recorded, plain | idle])
    run.stall(3.0)
    assert run.stops() and 60 <= run.now - 100.0 + 3.0 < 75
    marks = {"progress": {"step": 7, "phase": "step", "marks": 9, "marked": 0b10001000}}
    declaring = Run([plain | recorded | marks, plain | idle | marks])
    declaring.stall(3.0)
    assert declaring.stops() and declaring.now - 100.0 + 3.0 < 12

"""What the controller makes of what its nodes say, and of what they do not say: the first cause,
and an end everywhere.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from noderun.examination import FAILED
from orchestrator.api.progress import Progress
from orchestrator.controller.events import (
    FilesAnswer,
    FilesSilent,
    LogGrew,
    NodeEnded,
    Started,
    Stopping,
)
from orchestrator.controller.peer import A_NODE_FAILED, Peer, first_cause
from orchestrator.errors import Interrupted, TransportError
from orchestrator.plan.limits import Limits
from orchestrator.record.journal import Event
from orchestrator.record.node_record import RankRecord
from tests.support.fake_bench import IMPATIENT, FakeBench, training
from tests.support.fake_node import FakeNode
from tests.support.fake_supervisor import Rank
from tests.support.timers import call_later


def test_a_node_knows_the_reason_for_which_its_ranks_may_tell_their_collectives() -> None:
    assert A_NODE_FAILED.startswith(FAILED)


def lasting(order):
    return {order["node_rank"]: Rank()}


def ending(code: int, after_s: float):
    return lambda order: {order["node_rank"]: Rank(b"", code, after_s)}


def reason(rig: FakeBench, name: str) -> str:
    """Why a node ended the run, by its own record."""
    return json.loads((rig.nodes[name].folder(rig.first.run_id) / "exit.json").read_text())[
        "reason"
    ]


def cut_off(node: FakeNode, seconds: float) -> None:
    """Break a node's lines, and keep it out of reach for a while."""
    node.away = True
    node.break_lines()
    call_later(seconds, lambda: setattr(node, "away", False))


def test_the_log_is_shown_as_it_grows_and_every_end_is_told(rig: FakeBench) -> None:
    rig.runs(training(rig.spec, after_s=0.2))  # some beats, of which one brings something
    rig.launch().run()
    shown = b"".join(event.data for event in rig.shown if isinstance(event, LogGrew))
    assert shown.startswith(b"orch rank=0 local_rank=0 world_size=2") and shown.count(b"\n") == 9
    assert sorted(
        (event.host, event.state) for event in rig.shown if isinstance(event, NodeEnded)
    ) == [
        ("a", "finished"),
        ("b", "finished"),
    ]


def test_a_rank_that_fails_ends_the_run_everywhere(rig: FakeBench) -> None:
    rig.runs(lasting, b=ending(3, 0.05))
    outcome = rig.launch().run()
    assert outcome.error and (outcome.state, outcome.error.kind, outcome.error.host) == (
        "failed",
        "rank_failed",
        "b",
    )
    assert outcome.error.message == "rank 1 ended with exit code 3"
    assert reason(rig, "a") == A_NODE_FAILED and not rig.a.supervisors and not rig.b.supervisors
    assert [event.reason for event in rig.shown if isinstance(event, Stopping)] == [A_NODE_FAILED]
    assert [
        entry.fields["reason"] for entry in rig.bench.events() if entry.event == Event.STOPPING
    ] == [A_NODE_FAILED]


def test_the_first_cause_is_what_happened_first_and_not_what_was_heard_first(
    rig: FakeBench,
) -> None:
    rig.runs(a=ending(5, 0.15), b=ending(4, 0.05))
    rig.when[Started] = lambda: cut_off(rig.b, 0.2)
    outcome = rig.launch().run()
    assert outcome.error and (outcome.error.host, outcome.error.message) == (
        "b",
        "rank 1 ended with exit code 4",
    )
    assert [error.host for error in outcome.rivals] == ["a"]  # which clocks alone cannot rule out


def test_a_node_that_falls_silent_is_lost_and_the_others_are_stopped(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT)
    rig.runs(lasting)
    rig.when[Started] = lambda: setattr(rig.b, "silent", True)
    outcome = rig.launch().run()
    assert outcome.error and (outcome.state, outcome.error.kind, outcome.error.host) == (
        "lost",
        "node_lost",
        "b",
    )
    assert "it stops the run by itself within 9 s" in outcome.error.message
    assert outcome.answers["b"].silent and not outcome.answers["a"].silent
    assert reason(rig, "a") == A_NODE_FAILED


def test_a_node_whose_files_do_not_answer_is_not_lost_and_its_mount_is_named(
    rig: FakeBench,
) -> None:
    mount = "/home (nfs4 from server:/home)"

    def answer() -> None:
        rig.b.waits = None
        call_later(0.2, lambda: [one.end_rank(1, 0, None) for one in rig.b.supervisors.values()])

    def wait() -> None:
        rig.b.waits = (mount, 7.0)
        call_later(0.2, answer)

    rig.runs(a=ending(0, 0.02), b=lasting)
    rig.when[Started] = wait
    assert rig.launch().run().state == "finished"
    told = [event for event in rig.shown if isinstance(event, FilesSilent | FilesAnswer)]
    assert told == [FilesSilent("b", mount, 7.0), FilesAnswer("b", mount, 7.0)]
    lines = [line for event in told for line in Progress().take(event)]
    assert lines == [
        f"  b: {mount} has not answered for 7 s",
        f"  b: {mount} answers again, after 7 s",
    ]


def test_what_runs_a_silent_node_is_asked_for_its_fate_before_the_verdict(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT)
    gone = TransportError("pod b was deleted", kind="host_gone", host="b")
    rig.cluster.fates["b"] = gone
    rig.runs(lasting)
    rig.when[Started] = lambda: setattr(rig.b, "silent", True)
    outcome = rig.launch().run()
    assert outcome.error is gone and outcome.faults == (gone,), outcome
    (tmp_path / "mute").mkdir()
    rig = FakeBench(tmp_path / "mute", limits=IMPATIENT)
    mute = TransportError("Kubernetes does not answer", kind="host_unreachable", host="b")
    rig.cluster.fates["b"] = mute
    rig.runs(lasting)
    rig.when[Started] = lambda: setattr(rig.b, "silent", True)
    error = rig.launch().run().error
    assert error and error.kind == "node_lost" and error.hint.endswith("Kubernetes does not answer")


def test_a_node_given_up_for_its_silence_may_still_be_found_to_be_gone(rig: FakeBench) -> None:
    """The search for it and the judge of its silence work at the same time: either may be first."""
    watch = rig.launch().watch
    peer = watch.peers["b"] = Peer("b", None, last_answer=4.0, spoke_at=4.0)
    peer.give_up(TransportError("no sign of life", kind="node_lost", host="b"), 4.0, None)
    gone = TransportError("pod b was deleted", kind="host_gone", host="b")
    watch._take("b", peer, {"event": "given_up", "error": gone, "since": 4.0, "at": 9.0})
    assert first_cause({"b": peer}, "a run") == ("lost", gone)
    assert (gone.exit_code, peer.last_answer) == (3, 4.0)


def test_a_silent_node_whose_server_greets_is_given_a_moment_more(tmp_path: Path) -> None:
    rig = FakeBench(
        tmp_path,
        limits=Limits(beat_s=0.05, lost_s=1.25, doubt_s=60, grace_s=0.2, arm_s=2, ask_s=2),
    )
    rig.runs(training(rig.spec, after_s=1.6))
    rig.a.greets = rig.b.greets = True  # a thread of a busy machine may be late by a second, too

    def falls_silent() -> None:
        rig.b.silent = True
        call_later(1.5, lambda: setattr(rig.b, "silent", False))

    rig.when[Started] = falls_silent
    outcome = rig.launch().run()
    assert (outcome.state, outcome.error) == ("finished", None) and outcome.answers[
        "b"
    ].longest_silence_s > 1.35


def test_a_line_that_breaks_is_made_again_and_the_run_goes_on(rig: FakeBench) -> None:
    rig.runs(training(rig.spec, after_s=0.4))
    rig.when[Started] = rig.b.break_lines
    outcome = rig.launch().run()
    assert (outcome.state, outcome.error) == ("finished", None)
    assert rig.told() == ["staged", "armed", "started", "line_lost", "reattached"]


def test_what_ended_while_its_line_was_broken_is_read_from_its_record(rig: FakeBench) -> None:
    rig.runs(training(rig.spec, after_s=0.05))
    rig.when[Started] = lambda: cut_off(rig.b, 0.2)
    outcome = rig.launch().run()
    assert (outcome.state, outcome.error) == ("finished", None) and "reattached" not in rig.told()


def test_a_stop_reaches_a_node_whose_line_was_broken_when_it_was_ordered(rig: FakeBench) -> None:
    rig.runs(lasting, a=ending(2, 0.1))
    rig.when[Started] = lambda: cut_off(rig.b, 0.2)
    outcome = rig.launch().run()
    assert (
        outcome.error
        and (outcome.state, outcome.error.host) == ("failed", "a")
        and reason(rig, "b") == A_NODE_FAILED
    )


@pytest.mark.parametrize("meanwhile", ["nothing", "a rank failed first", "the user interrupts"])
def test_another_host_key_at_a_reconnection_is_reported_and_never_contacted_again(
    rig: FakeBench, meanwhile: str
) -> None:
    rig.runs(lasting, a=ending(2, 0.0) if meanwhile == "a rank failed first" else lasting)

    def taken_over() -> None:
        rig.b.stranger, rig.b.contacts = True, 0
        rig.b.break_lines()
        rig.interrupt.signal = 2 * (meanwhile == "the user interrupts")

    rig.when[Started] = taken_over
    outcome = rig.launch().run()
    assert outcome.error and (outcome.state, outcome.error.kind, outcome.error.host) == (
        "lost",
        "host_key_changed",
        "b",
    )
    assert outcome.error.exit_code == 3 and rig.b.contacts == 1 and "b" not in rig.cluster.nodes


def test_a_supervisor_that_was_killed_fails_the_run_and_its_ranks_are_ended(rig: FakeBench) -> None:
    rig.runs(lasting)
    rig.b.leftovers = [7]
    rig.when[Started] = rig.b.die
    outcome = rig.launch().run()
    assert outcome.error and (outcome.state, outcome.error.kind, outcome.error.host) == (
        "failed",
        "node_lost",
        "b",
    )
    assert (
        "its remaining ranks were ended" in outcome.error.message
        and rig.b.asked[-1] == "stop"
        and rig.b.leftovers == []
    )


def test_what_may_be_left_of_a_run_without_its_supervisor_is_named_with_the_first_cause(
    rig: FakeBench,
) -> None:
    rig.runs(lasting)
    rig.b.unverified = [(11, "sleep"), (12, "python3")]
    rig.when[Started] = rig.b.die
    outcome = rig.launch().run()
    assert outcome.error and (outcome.error.kind, outcome.error.host) == ("node_lost", "b")
    assert (
        "not verified: processes 11 (sleep), 12 (python3) may belong to the run"
        in outcome.error.message
    )


def test_a_rank_that_its_node_ended_is_no_cause_although_the_offset_of_its_clock_has_changed() -> (
    None
):
    peer = Peer("a", None, offset_s=0.0)
    peer.blame_stop("storage_full: No space left on device", 100.0, None)
    peer.offset_s = 0.010  # a beat in between estimates another one
    peer.blame_rank(RankRecord(1, None, "SIGTERM", ended_mono_s=100.002), None)
    state, error = first_cause({"a": peer}, "r1")
    assert error and (state, error.kind, error.message) == (
        "failed",
        "storage_full",
        "No space left on device",
    )
    failed_first = Peer("a", None)
    failed_first.blame_rank(RankRecord(1, None, "SIGKILL", ended_mono_s=99.9), None)
    failed_first.blame_stop("rank_failed: rank 1 ended with SIGKILL", 100.0, None)
    _, error = first_cause({"a": failed_first}, "r1")
    assert error and error.message == "rank 1 ended with SIGKILL"


def test_a_rank_that_a_cancellation_ended_before_its_supervisor_heard_of_it_is_no_cause() -> None:
    def verdict(signal: str, heard_s: float) -> str:
        cancelled, ended = Peer("a", None), Peer("b", None)
        ended.blame_rank(RankRecord(1, None, signal, ended_mono_s=100.0), None)
        cancelled.blame_stop("cancelled by Slurm, which ends the job", heard_s, None)
        state, error = first_cause({"a": cancelled, "b": ended}, "r1")
        assert error
        return f"{state}: {error.message}"

    assert verdict("SIGTERM", 100.1) == "interrupted: cancelled by Slurm, which ends the job"
    assert verdict("SIGTERM", 102.0) == "failed: rank 1 ended with SIGTERM"
    assert verdict("SIGKILL", 100.1) == "failed: rank 1 ended with SIGKILL"


def test_a_node_that_still_hashes_its_logs_after_a_stop_is_waited_for(rig: FakeBench) -> None:
    watch = rig.launch().watch
    watch.peers = {"a": Peer("a", None), "b": Peer("b", None)}
    watch._take("b", watch.peers["b"], {"event": "closing", "at": time.monotonic()})
    watch._stopping_since = time.monotonic() - 60
    watch._give_up_late_stops()
    assert watch.peers["a"].error and not watch.peers["b"].error
    watch.peers["b"].waits_for, watch.peers["b"].waits_s = "/home (nfs4 from server:/home)", 60.0
    watch._give_up_late_stops()
    error = watch.peers["b"].error
    assert error and error.message == (
        "run did not end in time after its stop: "
        "/home (nfs4 from server:/home) has not answered for 60 s"
    )


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("node_unfit: /disk: Read-only file system", "failed"),
        ("rank_failed: its launch script ended with SIGTERM", "lost"),
    ],
)
def test_a_node_that_told_its_own_cause_before_it_was_lost_is_believed(
    reason: str, state: str
) -> None:
    peer = Peer("a", None)
    peer.blame_stop(reason, 10.0, None)
    peer.give_up(TransportError("no sign of life", kind="node_lost", host="a"), 9.8, None)
    ended, error = first_cause({"a": peer}, "r1")
    expected = "/disk: Read-only file system" if state == "failed" else "no sign of life"
    assert error and (ended, error.message) == (state, expected)


def test_a_run_whose_end_on_a_node_is_not_known_says_so(rig: FakeBench) -> None:
    watch = rig.launch().watch
    a, b = Peer("a", None), Peer("b", None)
    watch.peers = {"a": a, "b": b}
    a.blame_stop("run_timeout: longer than 5 s", 1.0, None)
    b.waits_for, b.waits_s = "/home (nfs4 from server:/home)", 60.0
    _, error = watch.verdict()
    assert error and error.hint == (
        "not verified: whether the run has ended on b: /home (nfs4 from server:/home) has not "
        "answered for 60 s; when it answers, orch collect fetches the logs"
    )


def test_what_is_being_stopped_neither_hangs_nor_goes_on(rig: FakeBench) -> None:
    watch = rig.launch().watch
    peer = watch.peers["a"] = Peer("a", None)
    taken: list[str] = []
    watch.monitors.take = lambda _, event: taken.append(event["event"])  # type: ignore[method-assign]
    for what in ("stalled", "resumed"):
        watch._take("a", peer, {"event": what, "at": 1.0})
    watch._stopping_since = 2.0
    for what in ("resumed", "examined", "collectives"):
        watch._take("a", peer, {"event": what, "at": 3.0})
    assert taken == ["stalled", "resumed", "collectives"]


def test_a_lost_node_was_alive_when_it_wrote_its_last_answer_and_not_when_that_was_read(
    rig: FakeBench,
) -> None:
    watch = rig.launch().watch
    peer = watch.peers["a"] = Peer("a", None, offset_s=1000.0)
    watch._take(
        "a", peer, {"event": "beat", "n": 1, "mono": 1005.0, "at": 9.0}
    )  # the controller was stopped for 4 s
    assert (peer.last_answer, peer.alive_at) == (9.0, 5.0)


def test_a_node_that_was_started_again_is_named_as_such(rig: FakeBench) -> None:
    rig.runs(lasting)

    def reboot() -> None:
        rig.b.boot_id = "another boot"
        rig.b.die()

    rig.when[Started] = reboot
    outcome = rig.launch().run()
    assert outcome.error and (outcome.state, outcome.error.kind, outcome.error.host) == (
        "lost",
        "node_rebooted",
        "b",
    )
    assert "stop" not in rig.b.asked


@pytest.mark.parametrize(
    ("said", "state", "kind", "message"),
    [
        ("cancelled by me@desk", "interrupted", "interrupted", "cancelled by me@desk"),
        ("run_timeout: longer than 60 s", "failed", "run_timeout", "longer than 60 s"),
        ("lease_expired: nobody renewed it", "failed", "lease_expired", "nobody renewed it"),
        ("somebody's own reason", "failed", "interrupted", "somebody's own reason"),
    ],
)
def test_a_node_that_stops_by_itself_says_why(
    rig: FakeBench, said: str, state: str, kind: str, message: str
) -> None:
    rig.runs(lasting)
    rig.when[Started] = lambda: rig.b.supervisors[rig.first.run_id].stop(said)
    outcome = rig.launch().run()
    assert outcome.error and (outcome.state, outcome.error.kind, outcome.error.message) == (
        state,
        kind,
        message,
    )
    assert reason(rig, "b") == said


def test_a_signal_stops_every_node(rig: FakeBench) -> None:
    rig.runs(lasting)
    rig.when[Started] = lambda: setattr(rig.interrupt, "signal", 2)
    outcome = rig.launch().run()
    assert (
        isinstance(outcome.error, Interrupted)
        and outcome.state == "interrupted"
        and outcome.error.exit_code == 130
    )
    assert {reason(rig, name) for name in ("a", "b")} == {
        "interrupted: the controller got a signal"
    }


def test_what_only_waits_for_the_first_node_is_finished_with_it(rig: FakeBench) -> None:
    rig.runs(lasting, a=training(rig.spec))
    outcome = rig.launch(launch="first_node").run()
    assert (outcome.state, outcome.error) == ("finished", None) and reason(rig, "b") == ""


def test_a_runner_that_says_something_malformed_fails_the_run(rig: FakeBench) -> None:
    rig.runs(lasting)
    rig.when[Started] = lambda: rig.b.supervisors[rig.first.run_id].tell(
        "rank", code=1, ended_mono_s=0.0
    )
    outcome = rig.launch().run()
    assert outcome.error and (outcome.error.kind, outcome.error.host) == ("result_invalid", "b")

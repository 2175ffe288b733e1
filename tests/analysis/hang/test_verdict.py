"""Who is named for a run that does not go on, and that nobody is named without proof."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.analysis.hang import verdict
from orchestrator.record.hang_report import Collective, Connection, HangReport, Process, Progress, RankSeen, Thread
from orchestrator.record.hang_verdict import Verdict

ASLEEP = RankSeen(
    rank=0, pid=1, state="S", was="S", channel="futex_wait_queue", call="futex", of="", window_s=0.5, cpu_s=0.0,
    children_cpu_s=0.0, io_bytes=0, frozen=False, progress=None,
)  # fmt: skip


def at(phase: str, step: int = 118, **changes: Any) -> RankSeen:
    """A rank that reports its phase, and has been silent for 20 s."""
    return replace(ASLEEP, progress=Progress(step, phase, 1, changes.pop("silent_s", 20.0)), **changes)


def in_call(number: int, name: str = "gloo:all_reduce", group: str = "0", sizes: str = "[[4]]", **changes: Any) -> RankSeen:
    """A rank whose flight recorder has a collective that is not over."""
    earlier = Collective(group, number - 1, "gloo:all_reduce", "[[4]]", True)
    pending = Collective(group, number, name, sizes, False)
    return at("step", collectives=(earlier, pending), **changes)


def judged(*seen: RankSeen) -> Verdict:
    """The verdict on ranks of which each is on a node of its own."""
    reports = {f"node{rank + 1}": HangReport((replace(one, rank=rank),)) for rank, one in enumerate(seen)}
    return verdict(reports, {rank: f"node{rank + 1}" for rank in range(len(seen))})


STOPPED = (Process(9, "worker", "T"),)
WAITING = at("collective")
OUT = at("step", collectives=(Collective("0", 117, "gloo:all_reduce", "[[4]]", True),))


@pytest.mark.parametrize(
    ("culprit", "kind", "words"),
    [
        (at("step", state="T", was="T"), "stopped", "stopped in step 118 (state T)"),
        (at("collective", frozen=True), "frozen", "is frozen in step 118 (by its control group)"),
        (
            at("input", children=STOPPED),
            "worker",
            "has a stopped process in step 118: worker, 9 (state T)",
        ),
        (
            at("compute", pipe="pipe:[1]"),
            "pipe",
            "waits in step 118 to write into a full pipe, which no process on this node was seen to read",
        ),
        (
            at("compute", pipe="pipe:[1]", readers=(Process(9, "tee", "T"),)),
            "unread",
            "waits in step 118 to write into a full pipe, which tee (9, state T) should read",
        ),
        (at("compute"), "asleep", "sleeps in futex in step 118 outside of every collective"),
        (at("input"), "input", "waits for its samples, asleep in futex in step 118 outside of every collective"),
        (at("compute", cpu_s=0.4), "computes", "computes (0.40 s in 0.50 s) in step 118 outside of every collective"),
        (at("compute", state="R"), "computes", "computes (0.00 s in 0.50 s) in step 118 outside of every collective"),
        (at("input", children_cpu_s=0.3), "computes", "computes (0.30 s in 0.50 s) in step 118 outside of every collective"),
        (at("input", io_bytes=9999), "reads", "reads or writes (9999 bytes in 0.50 s) in step 118 outside of every collective"),
        (
            at("input", state="D", was="D", channel="nfs_wait"),
            "storage",
            "waits for its samples in the kernel (state D, nfs_wait) in step 118 outside of every collective",
        ),
        (
            at("input", children=(Process(9, "load", "S"), Process(10, "load", "D"))),
            "storage",
            "waits for its samples: its process load, 10 waits in the kernel (state D) in step 118 outside of every collective",
        ),
        (
            at("compute", 131, silent_s=0.2),
            "ahead",
            "is ahead of the others in step 131: it sleeps in futex in step 131 outside of every collective",
        ),
        (at("end", 2000, silent_s=14.0), "ahead", "is ahead of the others in step 2000: it is in end in step 2000"),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_is_named_for_what_it_does_itself(culprit: RankSeen, kind: str, words: str, ranks: int) -> None:
    for place in range(ranks):
        others = [number for number in range(ranks) if number != place]
        told = judged(*(culprit if number == place else WAITING for number in range(ranks)))
        waiting = f"rank {others[0]} waits" if ranks == 2 else f"ranks {', '.join(map(str, others))} wait"
        assert (told.kind, told.host, told.ranks) == (kind, f"node{place + 1}", (place,))
        assert told.sentence == f"rank {place} on node{place + 1} {words}; {waiting} in a collective of step 118"
        assert told.message == told.sentence.replace(f" on node{place + 1}", "", 1)


def test_the_flight_recorder_tells_what_a_phase_cannot() -> None:
    told = judged(in_call(119), in_call(119), OUT, in_call(119))
    assert told.sentence == (
        "rank 2 on node3 sleeps in futex in step 118 outside of every collective; ranks 0, 1, 3 wait in all-reduce 119"
    )


def test_stacks_tell_where_nothing_is_recorded_that_a_rank_waits() -> None:
    stacks = (
        "Current thread 0x1 (most recent call first):",
        '  File "c10d.py", line 3 in all_reduce',
        '  File "t.py", line 1 in <module>',
    )
    told = judged(at("step", state="T", was="T"), at("step", python=stacks))
    assert told.sentence == "rank 0 on node1 stopped in step 118 (state T); rank 1 waits in all_reduce"


def test_the_one_in_another_collective_than_most_is_named() -> None:
    told = judged(in_call(119), in_call(119), in_call(119, "gloo:barrier"), in_call(119))
    assert (told.kind, told.ranks) == ("collectives", (2,))
    assert told.sentence == "rank 2 on node3 waits in barrier 119; ranks 0, 1, 3 wait in all-reduce 119"


def test_the_one_that_reduces_other_sizes_than_most_is_named_with_them() -> None:
    told = judged(in_call(119), in_call(119, sizes="[[5]]"), in_call(119))
    assert (told.kind, told.ranks) == ("collectives", (1,))
    assert told.sentence == (
        "rank 1 on node2 waits in all-reduce 119 of sizes [[5]]; ranks 0, 2 wait in all-reduce 119 of sizes [[4]]"
    )


def test_of_those_outside_of_the_collective_one_with_a_stopped_process_is_named() -> None:
    told = judged(at("compute", cpu_s=0.4), at("input", children=STOPPED), WAITING)
    assert (told.kind, told.ranks) == ("worker", (1,))


# In both, nothing tells whether the main thread of the rank waits for others.
OUT_UNKNOWN = at("step")
SLEEPS = Thread("python", "S", "futex_wait_queue", "futex", "", 0.0)
WRITES = Thread("python", "S", "anon_pipe_write", "write", "pipe:[1]", 0.0)
STREAMS: dict[str, Any] = {"pipe": "pipe:[1]", "readers": (Process(9, "upload", "S"),), "threads": (WRITES,)}

NOBODY = {
    "one against one in different collectives": (in_call(119), in_call(119, "gloo:barrier")),
    "two against two": (in_call(119), in_call(119), in_call(120), in_call(120)),
    "all in the same collective": (in_call(119),) * 4,
    "one in the next collective, as the root of a broadcast may be": (in_call(119), in_call(120), in_call(119), in_call(119)),
    "one whose broadcast has not arrived yet": (in_call(120), in_call(119, "gloo:broadcast"), in_call(120), in_call(120)),
    "one whose processor is ahead of its GPU": (
        replace(in_call(119), progress=Progress(120, "step", 1, 12.0)),
        in_call(119),
        OUT_UNKNOWN,
        in_call(119),
    ),
    "ranks that count differently, of which one is in a checkpoint": (
        at("collective", 418),
        WAITING,
        at("checkpoint"),
        WAITING,
    ),
    "ranks that count differently while the network stands still": (
        at("collective", 418),
        WAITING,
        at("collective", 7),
        WAITING,
    ),
    "groups of their own": (in_call(3, group="a"), in_call(3, group="a"), in_call(7, group="b"), in_call(8, group="b")),
    "all wait, one step apart": (at("collective", 118), at("collective", 119), at("collective", 119), at("collective", 119)),
    "programs of others, all asleep": (ASLEEP, ASLEEP, ASLEEP, ASLEEP),
    "a program of others of which one computes": (replace(ASLEEP, cpu_s=0.5, state="R"), ASLEEP, ASLEEP, ASLEEP),
    "ranks that spin while they wait": (at("step", cpu_s=0.5), at("step", cpu_s=0.5), at("step"), at("step", cpu_s=0.5)),
    "one whose state nothing tells": (at("step"), WAITING, WAITING, WAITING),
    "a rank that evaluates": (at("evaluate", cpu_s=0.5, state="R"), WAITING, WAITING, WAITING),
    "a rank that evaluates, and one that waits for it outside": (at("checkpoint"), at("input"), WAITING, WAITING),
    "a rank that streams its checkpoint to a slow program": (at("checkpoint", **STREAMS), WAITING, WAITING, WAITING),
    "a program of others that streams something to a slow one": (replace(ASLEEP, **STREAMS), ASLEEP, ASLEEP, ASLEEP),
    "a thread that cannot write its log, in a rank of which nothing else is known": (
        at("step", **{**STREAMS, "threads": (SLEEPS, WRITES)}),
        WAITING,
        WAITING,
        WAITING,
    ),
    "a rank that a debugger holds": (at("compute", state="t", was="t"), WAITING, WAITING, WAITING),
    "one that waits, and has a stopped process beside": (in_call(119, children=STOPPED), in_call(119), in_call(119)),
    "a rank that evaluates, with a stopped process beside": (at("evaluate", children=STOPPED), WAITING, WAITING),
    "a program of others with a stopped process beside": (replace(ASLEEP, children=STOPPED), ASLEEP, ASLEEP),
    "all in an all-to-all of uneven sizes": (
        in_call(119, "nccl:all_to_all"),
        in_call(119, "nccl:all_to_all", sizes="[[3]]"),
        in_call(119, "nccl:all_to_all"),
    ),
    "a service outside of the run that does not answer": (
        replace(ASLEEP, cpu_s=0.4, connections=(Connection("10.0.0.1", 5, "192.0.2.7", 443, 400, 0, 6),)),
        replace(ASLEEP, connections=(Connection("10.0.0.2", 5, "10.0.0.1", 6, 0, 0, 0),)),
    ),
    "at its end, in the step in which others wait": (at("end", silent_s=14.0), WAITING, WAITING, WAITING),
    "stopped at one of two looks only": (at("step", state="T", was="S"), in_call(5), in_call(5), in_call(5)),
}


@pytest.mark.parametrize("seen", NOBODY.values(), ids=NOBODY)
def test_nobody_is_named_without_proof(seen: tuple[RankSeen, ...]) -> None:
    told = judged(*seen)
    assert (told.host, told.ranks) == ("", ()) and told.kind in ("unknown", "pause")
    assert "cannot be determined" in told.sentence or "reports a pause" in told.sentence
    assert all(f"{number}" in told.sentence for number in range(len(seen)))


def test_a_node_without_a_report_keeps_others_from_being_named_for_waiting_alone() -> None:
    reports = {"node1": HangReport((at("input"),)), "node2": HangReport((replace(WAITING, rank=1),))}
    told = verdict(reports, {0: "node1", 1: "node2", 2: "node3"})
    assert told.ranks == () and "no report from node3" in told.sentence
    stopped = {"node1": HangReport((at("input", state="T", was="T"),)), "node2": HangReport((replace(WAITING, rank=1),))}
    assert verdict(stopped, {0: "node1", 1: "node2", 2: "node3"}).ranks == (0,)
    assert "no report from node1" in verdict({}, {0: "node1"}).sentence


def test_a_rank_that_ended_well_before_the_others_is_named() -> None:
    reports = {"node1": HangReport((WAITING,)), "node2": HangReport((), (1,))}
    told = verdict(reports, {0: "node1", 1: "node2"})
    assert told.sentence == "rank 1 on node2 ended, with success; rank 0 waits in a collective of step 118"


def test_a_rank_that_no_record_tells_of_has_not_ended() -> None:
    """One process may be several ranks, and ranks may have no wrapper."""
    told = verdict({"node1": HangReport((WAITING,)), "node2": HangReport(())}, {0: "node1", 1: "node2"})
    assert told.ranks == () and "cannot be determined" in told.sentence


def test_several_ranks_of_one_node_are_named_together() -> None:
    stopped = [replace(at("step", state="T", was="T"), rank=number) for number in (2, 3)]
    reports = {"node1": HangReport((WAITING, replace(WAITING, rank=1))), "node2": HangReport(tuple(stopped))}
    told = verdict(reports, {0: "node1", 1: "node1", 2: "node2", 3: "node2"})
    assert told.sentence.startswith("ranks 2, 3 on node2 stopped in step 118 (state T); ranks 0, 1 wait")


def linked(own: str, other: str, **changes: Any) -> RankSeen:
    values = {"unacknowledged": 400, "unread": 0, "retransmits": 4} | changes
    return at("collective", connections=(Connection(own, 5, other, 6, **values),))


def test_a_link_is_named_by_both_ends_and_neither_is_guilty() -> None:
    told = judged(linked("10.0.0.1", "10.0.0.2"), linked("10.0.0.2", "10.0.0.1"), WAITING, WAITING)
    assert (told.kind, told.host, told.ranks) == ("link", "", ())
    assert told.sentence.startswith("nothing arrives between node1 and node2 (retransmitted without an answer); ranks 0, 1")
    one_way = judged(linked("10.0.0.1", "10.0.0.2"), linked("10.0.0.2", "10.0.0.9", retransmits=0), WAITING)
    assert one_way.words.startswith("nothing arrives between node1 and node2")


@pytest.mark.parametrize("changes", [{"retransmits": 1}, {"unacknowledged": 0}])
def test_a_lost_packet_is_no_cut_link(changes: dict[str, int]) -> None:
    assert judged(linked("10.0.0.1", "10.0.0.2", **changes), linked("10.0.0.2", "10.0.0.1", retransmits=0)).kind == "unknown"


def test_a_stopped_rank_outranks_what_its_silence_does_to_links() -> None:
    told = judged(linked("10.0.0.1", "10.0.0.2"), at("collective", state="T", was="T"))
    assert (told.kind, told.ranks) == ("stopped", (1,))


def test_a_thread_beside_that_writes_into_a_pipe_accuses_nobody_who_waits() -> None:
    logger = Thread("logger", "S", "pipe_write", "write", "pipe:[1]", 0.0)
    main = Thread("python", "S", "futex_wait_queue", "futex", "", 0.0)
    told = judged(in_call(119, pipe="pipe:[1]", threads=(main, logger)), in_call(119))
    assert told.ranks == ()

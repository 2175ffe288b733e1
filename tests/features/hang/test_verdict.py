"""Who is named for a run that does not go on, and that nobody is named without proof."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.features.hang.cause import Verdict
from orchestrator.features.hang.collectives import find_difference
from orchestrator.features.hang.node_report import (
    Call,
    Collective,
    Connection,
    HangReport,
    Process,
    Progress,
    RankSeen,
    Thread,
)
from orchestrator.features.hang.verdict import verdict

HANGS = Path(__file__).parents[2] / "data/hangs"
RECORDED = HANGS / "recorded_calls.json"
ASLEEP = RankSeen(
    rank=0, pid=1, state="S", was="S", channel="futex_wait_queue", call="futex", of="", window_s=0.5, cpu_s=0.0,
    children_cpu_s=0.0, io_bytes=0, frozen=False, progress=None,
)  # fmt: skip


def at(phase: str, step: int = 118, **changes: Any) -> RankSeen:
    """A rank that reports its phase, and has been silent for 20 s."""
    return replace(
        ASLEEP, progress=Progress(step, phase, 1, changes.pop("silent_s", 20.0)), **changes
    )


def in_call(
    number: int,
    name: str = "gloo:all_reduce",
    group: str = "0",
    sizes: str = "[[4]]",
    before: str = "gloo:all_reduce",
    **changes: Any,
) -> RankSeen:
    """A rank whose flight recorder has a collective that is not over."""
    earlier = Collective(group, number - 1, before, "[[4]]", True)
    pending = Collective(group, number, name, sizes, False)
    return at("step", collectives=(earlier, pending), **changes)


def judged(*seen: RankSeen) -> Verdict:
    """The verdict on ranks of which each is on a node of its own."""
    reports = {
        f"node{rank + 1}": HangReport((replace(one, rank=rank),)) for rank, one in enumerate(seen)
    }
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
        (
            at("input"),
            "input",
            "waits for its samples, asleep in futex in step 118 outside of every collective",
        ),
        (
            at("compute", cpu_s=0.4),
            "computes",
            "computes (0.40 s in 0.50 s) in step 118 outside of every collective",
        ),
        (
            at("compute", state="R"),
            "computes",
            "computes (0.00 s in 0.50 s) in step 118 outside of every collective",
        ),
        (
            at("input", children_cpu_s=0.3),
            "computes",
            "computes (0.30 s in 0.50 s) in step 118 outside of every collective",
        ),
        (
            at("input", io_bytes=9999),
            "reads",
            "reads or writes (9999 bytes in 0.50 s) in step 118 outside of every collective",
        ),
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
        (
            at("end", 2000, silent_s=14.0),
            "ahead",
            "is ahead of the others in step 2000: it is in end in step 2000",
        ),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_is_named_for_what_it_does_itself(
    culprit: RankSeen, kind: str, words: str, ranks: int
) -> None:
    for place in range(ranks):
        others = [number for number in range(ranks) if number != place]
        told = judged(*(culprit if number == place else WAITING for number in range(ranks)))
        waiting = (
            f"rank {others[0]} waits" if ranks == 2 else f"ranks {', '.join(map(str, others))} wait"
        )
        assert (told.kind, told.host, told.ranks) == (kind, f"node{place + 1}", (place,))
        assert (
            told.sentence
            == f"rank {place} on node{place + 1} {words}; {waiting} in a collective of step 118"
        )
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
    assert (
        told.sentence == "rank 0 on node1 stopped in step 118 (state T); rank 1 waits in all_reduce"
    )


def test_the_one_in_another_collective_than_most_is_named() -> None:
    told = judged(in_call(119), in_call(119), in_call(119, "gloo:barrier"), in_call(119))
    assert (told.kind, told.ranks) == ("collectives", (2,))
    assert (
        told.sentence
        == "rank 2 on node3 called barrier 119, the others all-reduce 119; ranks 0, 1, 3 wait in all-reduce 119"
    )


def sized(now: Collective, *past: Collective) -> RankSeen:
    """A rank that waits in a collective, with those that it called before."""
    done = [
        replace(call, number=now.number - len(past) + at, over=True) for at, call in enumerate(past)
    ]
    return at("step", collectives=(*done[-1:], now), earlier=tuple(done))


REDUCE = Collective("0", 119, "gloo:all_reduce", "[[4]]", False, "[[4]]", "Float")
GATHER = Collective("0", 119, "gloo:all_gather", "[[3]]", False, "[[3, 8]]", "Float")
SCATTER = Collective("0", 119, "gloo:scatter", "[]", False, "[[8]]")
SIZES = [
    (REDUCE, {"sizes": "[[5]]"}, "of sizes [[5]], the others of sizes [[4]]"),
    (GATHER, {"outputs": "[[3, 9]]"}, "of sizes [[3, 9]], the others of sizes [[3, 8]]"),
    (SCATTER, {"outputs": "[[9]]"}, "of sizes [[9]], the others of sizes [[8]]"),
    (REDUCE, {"types": "Double"}, "of sizes [[4]] in Double, the others of sizes [[4]] in Float"),
]


@pytest.mark.parametrize(("usual", "own", "words"), SIZES)
def test_the_one_that_alone_leaves_what_it_did_before_is_named_with_its_size(
    usual: Collective, own: dict[str, str], words: str
) -> None:
    most, odd = sized(usual, usual, usual), sized(replace(usual, **own), usual, usual)
    told = judged(most, odd, most)
    assert (told.kind, told.ranks) == ("collectives", (1,))
    called = f"{usual.name[5:].replace('_', '-')} 119 {words}"
    assert told.sentence.startswith(f"rank 1 on node2 called {called}; ranks 0, 2 wait in")
    assert judged(most, odd, odd, most).ranks == judged(most, odd).ranks == ()
    first = [sized(replace(call, number=1)) for call in (usual, replace(usual, **own), usual)]
    assert judged(*first).kind == "disagree"
    changing = [usual, replace(usual, **own), usual, usual]
    assert judged(*(sized(now, *changing) for now in changing[:3])).ranks == ()
    late = sized(replace(usual, **own), replace(usual, **own), replace(usual, **own))
    assert judged(late, sized(usual, usual, usual), late).ranks == ()


@pytest.mark.parametrize("case", json.loads(RECORDED.read_text()), ids=lambda case: case["what"])
def test_calls_that_ranks_of_pytorch_recorded_name_nobody_who_is_healthy(
    case: dict[str, Any],
) -> None:
    """Four ranks with gloo, of which those that it aborted left no record."""
    reports = {node: HangReport.of(report) for node, report in case["reports"].items()}
    seen = {rank.rank: rank for report in reports.values() for rank in report.ranks}
    found = find_difference(seen, 4)
    assert (found and found.odd, found.words if found else "") == (case["odd"], case["words"])


@pytest.mark.parametrize(
    "case", json.loads((HANGS / "looks.json").read_text()), ids=lambda case: case["what"]
)
def test_looks_at_ranks_of_pytorch_name_nobody_who_is_healthy(case: dict[str, Any]) -> None:
    """Four ranks with gloo, of which some have process groups of their own."""
    reports = {node: HangReport.of(report) for node, report in case["reports"].items()}
    told = verdict(reports, {rank: f"node{rank + 1}" for rank in range(4)})
    assert (told.kind, list(told.ranks)) == (case["kind"], case["named"])


def test_the_names_of_collectives_prove_nothing_without_recorders() -> None:
    """A pair of ranks may disagree, while the others wait for both."""
    monitored = replace(IN_MONITORED, collectives=OUT.collectives)
    reduces, meets = (
        calling(Call(name, SITE + "torch/distributed/distributed_c10d.py"))
        for name in ("all_reduce", "barrier")
    )
    assert judged(reduces, reduces, meets, reduces).ranks == ()
    assert judged(reduces, reduces, IN_STORE, reduces).ranks == (2,)
    assert judged(reduces, reduces, IN_STORE, IN_STORE, reduces).ranks == ()
    assert judged(*[in_call(119)] * 3, monitored).ranks == (3,)
    assert judged(*[in_call(119)] * 3, IN_MONITORED).ranks == ()
    in_pair = in_call(119, group="7")
    assert judged(in_call(119), in_pair, in_pair, monitored).ranks == ()
    told = judged(monitored, in_call(119), monitored)
    assert told.sentence == (
        "rank 1 on node2 waits in all-reduce 119; ranks 0, 2 wait in monitored_barrier"
    )
    assert judged(IN_MONITORED, in_call(119), IN_MONITORED).ranks == ()
    assert judged(monitored, in_pair, monitored).ranks == ()
    assert judged(monitored, monitored, in_call(119), in_call(119)).ranks == ()
    assert judged(monitored, IN_STORE, in_call(119), monitored).ranks == ()


def test_who_is_in_none_of_the_groups_that_are_waited_for_is_not_named() -> None:
    """An evaluator may sleep, and the ranks of another pipeline may be ahead."""
    away = replace(OUT, collectives=(replace(OUT.collectives[0], group="9"),))  # type: ignore[index]
    assert judged(in_call(119), away, in_call(119)).ranks == ()
    assert judged(in_call(119), away, in_call(119), OUT).ranks == (3,)
    assert judged(in_call(119), OUT, in_call(119), OUT, in_call(119)).ranks == (1, 3)
    beyond = at("step", 131, collectives=away.collectives, silent_s=0.2)
    assert judged(in_call(119), in_call(119), beyond).ranks == ()
    assert judged(in_call(119), in_call(119, "gloo:barrier"), OUT, in_call(119)).ranks == ()


def test_what_is_sent_between_two_ranks_is_no_collective_that_differs() -> None:
    """As NCCL's recorder has it: `batch_isend_irecv` of the ranks 0 and 1, after a collective."""
    reduce = Collective("0", 3, "nccl:all_reduce", "[[4]]", True)
    batch = replace(reduce, name="nccl:coalesced", sizes="[]")
    sends, receives = (
        at("step", collectives=(reduce, replace(reduce, name=name), batch))
        for name in ("nccl:send 0->1", "nccl:recv 1<-0")
    )
    ranks = [sends, receives, at("step", collectives=(reduce,))]
    assert find_difference(dict(enumerate(ranks)), 3) is None
    waits = replace(reduce, number=4, over=False)
    pending = [replace(one, collectives=(*(one.collectives or ()), waits)) for one in ranks]
    receiving = replace(waits, name="nccl:recv 2<-1", group="9")
    pending[2] = replace(pending[2], collectives=(replace(receiving, over=True), receiving))
    assert judged(*pending).ranks == ()


def test_of_ranks_that_are_left_the_one_outside_is_named_and_none_that_waits() -> None:
    """Two of four have ended with success: a pair may be done before another."""

    def left(*seen: RankSeen) -> Verdict:
        reports = {
            f"node{rank + 1}": HangReport((replace(one, rank=rank),))
            for rank, one in enumerate(seen)
        }
        reports |= {"node3": HangReport((), (2,)), "node4": HangReport((), (3,))}
        return verdict(reports, {rank: f"node{rank + 1}" for rank in range(4)})

    waits, meets = in_call(119, group="7"), in_call(119, "gloo:barrier", group="7")
    sleeps = replace(OUT, collectives=waits.collectives[:1])  # type: ignore[index]
    assert left(waits, sleeps).ranks == left(sleeps, sleeps).ranks[1:] == (1,)
    assert left(waits, waits).ranks == ()
    assert (left(waits, meets).kind, left(waits, meets).ranks) == ("disagree", ())


def test_of_those_outside_of_the_collective_one_with_a_stopped_process_is_named() -> None:
    told = judged(at("compute", cpu_s=0.4), at("input", children=STOPPED), WAITING)
    assert (told.kind, told.ranks) == ("worker", (1,))


# In both, nothing tells whether the main thread of the rank waits for others.
OUT_UNKNOWN = at("step")
SLEEPS = Thread("python", "S", "futex_wait_queue", "futex", "", 0.0)
WRITES = Thread("python", "S", "anon_pipe_write", "write", "pipe:[1]", 0.0)
STREAMS: dict[str, Any] = {
    "pipe": "pipe:[1]",
    "readers": (Process(9, "upload", "S"),),
    "threads": (WRITES,),
}

NOBODY = {
    "two against two": (in_call(119), in_call(119), in_call(120), in_call(120)),
    "all in the same collective": (in_call(119),) * 4,
    "one in the next collective, as the root of a broadcast may be": (
        in_call(119),
        in_call(120),
        in_call(119),
        in_call(119),
    ),
    "one whose broadcast has not arrived yet": (
        in_call(120, before="gloo:broadcast"),
        in_call(119, "gloo:broadcast"),
        in_call(120, before="gloo:broadcast"),
        in_call(120, before="gloo:broadcast"),
    ),
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
    "groups of their own": (
        in_call(3, group="a"),
        in_call(3, group="a"),
        in_call(7, group="b"),
        in_call(8, group="b"),
    ),
    "all wait, one step apart": (
        at("collective", 118),
        at("collective", 119),
        at("collective", 119),
        at("collective", 119),
    ),
    "programs of others, all asleep": (ASLEEP, ASLEEP, ASLEEP, ASLEEP),
    "a program of others of which one computes": (
        replace(ASLEEP, cpu_s=0.5, state="R"),
        ASLEEP,
        ASLEEP,
        ASLEEP,
    ),
    "ranks that spin while they wait": (
        at("step", cpu_s=0.5),
        at("step", cpu_s=0.5),
        at("step"),
        at("step", cpu_s=0.5),
    ),
    "one that waits for the lock of a file, which another may hold": (
        replace(OUT, call="flock"),
        in_call(119),
        in_call(119),
    ),
    "one whose state nothing tells": (at("step"), WAITING, WAITING, WAITING),
    "a rank that evaluates": (at("evaluate", cpu_s=0.5, state="R"), WAITING, WAITING, WAITING),
    "a rank that evaluates, and one that waits for it outside": (
        at("checkpoint"),
        at("input"),
        WAITING,
        WAITING,
    ),
    "a rank that streams its checkpoint to a slow program": (
        at("checkpoint", **STREAMS),
        WAITING,
        WAITING,
        WAITING,
    ),
    "a program of others that streams something to a slow one": (
        replace(ASLEEP, **STREAMS),
        ASLEEP,
        ASLEEP,
        ASLEEP,
    ),
    "a thread that cannot write its log, in a rank of which nothing else is known": (
        at("step", **{**STREAMS, "threads": (SLEEPS, WRITES)}),
        WAITING,
        WAITING,
        WAITING,
    ),
    "a rank that a debugger holds": (at("compute", state="t", was="t"), WAITING, WAITING, WAITING),
    "one that waits, and has a stopped process beside": (
        in_call(119, children=STOPPED),
        in_call(119),
        in_call(119),
    ),
    "a rank that evaluates, with a stopped process beside": (
        at("evaluate", children=STOPPED),
        WAITING,
        WAITING,
    ),
    "a program of others with a stopped process beside": (
        replace(ASLEEP, children=STOPPED),
        ASLEEP,
        ASLEEP,
    ),
    "all in an all-to-all of uneven sizes": (
        in_call(119, "nccl:all_to_all"),
        in_call(119, "nccl:all_to_all", sizes="[[3]]"),
        in_call(119, "nccl:all_to_all"),
    ),
    "all in an all-gather to which each gives another size": tuple(
        replace(
            one,
            collectives=(Collective("0", 119, "nccl:all_gather", sizes, False, "[[1], [2], [3]]"),),
        )
        for one, sizes in zip([in_call(119)] * 3, ("[[1]]", "[[2]]", "[[3]]"), strict=True)
    ),
    "a service outside of the run that does not answer": (
        replace(
            ASLEEP, cpu_s=0.4, connections=(Connection("10.0.0.1", 5, "192.0.2.7", 443, 400, 0, 6),)
        ),
        replace(ASLEEP, connections=(Connection("10.0.0.2", 5, "10.0.0.1", 6, 0, 0, 0),)),
    ),
    "at its end, in the step in which others wait": (
        at("end", silent_s=14.0),
        WAITING,
        WAITING,
        WAITING,
    ),
    "stopped at one of two looks only": (
        at("step", state="T", was="S"),
        in_call(5),
        in_call(5),
        in_call(5),
    ),
}


@pytest.mark.parametrize("seen", NOBODY.values(), ids=NOBODY)
def test_nobody_is_named_without_proof(seen: tuple[RankSeen, ...]) -> None:
    told = judged(*seen)
    assert (told.host, told.ranks) == ("", ()) and told.kind in ("unknown", "pause")
    assert "cannot be determined" in told.sentence or "reports a pause" in told.sentence
    assert all(f"{number}" in told.sentence for number in range(len(seen)))


def test_ranks_that_disagree_are_told_with_their_calls_and_nobody_is_named() -> None:
    reduce, barrier = in_call(119), in_call(119, "gloo:barrier")
    told = judged(reduce, barrier)
    assert (told.kind, told.host, told.ranks) == ("disagree", "", ())
    assert told.sentence == (
        "ranks disagree, and nobody is known to be wrong: rank 0 called all-reduce 119 of sizes [[4]]; "
        "rank 1 called barrier 119; rank 0 waits in all-reduce 119; rank 1 waits in barrier 119"
    )
    assert judged(reduce, reduce, barrier, barrier).kind == "disagree"
    ended = {"node4": HangReport((), (3,))}
    seen = {
        f"node{rank + 1}": HangReport((replace(one, rank=rank),))
        for rank, one in enumerate((reduce, reduce, barrier))
    }
    placed = {rank: f"node{rank + 1}" for rank in range(4)}
    assert 2 not in verdict({**seen, **ended}, placed).ranks


def test_a_node_without_a_report_keeps_others_from_being_named_for_waiting_alone() -> None:
    reports = {
        "node1": HangReport((at("input"),)),
        "node2": HangReport((replace(WAITING, rank=1),)),
    }
    told = verdict(reports, {0: "node1", 1: "node2", 2: "node3"})
    assert told.ranks == () and "no report from node3" in told.sentence
    stopped = {
        "node1": HangReport((at("input", state="T", was="T"),)),
        "node2": HangReport((replace(WAITING, rank=1),)),
    }
    assert verdict(stopped, {0: "node1", 1: "node2", 2: "node3"}).ranks == (0,)
    assert "no report from node1" in verdict({}, {0: "node1"}).sentence
    none = verdict({"node1": HangReport(())}, {0: "node1"}).sentence
    assert "no rank runs on node1: none has started yet, all have ended, or " in none


def test_a_rank_that_ended_well_before_the_others_is_named() -> None:
    reports = {"node1": HangReport((WAITING,)), "node2": HangReport((), (1,))}
    told = verdict(reports, {0: "node1", 1: "node2"})
    assert (
        told.sentence
        == "rank 1 on node2 ended, with success; rank 0 waits in a collective of step 118"
    )


def test_a_rank_that_no_record_tells_of_has_not_ended() -> None:
    """One process may be several ranks, and ranks may have no wrapper."""
    told = verdict(
        {"node1": HangReport((WAITING,)), "node2": HangReport(())}, {0: "node1", 1: "node2"}
    )
    assert told.ranks == () and "cannot be determined" in told.sentence


def test_several_ranks_of_one_node_are_named_together() -> None:
    stopped = [replace(at("step", state="T", was="T"), rank=number) for number in (2, 3)]
    reports = {
        "node1": HangReport((WAITING, replace(WAITING, rank=1))),
        "node2": HangReport(tuple(stopped)),
    }
    told = verdict(reports, {0: "node1", 1: "node1", 2: "node2", 3: "node2"})
    assert told.sentence.startswith(
        "ranks 2, 3 on node2 stopped in step 118 (state T); ranks 0, 1 wait"
    )


def linked(own: str, other: str, **changes: Any) -> RankSeen:
    values = {"unacknowledged": 400, "unread": 0, "retransmits": 4} | changes
    return at("collective", connections=(Connection(own, 5, other, 6, **values),))


def test_a_link_is_named_by_both_ends_and_neither_is_guilty() -> None:
    told = judged(linked("10.0.0.1", "10.0.0.2"), linked("10.0.0.2", "10.0.0.1"), WAITING, WAITING)
    assert (told.kind, told.host, told.ranks) == ("link", "", ())
    assert told.sentence.startswith(
        "nothing arrives between node1 and node2 (retransmitted without an answer); ranks 0, 1"
    )
    large = judged(
        linked("10.0.0.1", "10.0.0.2", unacknowledged=65_000),
        linked("10.0.0.2", "10.0.0.1", retransmits=0),
        WAITING,
    )
    assert large.words.startswith(
        "nothing arrives between node1 and node2 (retransmitted without an answer; if ping is answered,"
    )
    one_way = judged(
        linked("10.0.0.1", "10.0.0.2"), linked("10.0.0.2", "10.0.0.9", retransmits=0), WAITING
    )
    assert one_way.words.startswith("nothing arrives between node1 and node2")


def test_a_link_between_nodes_that_share_an_address_is_told_by_the_ports_of_both_ends() -> None:
    """Seen with three nodes at 127.0.0.1, of which nothing arrives at the second."""
    own = "127.0.0.1"
    first = (
        Connection(own, 56176, own, 38975, 96, 0, 8),
        Connection(own, 50502, own, 45891, 0, 0, 0),
    )
    second = (
        Connection(own, 38975, own, 56176, 192, 0, 8),
        Connection(own, 38975, own, 56178, 96, 0, 8),
    )
    third = (
        Connection(own, 56178, own, 38975, 44408, 0, 8),
        Connection(own, 45891, own, 50502, 0, 0, 0),
    )
    told = judged(*(at("collective", connections=seen) for seen in (first, second, third)))
    assert told.sentence.startswith(
        "nothing arrives between node1 and node2; between node2 and node3 (retrans"
    ), told.sentence
    unseen = judged(
        at("collective", connections=first[:1]), WAITING, at("collective", connections=third[1:])
    )
    assert unseen.kind == "unknown"


@pytest.mark.parametrize("changes", [{"retransmits": 1}, {"unacknowledged": 0}])
def test_a_lost_packet_is_no_cut_link(changes: dict[str, int]) -> None:
    assert (
        judged(
            linked("10.0.0.1", "10.0.0.2", **changes), linked("10.0.0.2", "10.0.0.1", retransmits=0)
        ).kind
        == "unknown"
    )


def test_a_stopped_rank_outranks_what_its_silence_does_to_links() -> None:
    told = judged(linked("10.0.0.1", "10.0.0.2"), at("collective", state="T", was="T"))
    assert (told.kind, told.ranks) == ("stopped", (1,))


def test_a_thread_beside_that_writes_into_a_pipe_accuses_nobody_who_waits() -> None:
    logger = Thread("logger", "S", "pipe_write", "write", "pipe:[1]", 0.0)
    main = Thread("python", "S", "futex_wait_queue", "futex", "", 0.0)
    told = judged(in_call(119, pipe="pipe:[1]", threads=(main, logger)), in_call(119))
    assert told.ranks == ()


TORCH = "/venv/lib/python3.11/site-packages/torch/"
STDLIB = "/usr/lib/python3.11/"


def calling(*calls: Call, **changes: Any) -> RankSeen:
    """A rank of a program of others, of which only the stack of its main thread is known."""
    return replace(ASLEEP, calls=(*calls, Call("main", "/home/me/train.py", "train()")), **changes)


BACKWARD = calling(
    Call(
        "_engine_run_backward",
        TORCH + "autograd/graph.py",
        "return Variable._execution_engine.run_backward(",
    )
)
IN_STORE = calling(Call("meet", "/home/me/train.py", "store.wait([key], limit)"), call="poll")
IN_MONITORED = calling(
    Call("monitored_barrier", TORCH + "distributed/distributed_c10d.py", "group.monitored_barrier(")
)


@pytest.mark.parametrize(
    "others",
    [BACKWARD, IN_STORE, IN_MONITORED, in_call(119)],
    ids=["backward", "store", "monitored", "recorded"],
)
@pytest.mark.parametrize(
    ("culprit", "kind"),
    [
        (
            calling(Call("load", "/home/me/train.py", "time.sleep(1000)"), call="clock_nanosleep"),
            "asleep",
        ),
        (calling(Call("wait", STDLIB + "threading.py", "waiter.acquire()")), "asleep"),
        (calling(Call("fetch", "/home/me/train.py", "lock.acquire()")), "asleep"),
        (calling(Call("evaluate", "/home/me/train.py", "score(batch)"), cpu_s=0.4), "computes"),
        (
            calling(
                Call("read_bytes", STDLIB + "pathlib.py", "return f.read()"), state="D", was="D"
            ),
            "storage",
        ),
    ],
)
def test_stacks_alone_tell_of_the_one_that_does_not_wait(
    others: RankSeen, culprit: RankSeen, kind: str
) -> None:
    told = judged(others, others, culprit)
    assert (told.kind, told.ranks, told.host) == (kind, (2,), "node3"), told.sentence
    assert judged(others, culprit).ranks == (1,)


@pytest.mark.parametrize(
    "unclear",
    [
        calling(Call("step", "/home/me/train.py", "native.run(batch)")),  # a futex in a call of C
        calling(
            Call("evaluate", "/home/me/train.py", "score(batch)"), cpu_s=0.4, uses_device=True
        ),  # a GPU's call may spin
        calling(
            Call("train", "/home/me/train.py", "total += loss.item()"), cpu_s=0.4, uses_device=True
        ),
        calling(
            Call(
                "quick_execute",
                "/venv/lib/python3.11/site-packages/tensorflow/python/eager/execute.py",
                "",
            )
        ),
        calling(
            Call("poll", STDLIB + "subprocess.py", ""),
            Call("join", TORCH + "multiprocessing/spawn.py", ""),
        ),
    ],
)
def test_a_stack_that_may_hide_a_collective_names_nobody(unclear: RankSeen) -> None:
    assert judged(BACKWARD, BACKWARD, unclear).ranks == ()


def test_most_ranks_are_not_named_for_waiting_where_the_recorder_sees_nothing() -> None:
    """They wait at a store, of which the flight recorder knows nothing, and the other one has gone
    past.
    """
    recorded = OUT.collectives
    told = judged(
        replace(IN_STORE, collectives=recorded),
        in_call(119),
        replace(IN_STORE, collectives=recorded),
    )
    assert (told.kind, told.ranks) == ("disagree", ())
    assert told.sentence == (
        "ranks disagree, and nobody is known to be wrong: ranks 0, 2 wait in store.wait; "
        "rank 1 waits in all-reduce 119"
    )
    assert judged(replace(IN_STORE, collectives=recorded), in_call(119)).ranks == ()
    unknown_wait = replace(ASLEEP, collectives=recorded)
    assert judged(unknown_wait, in_call(119), unknown_wait).ranks == ()
    assert judged(unknown_wait, unknown_wait, in_call(119), in_call(119)).ranks == ()


def test_ranks_of_several_nodes_that_do_the_same_are_named_together() -> None:
    told = judged(at("input", children=STOPPED), WAITING, at("input", children=STOPPED))
    assert (told.host, told.ranks) == ("", (0, 2))
    assert told.sentence.startswith(
        "ranks 0, 2 on node1 and node3 have a stopped process in step 118"
    )
    assert told.message == told.sentence


def test_what_was_called_differently_first_counts_and_not_what_is_waited_for() -> None:
    def called(*names: str) -> RankSeen:
        calls = [
            Collective("0", 10 + at, f"gloo:{name}", "[[4]]", at < len(names) - 1)
            for at, name in enumerate(names)
        ]
        return at("step", collectives=tuple(calls[-2:]), earlier=tuple(calls[:-1]))

    most = called("all_reduce", "all_reduce", "barrier", "all_reduce")
    told = judged(most, called("all_reduce", "barrier", "all_reduce", "all_reduce"), most)
    assert told.sentence.startswith(
        "rank 1 on node2 called barrier 11, the others all-reduce 11; ranks 0, 2 wait in"
    )


def test_the_one_in_another_process_group_than_most_is_named() -> None:
    """DistributedDataParallel reduces gradients in a group of its own, with all ranks."""
    past = (
        Collective("5", 36, "gloo:all_reduce", "[[9]]", True),
        Collective("0", 32, "gloo:all_reduce", "[[]]", True),
    )

    def waiting(group: str, number: int, name: str, before: int = 32) -> RankSeen:
        done = (past[0], replace(past[1], number=before))
        pending = Collective(group, number, name, "[[]]", False)
        return at("step", collectives=(*done, pending), earlier=done)

    most = waiting("5", 37, "gloo:all_reduce")
    told = judged(most, waiting("0", 33, "gloo:barrier"), most, most)
    assert told.sentence == (
        "rank 1 on node2 called barrier 33, the others all-reduce 37; ranks 0, 2, 3 wait in all-reduce 37"
    )
    assert judged(most, waiting("0", 32, "gloo:all_reduce", before=31), most, most).ranks == ()
    assert judged(most, waiting("7", 1, "gloo:barrier"), most, most).ranks == ()
    assert judged(most, waiting("0", 33, "gloo:barrier")).ranks == ()


def test_the_program_own_code_inside_of_a_collective_is_no_wait() -> None:
    """Such as a hook of the program; a collective of C++ or of a library computes while it waits."""
    reduce = Call(
        "all_reduce", "/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    )
    recorded = OUT.collectives
    inside = calling(Call("check", "/home/me/hooks.py"), reduce, collectives=recorded, cpu_s=0.5)
    told = judged(in_call(118), inside, in_call(118))
    assert (told.ranks, told.kind) == ((1,), "computes")
    sleeps = replace(inside, cpu_s=0.0, call="clock_nanosleep")
    assert judged(in_call(118), sleeps, in_call(118)).ranks == (1,)
    assert judged(in_call(118), replace(sleeps, call="poll"), in_call(118)).ranks == ()
    itself = calling(reduce, collectives=recorded, cpu_s=0.5)
    assert judged(in_call(118), itself, in_call(118)).ranks == ()


def test_one_mark_a_step_is_no_evidence() -> None:
    """Its ranks wait in the phase in which they also compute."""
    marks = Progress(118, "compute", 119, 20.0, frozenset({"compute"}))
    waits, sleeps = (
        replace(ASLEEP, progress=marks),
        replace(ASLEEP, progress=replace(marks, step=117)),
    )
    assert judged(waits, sleeps, waits).ranks == ()
    assert judged(replace(BACKWARD, progress=marks), waits).ranks == ()
    full = replace(marks, marked=frozenset({"compute", "collective"}))
    assert judged(replace(ASLEEP, progress=full), WAITING, WAITING).ranks == (0,)


def test_a_rank_that_cannot_answer_is_outside_if_its_stack_is_in_no_collective() -> None:
    held = calling(Call("parse", "/home/me/train.py", "native.parse(text)"), is_unanswered=True)
    told = judged(in_call(119), held, in_call(119))
    assert (told.ranks, told.kind) == ((1,), "asleep")
    marked = replace(
        held, progress=Progress(117, "collective", 350, 20.0, frozenset({"compute", "collective"}))
    )
    assert judged(in_call(119), marked, in_call(119)).ranks == (1,)
    in_barrier = replace(IN_MONITORED, is_unanswered=True)
    assert judged(in_barrier, in_barrier, in_barrier).ranks == ()
    assert judged(in_call(119), replace(ASLEEP, is_unanswered=True), in_call(119)).ranks == ()


def test_the_last_one_to_run_is_named_and_not_those_that_ended() -> None:
    reports = {
        "node1": HangReport((), (0,)),
        "node2": HangReport((replace(ASLEEP, rank=1),)),
        "node3": HangReport((), (2,)),
    }
    placed = {0: "node1", 1: "node2", 2: "node3"}
    told = verdict(reports, placed)
    assert (told.kind, told.host, told.ranks) == ("alone", "node2", (1,))
    assert (
        told.sentence
        == "rank 1 on node2 runs on alone, and sleeps in futex; ranks 0, 2 ended, with success"
    )
    waits = {**reports, "node2": HangReport((replace(WAITING, rank=1),))}
    assert verdict(waits, placed).ranks == (1,)
    saves = {**reports, "node2": HangReport((replace(at("end"), rank=1),))}
    assert verdict(saves, placed).kind == "pause"


def test_a_stopped_launcher_is_named_with_its_ranks() -> None:
    reports = {
        "node1": HangReport((), (0,)),
        "node2": HangReport((), (1,), (Process(77, "torchrun", "T"),)),
    }
    told = verdict(reports, {0: "node1", 1: "node2"})
    assert told.sentence == "rank 1 on node2 has a stopped launcher: torchrun, 77 (state T)"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("work.wait()", "waits in work.wait"),
        ("handles[0].wait()", "waits in handles[0].wait"),
        ("dist.barrier()", "waits in barrier"),
        ("self.store.get(key)", "waits in self.store.get"),
    ],
)
def test_a_call_of_c_is_known_by_the_line_of_its_caller(code: str, words: str) -> None:
    told = judged(at("step", state="T", was="T"), calling(Call("step", "/home/me/train.py", code)))
    assert told.sentence.endswith("; rank 1 " + words), told.sentence


SITE = "/venv/lib/python3.11/site-packages/"


@pytest.mark.parametrize(
    "call",
    [
        Call("all_reduce", SITE + "deepspeed/comm/torch.py"),
        Call("synchronize", SITE + "horovod/torch/mpi_ops.py"),
        Call("wait_for_everyone", SITE + "accelerate/accelerator.py"),
        Call("sync_global_devices", SITE + "jax/experimental/multihost_utils.py"),
        Call("block_until_ready", SITE + "jax/_src/array.py"),
        Call("all_gather", SITE + "paddle/distributed/communication/all_gather.py"),
        Call("backward", SITE + "torch/autograd/__init__.py"),  # of PyTorch before 2.3
        Call("_verify_param_shape_across_processes", SITE + "torch/distributed/utils.py"),
        Call("train", "/home/me/train.py", "comm.Allreduce(MPI.IN_PLACE, total)"),
    ],
    ids=lambda call: call.name,
)
def test_waits_of_other_libraries_are_known(call: Call) -> None:
    culprit = calling(Call("load", "/home/me/train.py", "time.sleep(1000)"), call="clock_nanosleep")
    told = judged(calling(call), calling(call), culprit)
    assert told.ranks == (2,) and "; ranks 0, 1 wait in" in told.sentence, told.sentence


@pytest.mark.parametrize(
    "call",
    [Call("synchronize", SITE + "torch/cuda/__init__.py"), Call("f", "/t.py", "x = loss.item()")],
)
def test_a_call_that_waits_for_a_gpu_is_a_wait_for_others(call: Call) -> None:
    culprit = calling(
        Call("load", "/home/me/train.py", "time.sleep(1000)"),
        call="clock_nanosleep",
        uses_device=True,
    )
    waits = calling(call, uses_device=True, cpu_s=0.5)
    assert judged(waits, waits, culprit).ranks == (2,)
    assert judged(waits, replace(BACKWARD, uses_device=True), waits).ranks == ()


def test_ranks_that_wait_for_one_other_each_accuse_nobody() -> None:
    """A stage of a pipeline may be done with its part before others are."""
    receives = calling(Call("recv", TORCH + "distributed/distributed_c10d.py", "work.wait()"))
    sends = calling(Call("forward", "/home/me/train.py", "sent.wait()"))
    assert (
        judged(receives, in_call(119), receives).ranks
        == judged(sends, receives, in_call(119)).ranks
        == ()
    )
    assert judged(receives, in_call(119), in_call(119)).ranks == ()


def test_without_recorders_a_broadcast_names_nobody() -> None:
    """Its root may be done with it, and the one that left it out does the same as the root."""
    receives = calling(Call("broadcast", SITE + "torch/distributed/distributed_c10d.py"))
    assert (
        judged(receives, BACKWARD, BACKWARD).ranks
        == judged(receives, BACKWARD, receives).ranks
        == ()
    )


def test_one_rank_without_an_answer_is_not_elsewhere_for_that() -> None:
    """A busy node may answer late: the stack then names what the recorders of others name by
    number.
    """
    reduces = calling(Call("all_reduce", SITE + "torch/distributed/distributed_c10d.py"))
    assert (
        judged(in_call(119), reduces, in_call(119)).ranks
        == judged(in_call(119), in_call(119), BACKWARD).ranks
        == ()
    )


def test_a_loop_that_waits_for_a_condition_is_a_wait_for_others() -> None:
    polling = calling(
        Call("wait_for_file", "/home/me/train.py", "time.sleep(1)", polls=True),
        call="clock_nanosleep",
    )
    told = judged(in_call(119), polling, in_call(119))
    assert (told.kind, told.ranks) == ("asleep", (1,))
    assert judged(polling, in_call(119), polling).ranks == ()
    assert judged(polling, in_call(119)).ranks == ()


def polling(function: str, **fields: Any) -> RankSeen:
    return calling(
        Call(function, "/home/me/train.py", "time.sleep(0.2)", polls=True),
        call="clock_nanosleep",
        **fields,
    )


def test_a_loop_of_a_checkpoint_is_a_pause_and_no_collective_that_differs() -> None:
    """A program that writes a checkpoint may sleep between parts of it, as the others do between
    looks for its end.
    """
    exchange, checkpoint = polling("_exchange"), polling("_checkpoint")
    told = judged(exchange, checkpoint, exchange)
    assert (told.kind, told.ranks) == ("unknown", ())


def test_a_declared_pause_holds_whatever_its_stack_shows() -> None:
    pausing = replace(polling("_evaluation"), progress=at("evaluate").progress)
    told = judged(polling("_exchange"), pausing, polling("_exchange"))
    assert (told.kind, told.ranks) == ("pause", ())
    assert told.sentence.startswith("a rank reports a pause: ")

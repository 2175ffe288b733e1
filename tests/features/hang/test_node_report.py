"""Reports of hangs: what nodes send is not trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.features.hang.node_report import HangReport

THREAD = {
    "name": "python",
    "state": "S",
    "wchan": "futex_wait_queue",
    "call": "futex",
    "cpu_s": 0.01,
}
RANK: dict[str, Any] = {
    "rank": 2, "pid": 7, "state": "S", "was": "R", "wchan": "futex_wait_queue", "call": "futex", "window_s": 0.5, "cpu_s": 0.1,
    "progress": {"marks": 9, "step": 4, "phase": "compute", "t": 1.0, "begun": 1.0}, "threads": [THREAD],
    "connections": [["10.0.0.1", 1, "10.0.0.2", 2, 300, 0, 5]], "children": [{"pid": 8, "name": "worker", "state": "T"}],
    "blocked_pipe": {"pipe": "pipe:[1]", "readers": [[9, "tee", "T"]]}, "python": ['  File "x.py", line 3 in step'],
    "collectives": [{"group": "0", "number": 5, "name": "gloo:all_reduce", "over": False, "sizes": "[[4]]"}],
}  # fmt: skip


def test_a_report_is_read_as_it_was_sent() -> None:
    (seen,) = HangReport.of({"ranks": [RANK]}).ranks
    assert (seen.rank, seen.state, seen.was, seen.channel, seen.cpu_s, seen.frozen) == (
        2,
        "S",
        "R",
        "futex_wait_queue",
        0.1,
        False,
    )
    assert seen.progress and (seen.progress.step, seen.progress.phase) == (4, "compute")
    assert seen.connections[0].remote == "10.0.0.2" and seen.connections[0].retransmits == 5
    assert seen.pipe == "pipe:[1]" and (seen.readers[0].name, seen.readers[0].state) == ("tee", "T")
    assert seen.collectives and (seen.collectives[0].number, seen.collectives[0].over) == (5, False)
    assert seen.children[0].state == "T" and seen.threads[0].call == "futex"


@pytest.mark.parametrize(
    ("mono", "t", "silent_s"),
    [(13.5, 1.0, 12.5), (13.5, 14.0, 0.0), (None, 1.0, 0.0), (13.5, None, 0.0), (1e300, 1.0, 0.0)],
)
def test_the_silence_of_a_rank_is_by_its_nodes_clock(mono: Any, t: Any, silent_s: float) -> None:
    (seen,) = HangReport.of(
        {
            "mono": mono,
            "ranks": [RANK | {"progress": {"marks": 9, "step": 4, "phase": "x", "t": t}}],
        }
    ).ranks
    assert seen.progress and seen.progress.silent_s == silent_s


def test_ranks_come_in_order_and_each_once() -> None:
    report = HangReport.of({"ranks": [RANK | {"rank": number} for number in (3, 1, 3, 0)]})
    assert [seen.rank for seen in report.ranks] == [0, 1, 3]


@pytest.mark.parametrize("key", RANK)
@pytest.mark.parametrize(
    "value", [None, -1, 1e400, "x" * 10_000, [], [[]], {}, {"x": 1}, True, [None] * 10_000]
)
def test_a_field_of_another_type_costs_at_most_its_rank(key: str, value: Any) -> None:
    report = HangReport.of({"ranks": [RANK | {key: value}, RANK | {"rank": 5}]})
    assert report.ranks[-1].rank == 5
    assert len(repr(report)) < 50_000


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.sampled_from([*RANK, "ranks"])


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_nothing_that_json_can_say_raises(value: Any) -> None:
    HangReport.of(value)
    HangReport.of({"ranks": [value]})


def test_an_endless_report_is_cut() -> None:
    report = HangReport.of(
        json.loads(json.dumps({"ranks": [RANK | {"rank": number} for number in range(5000)]}))
    )
    assert len(report.ranks) == 256

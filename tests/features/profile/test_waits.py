"""Waits of ranks for each other, from traces whose every moment is known."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.features.profile.trace import Recorded, parse_trace
from orchestrator.features.profile.waits import with_waits
from tests.features.profile.test_trace import STEPS, event, packed


def rank(
    number: int,
    computes_until: float,
    *collectives: tuple[float, float],
    name: str = "gloo:all_reduce",
) -> Recorded:
    """A rank whose steps of 200 µs compute from 0 on, and whose collectives run so long."""
    sends = [event(name, "user_annotation", begin, end, thread=2) for begin, end in collectives]
    return parse_trace(
        packed(*STEPS, event("aten::mm", "cpu_op", 0, computes_until), *sends),
        number,
        f"node{number + 1}",
    )


def test_the_rank_that_comes_last_does_not_wait_and_the_others_wait_for_it() -> None:
    quick, slow = with_waits([rank(0, 100, (100, 180)), rank(1, 150, (150, 180))])
    assert (quick.exposed, quick.waiting) == pytest.approx((80 / 200, 50 / 200))
    assert (slow.exposed, slow.waiting) == pytest.approx((30 / 200, 0.0))


def test_clocks_of_nodes_need_not_agree() -> None:
    ahead = [event("orch step 21", "user_annotation", 5000, 5200), event("aten::mm", "cpu_op", 5000, 5150),
             event("gloo:all_reduce", "user_annotation", 5150, 5180, thread=2)]  # fmt: skip
    quick, _ = with_waits([rank(0, 100, (100, 180)), parse_trace(packed(*ahead), 1, "node2")])
    assert quick.waiting == pytest.approx(50 / 200)


def test_a_wait_beside_computing_or_beside_another_transfer_costs_nothing() -> None:
    # The first collective waits from 40 to 90 while the rank computes; the second from 100 to 130,
    # of which it transfers until 110 what the first one is.
    found, _ = with_waits(
        [rank(0, 100, (40, 110), (100, 160)), rank(1, 100, (100, 120), (100, 130))]
    )
    assert found.exposed == pytest.approx(60 / 200) and found.waiting == pytest.approx(20 / 200)


def odd(*others: Recorded) -> list[Any]:
    return [trace.waiting for trace in with_waits([rank(0, 100, (100, 180)), *others])]


@pytest.mark.parametrize("option", ["tensor_parallel", "pipeline_parallel", "replicas"])
def test_ranks_in_groups_of_their_own_are_not_compared_though_they_have_as_many_collectives(
    option: str,
) -> None:
    ranks = [rank(0, 100, (100, 180)), rank(1, 150, (150, 180))]
    assert [trace.waiting for trace in with_waits(ranks, {option: 2})] == [None, None]
    assert [trace.waiting for trace in with_waits(ranks, {option: 1})] == pytest.approx(
        [50 / 200, 0.0]
    )


def test_what_cannot_be_compared_has_no_waits() -> None:
    assert odd() == [None]
    assert odd(rank(1, 100, (100, 180), (185, 190))) == [None, None]
    assert odd(rank(1, 100, (100, 180), name="gloo:barrier")) == [None, None]
    assert with_waits([]) == []

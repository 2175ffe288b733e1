"""Which ranks the others wait for, from the parts of all of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from orchestrator.results.rank_parts import RankParts
from orchestrator.results.run import Lowered, RunResult
from orchestrator.results.slow_ranks import compared
from tests.support.summaries import runs

BLOCKS = 16


def repeats(
    hosts: list[str], slow: dict[int, float], count: int = 3, starved: dict[int, float] | None = None, noise: float = 0.003
) -> list[RunResult]:
    """Runs of 0.3 s a step, in which ranks compute 0.1 s, those of ``slow`` longer by that fraction."""
    chance = random.Random(3)

    def parts(rank: int) -> RankParts:
        computing = [0.1 * (1 + slow.get(rank, 0.0)) * (1 + chance.gauss(0, noise)) for _ in range(BLOCKS)]
        waiting = [(starved or {}).get(rank, 0.001) * (1 + chance.gauss(0, noise)) for _ in range(BLOCKS)]
        return RankParts(rank, hosts[rank], (0.3,) * BLOCKS, tuple(waiting), tuple(computing))

    made = runs("4n1g", [100.0] * count)
    return [replace(run, rank_parts=tuple(map(parts, range(len(hosts))))) for run in made]


FOUR = ["node1", "node2", "node3", "node4"]
PAIRS = ["node1", "node1", "node2", "node2", "node3", "node3"]


def test_equal_ranks_have_their_parts_and_no_sentence() -> None:
    found = compared(repeats(FOUR, {}))
    assert found.words == () and [times.rank for times in found.times] == [0, 1, 2, 3]
    assert all(times.excess and abs(times.excess.value) < 0.01 for times in found.times)


def test_the_slow_rank_is_named_with_its_node_and_not_those_that_wait_for_it() -> None:
    (words,) = compared(repeats(FOUR, {2: 0.12})).words
    assert words.startswith("rank 2 on node3 takes 1") and words.endswith(
        "longer to compute than the other ranks, which wait for it"
    )


def test_of_two_slow_ranks_the_others_wait_for_the_slower() -> None:
    first, second = compared(repeats([*FOUR, "node5"], {1: 0.05, 3: 0.2})).words
    assert first.startswith("rank 3 on node4") and first.endswith("which wait for it")
    assert second.startswith("rank 1 on node2") and second.endswith("than the other ranks")


def test_a_node_stands_for_its_ranks_if_all_of_them_are_slow() -> None:
    (words,) = compared(repeats(PAIRS, {2: 0.1, 3: 0.11})).words
    assert words.startswith("every rank of node2 takes 10")


def test_one_slow_rank_of_a_node_is_not_the_node() -> None:
    (words,) = compared(repeats(PAIRS, {3: 0.1})).words
    assert words.startswith("rank 3 on node2 takes")


def test_of_two_nodes_the_slower_is_named() -> None:
    (words,) = compared(repeats(PAIRS[:4], {2: 0.1, 3: 0.1})).words
    assert words.startswith("every rank of node2 takes")


def test_less_than_what_matters_is_not_named_however_certain() -> None:
    assert compared(repeats(FOUR, {2: 0.015}, noise=0.0001)).words == ()


def test_a_rank_that_waits_for_input_is_told_from_one_that_computes() -> None:
    (words,) = compared(repeats(FOUR, {}, starved={1: 0.03})).words
    assert words.startswith("rank 1 on node2 waits for its input 9.") and "of a step longer than the other ranks" in words


def test_what_is_known_of_the_node_stands_beside_it() -> None:
    lowered = {"sw_thermal_slowdown": {"node3": Lowered(0.4, 0.5, 0.3), "node1": Lowered(0.1, 0.1, 0.1)}}
    made = [replace(run, slowed=lowered, loaded={"node3": 0.4, "node2": 0.9}) for run in repeats(FOUR, {2: 0.12})]
    (words,) = compared(made).words
    assert "; clocks lowered by temperature: for 30% of the run" in words and "40% of the processors of node3" in words
    assert "node1" not in words and "90%" not in words


def test_runs_on_other_nodes_than_the_last_are_not_pooled_with_it() -> None:
    moved = repeats(list(reversed(FOUR)), {2: 0.5}, count=1)
    assert compared([*moved, *repeats(FOUR, {})]).words == ()


def test_times_that_are_absurdly_far_apart_still_give_numbers() -> None:
    (run,) = repeats(FOUR, {}, count=1)
    tiny = replace(run.rank_parts[0], compute_s=(5e-324, 1e14) * 8)
    (first, *_) = compared([replace(run, rank_parts=(tiny, *run.rank_parts[1:]))]).times
    assert first.excess and math.isfinite(first.excess.high) and first.excess.low >= -1


def test_one_slow_rank_of_many_is_named_alone() -> None:
    hosts = [f"node{rank // 8}" for rank in range(64)]
    (words,) = compared(repeats(hosts, {43: 0.1})).words
    assert words.startswith("rank 43 on node5 takes")


def test_a_single_rank_is_compared_with_nobody() -> None:
    assert compared(repeats(["node1"], {})).times == ()

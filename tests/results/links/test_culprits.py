"""The finder of bad nodes and links: who is named where the truth is known, and that nobody is
where nothing is wrong.
"""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.results.links.culprits import Culprits, diagnosis
from tests.support.examples import examples
from tests.support.pairworlds import WORLDS, Pair, Truth, World, times

SWEEPS = 20
"""What `orch bench pairs` measures where nobody says otherwise."""
STILL = World(0.0)


def named(found: Culprits) -> tuple[set[int], set[Pair], tuple[tuple[int, ...], ...]]:
    nodes, links = (
        {one.node for one in found.nodes if one.named},
        {one.pair for one in found.links if one.named},
    )
    return nodes, links, found.boundary.groups if found.boundary else ()


def found_in(count: int, truth: Truth) -> Culprits:
    return diagnosis(times(STILL, count, 3, random.Random(1), truth), count)


# --- without noise: who is to blame follows from the pattern alone


@pytest.mark.parametrize("count", [3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("adds", [False, True])
def test_one_slow_node_is_named_alone_and_by_how_much(count: int, adds: bool) -> None:
    for bad in range(count):
        found = found_in(count, Truth(nodes={bad: 3.0}, adds=adds))
        assert named(found) == ({bad}, set(), ())
        score = found.nodes[bad]
        assert (score.slow_to, score.partners) == (count - 1, count - 1)
        assert (score.slower, score.interval.low, score.interval.high) == pytest.approx(
            (3.0, 3.0, 3.0)
        )
        assert [one.slower for one in found.nodes if one.node != bad] == pytest.approx(
            [1.0] * (count - 1)
        )


@pytest.mark.parametrize("count", [3, 4, 5, 8, 16])
def test_one_slow_link_is_named_alone_and_accuses_neither_node(count: int) -> None:
    for pair in combinations(range(count), 2):
        found = found_in(count, Truth(links={pair: 3.0}))
        assert named(found) == (set(), {pair}, ())
        assert next(link.slower for link in found.links if link.named) == pytest.approx(3.0)


@pytest.mark.parametrize("adds", [False, True])
def test_a_third_of_the_nodes_may_be_slow_each_in_its_way(adds: bool) -> None:
    for nodes in ({0: 2.0, 4: 5.0}, {1: 3.0, 2: 3.0, 3: 3.0}, {0: 1.5, 5: 4.0, 8: 10.0}):
        found = found_in(9, Truth(nodes=nodes, adds=adds))
        assert named(found) == (set(nodes), set(), ())
        assert {node: found.nodes[node].slower for node in nodes} == pytest.approx(nodes)


def test_a_slow_node_and_a_slow_link_elsewhere_are_told_apart() -> None:
    found = found_in(6, Truth(nodes={1: 3.0}, links={(2, 5): 2.0}))
    assert named(found) == ({1}, {(2, 5)}, ())


def test_of_three_nodes_one_culprit_is_told() -> None:
    # Two pairs are slow, and not alike: one node, or one node and a link of it.
    assert named(found_in(3, Truth(links={(0, 1): 5.0, (0, 2): 3.0}))) == ({0}, set(), ())
    assert named(found_in(4, Truth(nodes={0: 3.0}, links={(0, 2): 2.0}, adds=True))) == (
        {0},
        {(0, 2)},
        (),
    )


def test_two_slow_links_of_one_node_do_not_make_it_a_slow_node() -> None:
    found = found_in(6, Truth(links={(2, 5): 2.0, (2, 3): 2.0}))
    assert named(found) == (set(), {(2, 3), (2, 5)}, ())


@pytest.mark.parametrize(
    ("count", "cut"), [(4, 2), (6, 3), (8, 2), (8, 4), (16, 4), (16, 8), (16, 11)]
)
def test_what_crosses_between_two_groups_is_a_boundary_and_no_slow_node(
    count: int, cut: int
) -> None:
    found = found_in(count, Truth(cut=cut, across=3.0))
    assert named(found) == (set(), set(), (tuple(range(cut)), tuple(range(cut, count))))
    assert found.boundary and found.boundary.slower == pytest.approx(3.0)


def test_a_slow_node_within_two_groups_is_named_beside_the_boundary() -> None:
    found = found_in(10, Truth(nodes={3: 6.0}, cut=5, across=2.0))
    assert named(found) == ({3}, set(), ((0, 1, 2, 4), (5, 6, 7, 8, 9)))


def test_a_node_that_is_slow_to_both_groups_is_not_hidden_by_their_boundary() -> None:
    # Node 0 is as slow to its own group; so is one link within that group.
    links = {(0, node): 9.0 for node in range(1, 8)} | {(2, 3): 4.0}
    nodes, told, groups = named(found_in(9, Truth(links=links, cut=5, across=2.0)))
    assert (nodes, told, groups) == ({0}, {(2, 3)}, ((1, 2, 3, 4), (5, 6, 7, 8)))


def test_one_fast_pair_makes_nobody_slow() -> None:
    # Two nodes of one machine, say. Of three nodes it cannot be told from a slow third one, whose
    # pairs look the same.
    for count in (4, 5, 8):
        found = found_in(count, Truth(links={(0, 1): 0.2}))
        assert found.clean


def test_two_nodes_have_nothing_to_compare_with() -> None:
    found = diagnosis({(0, 1): [9.0, 9.1, 8.9]}, 2)
    assert found.clean and found.ordinary_s == pytest.approx(9.0, rel=0.01)


def test_one_sweep_names_nobody() -> None:
    assert diagnosis(
        {pair: [9.0 if 0 in pair else 1.0] for pair in combinations(range(5), 2)}, 5
    ).clean


def test_what_is_slower_by_less_than_the_margin_is_not_named() -> None:
    assert found_in(6, Truth(nodes={1: 1.09}, links={(2, 3): 1.09})).clean
    assert named(found_in(6, Truth(nodes={1: 1.12}))) == ({1}, set(), ())


def test_what_is_left_out_is_refused() -> None:
    with pytest.raises(ValueError, match="every pair of 3 nodes"):
        diagnosis({(0, 1): [1.0], (0, 2): [1.0]}, 3)


# --- with noise


@pytest.mark.parametrize("count", [4, 8, 16])
@pytest.mark.parametrize("name", WORLDS)
def test_nobody_is_named_in_a_hundred_clean_runs(name: str, count: int) -> None:
    chance = random.Random(f"clean {name} {count}")
    found = [
        diagnosis(times(WORLDS[name], count, SWEEPS, chance), count)
        for _ in range(examples(100 if count < 16 else 34))
    ]
    assert [named(one) for one in found if not one.clean] == []


@pytest.mark.parametrize("count", [4, 8, 16])
@pytest.mark.parametrize("name", WORLDS)
def test_what_is_slow_enough_for_the_noise_is_named_and_nothing_else(name: str, count: int) -> None:
    chance = random.Random(f"slow {name} {count}")
    for adds in (False, True, False):
        node, pair = chance.randrange(count), tuple(sorted(chance.sample(range(count), 2)))
        of_node = diagnosis(
            times(WORLDS[name], count, SWEEPS, chance, Truth(nodes={node: 4.0}, adds=adds)), count
        )
        assert named(of_node) == ({node}, set(), ())
        of_link = diagnosis(
            times(WORLDS[name], count, SWEEPS, chance, Truth(links={pair: 5.0}, adds=adds)), count
        )
        assert named(of_link) == (set(), {pair}, ())


@pytest.mark.parametrize("name", ["quiet", "heavy tails", "drift"])
def test_what_is_said_to_be_within_reach_is_mostly_found_and_less_than_the_margin_never(
    name: str,
) -> None:
    chance = random.Random(f"reach {name}")
    reach = sorted(
        diagnosis(times(WORLDS[name], 8, SWEEPS, chance), 8).seen_node for _ in range(9)
    )[4]
    found, tries = [], examples(50)
    for slower in (math.ceil(10 * reach) / 10, 1.05):
        truth = Truth(nodes={3: slower})
        found.append(
            sum(
                3 in named(diagnosis(times(WORLDS[name], 8, SWEEPS, chance, truth), 8))[0]
                for _ in range(tries)
            )
        )
    assert found[0] >= 0.86 * tries and found[1] == 0


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    # The nodes' own differences are part of the truth: in this world there are none but the slow
    # one.
    chance = random.Random(7)
    held = {"node": 0, "link": 0}
    for _ in range(300):
        found = diagnosis(
            times(World(0.1), 8, SWEEPS, chance, Truth(nodes={3: 2.0}, links={(0, 1): 1.8})), 8
        )
        node, link = (
            found.nodes[3].interval,
            next(one.interval for one in found.links if one.pair == (0, 1)),
        )
        held["node"] += node.low <= 2.0 <= node.high
        held["link"] += link.low <= 1.8 <= link.high
    assert min(held.values()) >= 0.93 * 300, held


# --- properties


@settings(max_examples=examples(40), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(3, 9), st.sampled_from(sorted(WORLDS)))
def test_other_names_for_the_nodes_permute_the_scores(
    chance: random.Random, count: int, name: str
) -> None:
    seen = times(WORLDS[name], count, 5, random.Random(chance.random()), Truth(nodes={0: 3.0}))
    order = list(range(count))
    chance.shuffle(order)
    turned = {
        (min(order[a], order[b]), max(order[a], order[b])): values
        for (a, b), values in seen.items()
    }
    one, other = diagnosis(seen, count), diagnosis(turned, count)
    for score in one.nodes:
        assert other.nodes[order[score.node]].slower == pytest.approx(score.slower)
        assert other.nodes[order[score.node]].named == score.named
    scores = {link.pair: link for link in other.links}
    for link in one.links:
        a, b = (order[node] for node in link.pair)
        again = scores[min(a, b), max(a, b)]
        assert (again.slower, again.named) == (pytest.approx(link.slower), link.named)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.sampled_from(sorted(WORLDS)))
def test_a_cluster_twice_as_fast_gets_the_same_verdict(seed: int, factor: float, name: str) -> None:
    seen = times(WORLDS[name], 6, 6, random.Random(seed), Truth(nodes={2: 2.0}))
    scaled = {pair: [factor * value for value in values] for pair, values in seen.items()}
    one, other = diagnosis(seen, 6), diagnosis(scaled, 6)
    assert named(one) == named(other)
    assert other.ordinary_s == pytest.approx(factor * one.ordinary_s)
    assert [score.slower for score in other.nodes] == pytest.approx(
        [score.slower for score in one.nodes]
    )

"""Slow units among peers, in simulated clusters whose truth is known; `benchmarks/accusations.py`
has the large tables.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.accusations import Counted, Part, counted, judged, named
from benchmarks.clusters import NOISE, cluster, each
from orchestrator.features.accept.peer_power import find_least_slowdown, repeats_that_find
from orchestrator.features.accept.peers import against_peers

CLEAN = 30
FORGETFUL = [name for name in NOISE if "stay" not in name]
"""Kinds of noise whose slow times do not last from repeat to repeat."""


@pytest.mark.parametrize(("nodes", "repeats", "clusters"), [(4, 3, 60), (16, 5, 30), (64, 5, 10)])
@pytest.mark.parametrize("noise", FORGETFUL)
def test_hardly_a_clean_cluster_has_a_node_named(
    noise: str, nodes: int, repeats: int, clusters: int
) -> None:
    generator = random.Random(7)
    accused = [named(cluster(generator, nodes, repeats, NOISE[noise])) for _ in range(clusters)]
    assert sum(map(bool, accused)) <= 1


def test_a_quarter_of_slow_measurements_accuses_nobody_among_256_nodes() -> None:
    generator = random.Random(7)
    accused = [named(cluster(generator, 256, 5, NOISE["one in 4 slower by 6 %"])) for _ in range(4)]
    assert accused == [[]] * 4


@pytest.mark.parametrize(
    ("noise", "nodes", "repeats"),
    [("one in 4 slower by 6 %, half stay", 16, 5), ("one in 10 slower by 10 %, three in four stay", 64, 5),
     ("one in 10 slower by 10 %, three in four stay", 64, 9)],
)  # fmt: skip
def test_slow_periods_that_others_show_accuse_nobody_and_leave_the_slow_open(
    noise: str, nodes: int, repeats: int
) -> None:
    generator, accused, passing = random.Random(7), 0, 0
    for _ in range(CLEAN):
        units = judged(cluster(generator, nodes, repeats, NOISE[noise])).units.values()
        accused += any(unit.named for unit in units)
        passing += any(unit.passing for unit in units)
        assert all(unit.beyond and not unit.suspect for unit in units if unit.passing)
    assert accused <= 1 and passing >= 1


def test_the_same_slow_node_is_named_where_no_other_is_slow_for_a_while() -> None:
    values = {str(n): [100.0, 100.1, 99.9, 100.0, 100.1] for n in range(16)} | {
        "slow": [90.0, 90.1, 89.9, 90.0, 90.1]
    }
    assert named(values) == ["slow"]
    for_a_while = values | {"0": [90.0, 90.1, 89.9, 100.0, 100.1]}
    assert named(for_a_while) == [] and judged(for_a_while).units["slow"].passing
    now_and_then = values | {
        "0": [100.0, 90.1, 99.9, 90.0, 100.1],
        "1": [100.0, 100.0, 90.0, 100.0, 100.1],
    }
    assert named(now_and_then) == ["slow"]
    is_itself_one = values | {"slow": [90.0, 90.1, 89.9, 90.0, 100.1]}
    assert named(is_itself_one) == [] and judged(is_itself_one).units["slow"].passing


def test_slow_measurements_hide_a_slow_node_and_a_slower_one_or_more_repeats_do_not() -> None:
    generator = random.Random(7)
    noise = NOISE["one in 4 slower by 6 %"]
    hidden = [cluster(generator, 64, 5, noise, slow=0.06) for _ in range(5)]
    assert sum(map(bool, map(named, hidden))) <= 1
    assert all(judged(values).units["0"].beyond for values in hidden), (
        "it is open, and does not pass"
    )
    assert named(cluster(generator, 64, 5, noise, slow=0.12)) == ["0"]
    enough = repeats_that_find(hidden[0], 0.06, margin=0.03)
    assert enough and enough > 5
    found = [named(cluster(generator, 64, enough + 1, noise, slow=0.06)) == ["0"] for _ in range(6)]
    assert sum(found) >= 5


def test_a_row_of_the_table_does_not_depend_on_how_its_clusters_are_divided() -> None:
    whole = Part("one in 4 slower by 6 %", 8, 3, 0.1, range(12), 0, 1)
    together = Counted()
    for numbers in (range(5), range(5, 12)):
        together.add(counted(replace(whole, numbers=numbers)))
    assert together == counted(whole)
    assert 0 < together.failed <= together.clusters == 12
    assert (
        counted(replace(whole, seed=2)) != together or counted(replace(whole, seed=3)) != together
    )


def test_no_number_of_repeats_finds_less_than_the_margin() -> None:
    values = cluster(random.Random(7), 8, 5, NOISE["measured"])
    assert repeats_that_find(values, 0.02, margin=0.03) is None


@pytest.mark.parametrize(
    ("slow", "nodes", "least"), [(0.05, 16, 18), (0.10, 4, 19), (0.10, 64, 20), (0.20, 256, 20)]
)
def test_a_slow_node_is_named_alone(slow: float, nodes: int, least: int) -> None:
    generator = random.Random(3)
    hits = [
        named(cluster(generator, nodes, 5, NOISE["measured"], slow)) == ["0"] for _ in range(20)
    ]
    assert sum(hits) >= least


def test_a_third_of_the_nodes_may_be_slow() -> None:
    generator = random.Random(5)
    values = cluster(generator, 12, 5, NOISE["measured"])
    slow = {
        name: [0.85 * value for value in of_node] if int(name) < 4 else of_node
        for name, of_node in values.items()
    }
    assert sorted(named(slow)) == ["0", "1", "2", "3"]


def test_a_node_that_is_disturbed_in_two_of_five_repeats_is_not_named() -> None:
    values = {str(n): [100.0, 100.1, 99.9, 100.0, 100.1] for n in range(8)} | {
        "8": [80.0, 100.0, 80.0, 100.0, 100.1]
    }
    peers = against_peers(values, margin=0.03)
    assert peers and not any(unit.suspect for unit in peers.units.values())


def test_times_are_judged_the_other_way_round() -> None:
    values = {str(n): [1.0, 1.01, 0.99] for n in range(5)} | {
        "slow": [1.3, 1.31, 1.29],
        "fast": [0.7, 0.71, 0.69],
    }
    peers = against_peers(values, margin=0.05, lower_is_better=True)
    assert peers and [name for name, unit in peers.units.items() if unit.named] == ["slow"]
    assert peers.units["slow"].slower == pytest.approx(0.3, abs=0.01)


def test_noise_hides_what_is_below_the_least_that_would_have_been_named() -> None:
    generator = random.Random(2)
    noisy = cluster(generator, 4, 3, each(lambda chance: chance.gauss(0, 0.2)))
    assert least(noisy) > 0.5 and named(noisy) == []
    assert least(cluster(generator, 16, 5, NOISE["measured"])) < 0.06


@pytest.mark.parametrize("nodes", [3, 4, 16])
def test_a_node_that_is_slower_by_the_least_is_named_and_by_half_of_it_hardly_one(
    nodes: int,
) -> None:
    values = cluster(random.Random(4), nodes, 5, NOISE["normal, 1 %"])
    share_of_least = least(values)
    planted = {share: [slowed for name in values if (slowed := named_with(values, name, share)) == [name]]
               for share in (share_of_least, share_of_least / 2)}  # fmt: skip
    assert (
        len(planted[share_of_least]) >= 0.8 * nodes
        and len(planted[share_of_least / 2]) <= 0.2 * nodes
    )


def least(values: dict[str, list[float]]) -> float:
    peers = against_peers(values, margin=0.03)
    assert peers
    return find_least_slowdown(values, peers, margin=0.03)


def named_with(values: dict[str, list[float]], node: str, slower: float) -> list[str]:
    return named({**values, node: [value / (1 + slower) for value in values[node]]})


@pytest.mark.parametrize(
    ("slow", "nodes", "apart", "ahead"), [(2, 4, 2, 2), (4, 8, 4, 4), (2, 3, 0, 1), (5, 8, 0, 3)]
)
def test_where_half_of_the_nodes_or_more_are_slow_none_is_named_and_it_is_told(
    slow: int, nodes: int, apart: int, ahead: int
) -> None:
    values = cluster(random.Random(6), nodes, 5, NOISE["measured"])
    halved = {
        name: [value / 1.5 for value in own] if int(name) < slow else own
        for name, own in values.items()
    }
    peers = against_peers(halved, margin=0.10)
    assert peers and not any(unit.suspect for unit in peers.units.values())
    assert [name for name, unit in peers.units.items() if unit.apart] == [
        str(number) for number in range(apart)
    ]
    assert sum(unit.ahead for unit in peers.units.values()) == ahead


@pytest.mark.parametrize("noise", FORGETFUL)
def test_hardly_a_node_of_a_clean_cluster_is_apart(noise: str) -> None:
    generator, clusters = random.Random(13), 0
    for _ in range(CLEAN):
        peers = against_peers(cluster(generator, 16, 5, NOISE[noise]), margin=0.03)
        clusters += peers is not None and (
            any(unit.apart for unit in peers.units.values()) or bool(peers.ahead)
        )
    assert clusters <= 3


@pytest.mark.parametrize(
    "values",
    [{}, {"a": [1.0, 1.0], "b": [1.0, 1.0]}, {"a": [1.0], "b": [1.0], "c": [1.0]},
     {"a": [1.0, 1.0], "b": [1.0], "c": [1.0, 1.0]}, {"a": [0.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 1.0]}],
)  # fmt: skip
def test_what_cannot_be_compared_is_not(values: dict[str, list[float]]) -> None:
    assert against_peers(values, margin=0.03) is None


def test_equal_values_accuse_nobody() -> None:
    peers = against_peers({str(n): [5.0, 5.0, 5.0] for n in range(6)}, margin=0.03)
    assert peers and not any(unit.suspect for unit in peers.units.values())


@pytest.mark.parametrize("noise", FORGETFUL)
def test_hardly_a_node_of_a_clean_cluster_is_suspect_twice(noise: str) -> None:
    generator, clusters = random.Random(11), 0
    for _ in range(12):
        twice = [
            against_peers(cluster(generator, 64, 5, NOISE[noise]), margin=0.03, comparisons=128)
            for _ in range(2)
        ]
        suspects = [
            {name for name, unit in peers.units.items() if unit.suspect} for peers in twice if peers
        ]
        clusters += bool(suspects[0] & suspects[1])
    assert clusters <= 1

"""How far one member is above the others: planted excesses are found, and noise alone is not."""

from __future__ import annotations

import math
import random

import pytest

from orchestrator.results.numbers.excess import CERTAIN, Excess, excesses

RANKS, BLOCKS = 4, 16


def differences(
    chance: random.Random, runs: int, carried: float, of_runs: float, excess: float
) -> dict[int, list[list[float]]]:
    """Make up the blocks of ranks with noise of 1 % that is carried from block to block, and of
    runs; rank 0 has the excess.
    """
    logs: dict[int, list[list[float]]] = {}
    for rank in range(RANKS):
        logs[rank] = []
        for _ in range(runs):
            level, noise, blocks = (
                chance.gauss(excess if rank == 0 else 0.0, of_runs),
                chance.gauss(0, 0.01),
                [],
            )
            for _ in range(BLOCKS):
                noise = carried * noise + (1 - carried**2) ** 0.5 * chance.gauss(0, 0.01)
                blocks.append(level + noise)
            logs[rank].append(blocks)
    others = {rank: [other for other in logs if other != rank] for rank in logs}
    return {
        rank: [
            [
                own - sorted(logs[other][run][at] for other in others[rank])[1]
                for at, own in enumerate(blocks)
            ]
            for run, blocks in enumerate(of_rank)
        ]
        for rank, of_rank in logs.items()
    }


NOISE = [(1, 0.0, 0.0), (1, 0.5, 0.0), (3, 0.3, 0.0), (3, 0.0, 0.01), (5, 0.5, 0.01)]


@pytest.mark.parametrize(("runs", "carried", "of_runs"), NOISE)
def test_noise_alone_names_a_rank_in_few_of_many_configurations(
    runs: int, carried: float, of_runs: float
) -> None:
    chance = random.Random(5)
    made = [excesses(differences(chance, runs, carried, of_runs, 0.0)) for _ in range(300)]
    above = [any(found.low > 0 for found in ranks.values()) for ranks in made]
    # The intervals are two-sided, so half of what they miss is below; the correlation of 16 blocks
    # is itself uncertain.
    assert sum(above) / len(above) <= 2.5 * (1 - CERTAIN)


@pytest.mark.parametrize(("runs", "carried", "of_runs"), NOISE)
def test_a_planted_excess_lies_in_its_interval_and_no_other_rank_is_above(
    runs: int, carried: float, of_runs: float
) -> None:
    chance = random.Random(6)
    made = [excesses(differences(chance, runs, carried, of_runs, 0.1)) for _ in range(100)]
    assert sum(ranks[0].low < 0.1 < ranks[0].high for ranks in made) >= 97
    assert sum(ranks[0].low > 0 for ranks in made) >= 97
    assert sum(ranks[rank].low > 0 for ranks in made for rank in (1, 2, 3)) <= 3


def test_an_excess_of_one_run_of_three_is_not_one_of_all() -> None:
    quiet = [0.001 * (-1) ** block for block in range(BLOCKS)]
    found = excesses({0: [[0.3] * BLOCKS, quiet, quiet], 1: [quiet] * 3, 2: [quiet] * 3})
    assert found[0].low < 0 < found[0].value and not found[0].is_usual


@pytest.mark.parametrize(("below", "is_usual"), [(1, True), (2, False)])
def test_one_run_in_six_may_be_an_exception(below: int, is_usual: bool) -> None:
    levels = [-0.01] * below + [0.1 + 0.01 * number for number in range(7 - below)]
    found = excesses(
        {
            0: [[level] * BLOCKS for level in levels],
            1: [[0.0] * BLOCKS] * 7,
            2: [[0.0] * BLOCKS] * 7,
        }
    )
    assert found[0].is_usual == is_usual


@pytest.mark.parametrize("runs", [3, 5])
def test_a_rank_that_scatters_far_more_than_the_others_has_an_interval_of_its_own(
    runs: int,
) -> None:
    chance = random.Random(7)
    above = 0
    for _ in range(400):
        levels = [
            [chance.gauss(0, 0.1 if rank == 7 else 0.002) for rank in range(8)] for _ in range(runs)
        ]
        apart = [
            [own - sorted(run[:rank] + run[rank + 1 :])[3] for rank, own in enumerate(run)]
            for run in levels
        ]
        found = excesses(
            {
                rank: [[run[rank] + chance.gauss(0, 0.002) for _ in range(8)] for run in apart]
                for rank in range(8)
            }
        )
        above += found[7].low > 0
    assert above / 400 <= 2 * (1 - CERTAIN)


def test_values_without_any_scatter_have_an_interval_that_is_not_a_point() -> None:
    found = excesses({0: [[0.5] * BLOCKS], 1: [[0.0] * BLOCKS]})
    assert found[0].low < 0.5 < found[0].high and found[1].low < 0.0


@pytest.mark.parametrize(
    "runs", [[], [[]], [[0.1, 0.2, 0.3]]], ids=["no run", "no block", "three blocks"]
)
def test_too_few_blocks_say_nothing(runs: list[list[float]]) -> None:
    nothing: dict[int, Excess] = {}
    assert excesses({0: runs, 1: runs}) == nothing


def made(
    rng: random.Random, shape: str, runs: int, ranks: int, of_blocks: float, of_runs: float
) -> dict[int, list[list[float]]]:
    """Make up the blocks of equal ranks with noise of a shape, of blocks and of runs, each as a
    standard deviation.
    """
    noise = {
        "symmetric": lambda: rng.gauss(0, 1),
        "exponential": lambda: rng.expovariate(1),
        "lognormal": lambda: math.exp(rng.gauss(0, 0.6)) / 0.78,
        "bimodal": lambda: (rng.random() < 0.25) / 0.433,
    }[shape]
    values: dict[int, list[list[float]]] = {rank: [] for rank in range(ranks)}
    for _ in range(runs):
        for of_rank in values.values():
            level = of_runs * noise()
            of_rank.append([level + of_blocks * noise() for _ in range(BLOCKS)])
    return values


SHAPES = ["symmetric", "exponential", "lognormal", "bimodal"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("runs", "ranks"), [(1, 4), (1, 16), (3, 8), (5, 16)])
def test_equal_ranks_are_not_above_each_other_whatever_the_shape_of_the_noise(
    shape: str, runs: int, ranks: int
) -> None:
    rng, above = random.Random(f"{shape} {runs} {ranks}"), 0
    for _ in range(60):
        found = excesses(made(rng, shape, runs, ranks, 0.05, 0.0))
        above += any(
            excess.low > 0 and excess.value > 0.02 and excess.is_usual for excess in found.values()
        )
    assert above <= 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("runs", "ranks"), [(1, 4), (1, 8), (3, 8), (5, 16)])
def test_ranks_that_differ_from_run_to_run_are_not_above_each_other_and_a_slow_one_is(
    shape: str, runs: int, ranks: int
) -> None:
    rng, above, seen = random.Random(f"{shape} {runs} {ranks}"), 0, 0
    for _ in range(40):
        values = made(rng, shape, runs, ranks, 0.01, 0.01)
        found = excesses(values)
        above += any(
            excess.low > 0 and excess.value > 0.02 and excess.is_usual for excess in found.values()
        )
        values[0] = [[value + 0.15 for value in blocks] for blocks in values[0]]
        seen += excesses(values)[0].low > 0
    assert above <= 3 and seen >= 36


def test_two_slow_ranks_do_not_hide_each_other() -> None:
    rng = random.Random(3)
    for runs in (1, 3):
        values = made(rng, "symmetric", runs, 8, 0.01, 0.003)
        for rank in (2, 5):
            values[rank] = [[value + 0.12 for value in blocks] for blocks in values[rank]]
        assert [rank for rank, excess in excesses(values).items() if excess.low > 0] == [2, 5]

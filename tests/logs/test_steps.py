"""Ranks heard as one, against the plain way of doing it: all samples of a step in a list."""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from orchestrator.logs.steps import ABSURD, VALUES, RankAggregate, StepSample

Rank = tuple[list[int], dict[str, list[Any]]]


def plainly(ranks: list[Rank]) -> list[StepSample]:
    """What `RankAggregate` promises, with everything in memory and exact sums."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for steps, values in ranks:
        for row, step in enumerate(steps):
            by_step.setdefault(step, []).append(
                {name: column[row] for name, column in values.items()}
            )
    counts = Counter(len(said) for said in by_step.values())
    voices = max(counts, key=lambda count: (counts[count], count), default=0)
    return [averaged(step, said) for step, said in sorted(by_step.items()) if len(said) == voices]


def averaged(step: int, said: list[dict[str, Any]]) -> StepSample:
    found: dict[str, Any] = {}
    for name in VALUES:
        column = [one[name] for one in said if one.get(name) is not None]
        if len(column) < len(said):
            continue
        if len(said) == 1:
            found[name] = column[0]
        elif name == "samples":
            found[name] = column[0] if len(set(column)) == 1 else None
        elif not all(1 / ABSURD < abs(value) < ABSURD or value == 0 for value in column):
            found[name] = math.nan
        elif name.endswith("_per_s"):
            times = [1 / value if value > 0 else math.inf for value in column]
            found[name] = len(times) / math.fsum(times) if math.inf not in times else 0.0
        else:
            found[name] = math.fsum(column) / len(column)
    return StepSample(step, **found)


def alike(one: StepSample, other: StepSample) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in ("step", *VALUES))
    return all(
        a == b
        or (a is not None and b is not None and a == pytest.approx(b, rel=1e-12, nan_ok=True))
        for a, b in pairs
    )


def one_rank(chance: random.Random, hostile: bool) -> Rank:
    last = chance.choice([40, 40, 40, 37, 12])
    steps = list(range(1, last + 1))
    if hostile and chance.random() < 0.2:
        chance.shuffle(steps)
        steps[:3] = [7, 7, 7]
    values: dict[str, list[Any]] = {
        "timestamp": [1.7e9 + 0.25 * step + chance.random() for step in steps],
        "samples_per_s": [chance.uniform(100, 200) for _ in steps],
        "samples": [chance.choice([64, 64, 64, 32]) if hostile else 64 for _ in steps],
    }
    if hostile:
        for name, odd in (
            ("timestamp", 1e300),
            ("samples_per_s", 0.0),
            ("samples_per_s", -3.0),
            ("samples_per_s", math.nan),
        ):
            if chance.random() < 0.2:
                values[name][chance.randrange(last)] = odd
        for column in values.values():
            if chance.random() < 0.2:
                column[chance.randrange(last)] = None
        if chance.random() < 0.2:
            del values[chance.choice(list(values))]
    return steps, values


@pytest.mark.parametrize("hostile", [False, True])
def test_ranks_heard_as_one_say_what_all_their_samples_say(hostile: bool) -> None:
    for seed in range(150):
        chance = random.Random(seed)
        ranks = [one_rank(chance, hostile) for _ in range(chance.choice([1, 2, 3, 9]))]
        aggregate = RankAggregate()
        for rank in ranks:
            aggregate.add(*rank)
        wanted, found = plainly(ranks), list(aggregate.samples())
        assert len(found) == len(wanted) and all(map(alike, found, wanted)), (seed, found, wanted)


def test_halves_that_other_processes_heard_make_the_same_whole() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        ranks = [one_rank(chance, hostile=True) for _ in range(12)]
        whole, merged = RankAggregate(), RankAggregate()
        for rank in ranks:
            whole.add(*rank)
        for some in (ranks[:5], ranks[5:6], ranks[6:]):
            part = RankAggregate()
            for rank in some:
                part.add(*rank)
            merged.merge(pickle.loads(pickle.dumps(part)))
        assert all(map(alike, merged.samples(), whole.samples())), seed
        assert len(merged.samples()) == len(whole.samples())


def test_the_clocks_of_thousands_of_ranks_lose_no_digit_that_matters() -> None:
    aggregate, chance = RankAggregate(), random.Random(1)
    for _ in range(2048):
        start = 1.7e9 + chance.random()
        aggregate.add(
            list(range(1, 51)), {"timestamp": [start + step * 0.001 for step in range(1, 51)]}
        )
    marks = [sample.timestamp for sample in aggregate.samples()]
    assert all(
        later - earlier == pytest.approx(0.001, abs=1e-6) for earlier, later in pairwise(marks)
    )


def test_many_ranks_take_the_room_of_one() -> None:
    few, many = RankAggregate(), RankAggregate()
    for count, aggregate in ((2, few), (200, many)):
        for _ in range(count):
            aggregate.add(list(range(1000)), {"step_time_s": [0.25] * 1000})
    assert len(pickle.dumps(many)) < 1.1 * len(pickle.dumps(few))

"""What a bisect runs, and what it claims: by hand, and in simulated campaigns whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.features.search.bisection.answer import (
    Bisected,
    answer_of,
    left_open,
    measure_change,
)
from orchestrator.features.search.bisection.shares import share
from orchestrator.features.search.bisection.steps import (
    BLOCKS,
    CONFIRMED,
    GONE,
    NO_TIME,
    Limit,
    following,
)
from orchestrator.features.search.record import (
    BisectRecord,
    Candidate,
    Difference,
    Rung,
    SideRecord,
)
from orchestrator.features.search.strategy import Round, Speeds, State, change
from orchestrator.plan.bench import order_cells

Truth = Callable[[Candidate], float]
"""The logarithm of the value of a candidate over that of A."""
LONG = Limit(1.0, 1e9)


# --- by hand: values without any scatter but a little


def speeds_of(
    truth: Truth, *candidates: Candidate, blocks: int = 4, scatter: float = 0.002
) -> Speeds:
    generator = random.Random(1)
    return {
        one: {n: 100 * math.exp(truth(one) + generator.gauss(0, scatter)) for n in range(blocks)}
        for one in candidates
    }


def one(place: int, effect: float = -0.2) -> Truth:
    return lambda candidate: effect * candidate[place]


def both(first: int, second: int) -> Truth:
    return lambda candidate: -0.2 * candidate[first] * candidate[second]


def test_a_change_that_is_gone_or_turned_ends_the_bisect_and_one_that_is_not_certain_gets_more_blocks() -> (
    None
):
    sides = ((0, 0), (1, 1))
    assert following(2, speeds_of(lambda _: 0.0, *sides), LONG, recorded=math.log(0.8)) == GONE
    assert following(2, speeds_of(one(0), *sides), LONG, recorded=math.log(1.2)) == GONE
    assert following(2, speeds_of(one(0, -0.03), *sides), LONG, recorded=math.log(0.8)) == GONE, (
        "less than a quarter of it"
    )
    scattered = {
        (0, 0): {1: 100.0, 2: 90.0, 3: 110.0, 4: 100.0},
        (1, 1): {1: 80.0, 2: 105.0, 3: 75.0, 4: 90.0},
    }
    assert following(2, scattered, LONG, recorded=math.log(0.8)) == Rung((), 4)
    assert following(2, speeds_of(lambda _: 0.0, *sides, scatter=0.3, blocks=16), LONG) == GONE
    assert following(2, {}, LONG) == Rung((), BLOCKS)


def test_the_likeliest_differences_are_tried_alone_first_six_at_a_time() -> None:
    a, b = (0,) * 8, (1,) * 8
    step = following(8, speeds_of(one(7), a, b), LONG)
    assert (
        isinstance(step, Rung)
        and len(step.candidates) == 6
        and step.candidates[0] == (1, 0, 0, 0, 0, 0, 0, 0)
    )
    first = speeds_of(one(7), a, b, *step.candidates)
    then = following(8, first, LONG)
    assert isinstance(then, Rung) and then.candidates == (
        (0, 0, 0, 0, 0, 0, 1, 0),
        (0, 0, 0, 0, 0, 0, 0, 1),
    )


def test_what_explains_the_change_alone_is_verified_with_nothing_else() -> None:
    known = speeds_of(one(1), (0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    assert following(3, known, LONG) == Rung(((0, 1, 0),), 6, confirms=True)
    assert following(1, speeds_of(one(0), (0,), (1,)), LONG) == Rung(((1,),), 6, confirms=True)


def test_of_two_that_work_only_together_each_is_found_by_leaving_it_out() -> None:
    truth, singles = both(0, 2), ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    known = speeds_of(truth, (0, 0, 0, 0), (1, 1, 1, 1), *singles)
    step = following(4, known, LONG)
    assert step == Rung(((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)), 3)
    assert isinstance(step, Rung)
    known = speeds_of(truth, *known, *step.candidates)
    assert following(4, known, LONG) == Rung(((1, 0, 1, 0),), 3)
    known = speeds_of(truth, *known, (1, 0, 1, 0))
    verification = following(4, known, LONG)
    # the pair, and each of it without the other
    assert verification == Rung(((1, 0, 1, 0), (0, 0, 1, 0), (1, 0, 0, 0)), 6, confirms=True)


def test_either_of_two_pairs_is_found_by_halves_though_neither_leaving_out_nor_adding_one_shows_anything() -> (
    None
):
    def truth(candidate: Candidate) -> float:
        return -0.2 * max(candidate[0] * candidate[1], candidate[2] * candidate[3])

    known: Speeds = speeds_of(truth, (0, 0, 0, 0), (1, 1, 1, 1))
    while isinstance(step := following(4, known, LONG), Rung) and not step.confirms:
        known = {**known, **speeds_of(truth, (0, 0, 0, 0), (1, 1, 1, 1), *step.candidates)}
    assert isinstance(step, Rung) and step.candidates[0] in ((1, 1, 0, 0), (0, 0, 1, 1))


def test_a_candidate_that_cannot_be_run_is_left_out_and_its_partner_found() -> None:
    refused = {(1, 0)}
    known = speeds_of(one(1), (0, 0), (1, 1), (0, 1))
    assert following(2, known, LONG, refused) == Rung(((0, 1),), 6, confirms=True)
    # of two, one cannot be run alone and the other explains nothing: both together are all that can
    # be said
    known = speeds_of(one(0), (0, 0), (1, 1), (0, 1))
    assert following(2, known, LONG, refused) == Rung(((1, 1), (0, 1)), 6, confirms=True)


def test_time_is_kept_for_the_verification_and_without_it_nothing_is_claimed() -> None:
    known = speeds_of(one(1), (0, 0, 0), (1, 1, 1))
    step = following(3, known, Limit(10.0, 240.0))
    assert (
        isinstance(step, Rung)
        and (len(step.candidates) + 2) * step.repeats * 10 + 4 * 3 * 10 <= 240
    )
    assert following(3, known, Limit(10.0, 150.0)) == NO_TIME
    known = speeds_of(one(1), *known, (0, 1, 0))
    assert following(3, known, Limit(10.0, 130.0)) == Rung(((0, 1, 0),), 4, confirms=True), (
        "the best guess so far"
    )
    assert following(3, known, Limit(10.0, 100.0)) == NO_TIME


def test_no_further_round_takes_the_time_for_the_runs_that_prove_each_member_of_what_is_in_hand() -> (
    None
):
    def truth(candidate: Candidate) -> float:
        return -0.12 * candidate[0] - 0.1 * candidate[2]

    pair, first, second = (1, 0, 1, 0), (1, 0, 0, 0), (0, 0, 1, 0)
    known = speeds_of(truth, (0, 0, 0, 0), (1, 1, 1, 1), first, (0, 1, 0, 0), second, (0, 0, 0, 1))
    assert following(4, known, Limit(1.0, 26.0)) == Rung((pair,), 2), (
        "3 runs twice, and 5 sets four times"
    )
    whole = Rung((pair, second, first), 4, confirms=True, is_early=True)
    assert following(4, known, Limit(1.0, 25.0)) == replace(whole, repeats=5)
    assert following(4, known, Limit(1.0, 20.0)) == whole
    assert following(4, known, Limit(1.0, 19.0)) == replace(whole, candidates=(pair, second)), (
        "one of them can be told"
    )
    assert following(4, known, Limit(1.0, 12.0)) == replace(whole, candidates=(pair,))
    assert following(4, known, Limit(1.0, 11.0)) == NO_TIME
    refused = {pair}
    early = following(4, known, Limit(1.0, 12.0), refused)
    assert early == replace(whole, candidates=(first,)), (
        "what cannot be run is not verified again and again"
    )


def test_what_b_does_without_is_left_out_though_no_time_is_left_to_run_the_rest_in_the_search() -> (
    None
):
    left_out = ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0))
    singles = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    known = speeds_of(both(0, 2), (0, 0, 0, 0), (1, 1, 1, 1), *singles, *left_out)
    step = following(4, known, Limit(1.0, 24.0))
    assert step == Rung(((1, 0, 1, 0), (0, 0, 1, 0), (1, 0, 0, 0)), 4, confirms=True, is_early=True)

    def either(candidate: Candidate) -> float:
        return -0.2 * max(candidate[0] * candidate[1], candidate[2] * candidate[3])

    known = speeds_of(either, (0, 0, 0, 0), (1, 1, 1, 1), *singles, *left_out)
    step = following(4, known, Limit(1.0, 12.0))
    assert isinstance(step, Rung) and step.candidates[0] in left_out, (
        "B does without each of them, and not without all"
    )


# --- shares


def test_a_share_is_covered_by_its_interval_as_often_as_its_level_says() -> None:
    generator, covered = random.Random(3), 0
    for _ in range(2000):
        speeds: dict[Candidate, dict[int, float]] = {(0, 0): {}, (1, 0): {}, (1, 1): {}}
        for block in range(6):
            drift = generator.gauss(0, 0.05)
            for candidate, effect in (((0, 0), 0.0), ((1, 0), -0.06), ((1, 1), -0.1)):
                speeds[candidate][block] = math.exp(effect + drift + generator.gauss(0, 0.01))
        found = share(speeds, (1, 0))
        assert found is not None
        covered += found.low <= 0.6 <= found.high
    assert 0.935 <= covered / 2000 <= 0.965


def test_a_share_of_a_change_that_may_be_none_has_no_ends_and_one_of_b_is_one() -> None:
    speeds = speeds_of(lambda _: 0.0, (0, 0), (1, 0), (1, 1), scatter=0.05)
    found = share(speeds, (1, 0))
    assert found and math.isinf(found.low) and math.isinf(found.high)
    whole = share(speeds_of(one(0), (0, 0), (1, 1)), (1, 1))
    assert whole and (whole.value, whole.low, whole.high) == pytest.approx((1, 1, 1))
    assert (
        share({(0,): {1: 1.0}, (1,): {2: 1.0}}, (1,)) is None
        and change({(0,): {1: 1.0}}, (1,), (0,)) is None
    )


# --- simulated campaigns


def campaign(
    truth: Truth,
    count: int,
    generator: random.Random,
    *,
    scatter: float,
    recorded: float,
    budget: float = 1e9,
) -> Bisected:
    """Run a bisect on a simulated cluster: runs scatter, one in twenty is slowed by others, and all
    drift. ``budget``: runs.
    """
    a, b = (0,) * count, (1,) * count
    search_speeds: dict[Candidate, dict[int, float]] = {}
    verified: dict[Candidate, dict[int, float]] = {}
    done = 0

    def run(
        candidates: tuple[Candidate, ...], repeats: int, into: dict[Candidate, dict[int, float]]
    ) -> None:
        nonlocal done
        cells = list(dict.fromkeys([a, b, *candidates]))
        first = done
        for cell, repeat in order_cells(len(cells), repeats, "balanced", 0):
            noise = generator.gauss(0, scatter) - (
                abs(generator.gauss(0, 5 * scatter)) if generator.random() < 0.05 else 0
            )
            value = 100 * math.exp(truth(cells[cell]) + noise - 0.0002 * done)
            into.setdefault(cells[cell], {})[1000 * first + repeat] = value
            done += 1

    sides = [
        SideRecord(name, "2n1g", 100 * math.exp(value), 5)
        for name, value in (("a", 0.0), ("b", recorded))
    ]
    run((), BLOCKS, search_speeds)
    rounds: tuple[Round, ...] = ()

    def limit() -> Limit:
        return Limit(1.0, budget - done)

    while isinstance(
        step := following(count, search_speeds, limit(), recorded=measure_change(*sides)), Rung
    ):
        run(step.candidates, step.repeats, verified if step.confirms else search_speeds)
        if step.confirms:
            rounds = (Round(replace(step, verifies=step.candidates[0]), verified),)
            step = CONFIRMED
            break
    differences = tuple(Difference(f"options.d{place}", 0, 1) for place in range(count))
    record = BisectRecord(
        *sides,
        "speed",
        (),
        "samples/s",
        "higher",
        "slower",
        differences,
        ended=str(step),
    )
    return answer_of("bench", record, State((a, b), None, search_speeds, rounds))


WORLDS: dict[str, tuple[Truth, int, set[str]]] = {
    "one of five": (one(1, -0.1), 5, {"d1=1"}),
    "one of nine": (one(8, -0.1), 9, {"d8=1"}),
    "two that add": (lambda taken: -0.06 * taken[0] - 0.05 * taken[2], 4, {"d0=1", "d2=1"}),
    "two that need each other": (lambda taken: -0.1 * taken[1] * taken[3], 4, {"d1=1", "d3=1"}),
    "one of one": (one(0, -0.1), 1, {"d0=1"}),
}


@pytest.mark.parametrize("scatter", [0.005, 0.02])
@pytest.mark.parametrize("name", WORLDS)
def test_what_explains_a_tenth_is_named_and_nothing_else_is_proven(
    name: str, scatter: float
) -> None:
    truth, count, causes = WORLDS[name]
    generator = random.Random(11)
    found = [campaign(truth, count, generator, scatter=scatter, recorded=-0.1) for _ in range(100)]
    right = sum(set(one.causes) == causes and one.verdict == "explained" for one in found)
    false = sum(bool(set(one.causes) - causes) for one in found)
    assert right >= (97 if scatter < 0.01 else 75), right
    assert false <= 5, "as the level of the verification says"


@pytest.mark.parametrize(
    ("name", "budget"), [("two that add", 48), ("two that need each other", 72)]
)
def test_a_budget_that_ends_the_search_leaves_time_to_prove_what_was_found(
    name: str, budget: int
) -> None:
    truth, count, causes = WORLDS[name]
    generator = random.Random(7)
    found = [
        campaign(truth, count, generator, scatter=0.005, recorded=-0.1, budget=budget)
        for _ in range(60)
    ]
    assert sum(set(one.causes) == causes and one.verdict == "explained" for one in found) >= 45
    assert sum(bool(set(one.causes) - causes) for one in found) <= 3


def test_an_answer_that_no_time_was_left_to_prove_says_of_which_part() -> None:
    truth, count, _ = WORLDS["two that add"]
    found = campaign(truth, count, random.Random(3), scatter=0.001, recorded=-0.1, budget=26 + 12)
    assert (found.verdict, found.causes, found.is_early) == ("explained", (), True)
    assert found.doubtful == found.untested == ("d0=1", "d2=1")
    assert left_open(found)[:2] == [
        "that d0=1 and d2=1 take part in it is not certain: no time was left for runs without each of them",
        "no time was left to search further: a smaller set, or one that explains more, is possible",
    ]
    one = campaign(truth, count, random.Random(3), scatter=0.001, recorded=-0.1, budget=26 + 16)
    assert (one.causes, one.untested) == (("d0=1",), ("d2=1",))
    assert (
        left_open(one)[0]
        == "that d2=1 takes part in it is not certain: no time was left for runs without it"
    )
    enough = campaign(truth, count, random.Random(3), scatter=0.001, recorded=-0.1)
    assert (enough.causes, enough.untested, enough.is_early) == (("d0=1", "d2=1"), (), False)


def test_where_nothing_matters_a_bisect_says_that_the_change_is_gone() -> None:
    generator = random.Random(5)
    found = [campaign(lambda _: 0.0, 4, generator, scatter=0.02, recorded=-0.1) for _ in range(200)]
    assert (
        not any(one.causes for one in found) and sum(one.verdict == "gone" for one in found) >= 190
    )
    # the record says nothing, or what differs is chance: then the level alone protects
    found = [campaign(lambda _: 0.0, 4, generator, scatter=0.02, recorded=0.0) for _ in range(200)]
    assert sum(bool(one.causes) for one in found) <= 10

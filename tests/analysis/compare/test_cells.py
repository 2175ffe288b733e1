"""Two benches beside each other: which cells belong together, what may be said of them, and what is
named as the cause.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.compare.causes import distinctions, file_differences, neutral
from orchestrator.analysis.compare.cells import (
    CellPair,
    cells_with,
    compare_cells,
    doubt,
    find_unmatched_cells,
    match_cells,
    of_metric,
)
from orchestrator.errors import ConfigError
from orchestrator.logs.metrics import Metric
from orchestrator.plan.framework import payload_digest
from orchestrator.plan.scaling import Step
from orchestrator.record.manifest import Manifest
from orchestrator.results.cells import Cell, cells_of
from orchestrator.results.numbers.intervals import (
    centre_of,
    chance,
    change_between,
    change_interval,
    holm,
    least_chance,
)
from tests.support.cells import cell as runs_of
from tests.support.cells import failed
from tests.support.examples import examples
from tests.support.summaries import measured as runs_of_metrics

SPEEDS = st.lists(st.floats(1.0, 1e5).map(lambda value: round(value, 3)), min_size=2, max_size=6)
STEADY = [100.0, 100.4, 99.7, 100.1, 99.9]
TENTH_LESS = [speed * 0.9 for speed in STEADY]


def cells(*shapes_and_speeds: tuple[str, Sequence[float]], prefix: str, **spec: Any) -> list[Cell]:
    return cells_of(
        [
            run
            for shape, speeds in shapes_and_speeds
            for run in runs_of(shape, list(speeds), prefix, **spec)
        ]
    )


def pair_of(before: Sequence[float], after: Sequence[float], **spec: Any) -> CellPair:
    pairs = match_cells(
        cells(("1n1g", before), prefix="a"), cells(("1n1g", after), prefix="b", **spec)
    )
    (found,) = compare_cells(pairs)
    return found


# -- intervals and chance


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(SPEEDS, SPEEDS)
def test_the_interval_of_a_change_is_welchs_on_logarithms(
    before: list[float], after: list[float]
) -> None:
    found = change_interval(before, after)
    logs = [[math.log(speed) for speed in speeds] for speeds in (after, before)]
    test = scipy.stats.ttest_ind(*logs, equal_var=False)
    expected = test.confidence_interval(0.95)
    assert found
    if not math.isnan(expected.low) and min(map(len, map(set, logs))) > 1:
        assert math.log(found.low) == pytest.approx(max(expected.low, -700), rel=1e-6, abs=1e-9)
        assert math.log(found.high) == pytest.approx(min(expected.high, 700), rel=1e-6, abs=1e-9)
        sides = [centre_of([math.log(speed) for speed in speeds]) for speeds in (before, after)]
        assert sides[0] and sides[1]
        assert change_between(sides[0], sides[1]).chance == pytest.approx(test.pvalue, rel=1e-6)


@given(SPEEDS, SPEEDS)
def test_chance_is_the_share_of_labelings_that_are_as_far_apart(
    before: list[float], after: list[float]
) -> None:
    logs = [math.log(speed) for speed in (*before, *after)]

    def apart(places: tuple[int, ...]) -> float:
        rest = [logs[place] for place in range(len(logs)) if place not in places]
        return math.fsum(logs[place] for place in places) / len(places) - math.fsum(rest) / len(
            rest
        )

    dealt = [apart(places) for places in combinations(range(len(logs)), len(before))]
    seen = dealt[0]
    tails = (sum(one <= seen + 1e-9 for one in dealt), sum(one >= seen - 1e-9 for one in dealt))
    found = chance(before, after)
    assert found == pytest.approx(min(1.0, 2 * min(tails) / len(dealt)), abs=1e-12)
    assert found >= least_chance(len(before), len(after)) - 1e-12


def test_of_many_repeats_some_labelings_are_drawn_the_same_ones_each_time_and_chance_is_never_nothing() -> (
    None
):
    before, after = ([typical + 0.1 * n for n in range(10)] for typical in (100.0, 90.0))
    assert 0 < chance(before, after) < 0.001
    assert chance(before, after) == chance(before, after) == chance(after, before)
    assert chance(before, before) == 1


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6))
def test_holm_is_bonferroni_on_every_group_of_questions_that_holds_this_one(
    chances: list[float],
) -> None:
    places = range(len(chances))
    groups = [group for size in range(1, len(chances) + 1) for group in combinations(places, size)]
    closed = [
        max(min(1.0, len(g) * min(chances[i] for i in g)) for g in groups if place in g)
        for place in places
    ]
    assert holm(chances) == pytest.approx(closed)


# -- verdicts


@given(SPEEDS, SPEEDS)
def test_swapping_the_benches_inverts_the_ratio_and_keeps_the_chance(
    before: list[float], after: list[float]
) -> None:
    there, back = pair_of(before, after), pair_of(after, before)
    assert there.ratio and back.ratio and there.interval and back.interval
    assert there.ratio * back.ratio == pytest.approx(1)
    assert math.log(there.interval.low) == pytest.approx(-math.log(back.interval.high), abs=1e-9)
    assert there.permutation_p == back.permutation_p and there.p == pytest.approx(back.p)
    mirror = {"faster": "slower", "slower": "faster"}
    assert mirror.get(there.verdict, there.verdict) == back.verdict


@given(SPEEDS, SPEEDS, st.sampled_from([0.001, 0.5, 8.0, 1000.0]))
def test_a_unit_of_speed_changes_nothing(
    before: list[float], after: list[float], scale: float
) -> None:
    one, other = (
        pair_of(before, after),
        pair_of([scale * each for each in before], [scale * each for each in after]),
    )
    assert one.ratio == pytest.approx(other.ratio) and one.permutation_p == other.permutation_p
    assert one.interval and other.interval
    assert math.log(one.interval.low) == pytest.approx(math.log(other.interval.low), abs=1e-9)


@given(SPEEDS)
def test_equal_speeds_are_never_a_difference(speeds: list[float]) -> None:
    found = pair_of(speeds, speeds)
    assert (
        found.ratio == 1
        and found.p in (None, 1.0)
        and found.verdict in ("no difference", "too few repeats")
    )


def test_a_tenth_is_a_difference_from_four_repeats_on_and_three_cannot_tell() -> None:
    verdicts = {n: pair_of(STEADY[:n], TENTH_LESS[:n]).verdict for n in (1, 2, 3, 4, 5)}
    assert verdicts == {
        1: "too few repeats",
        2: "too few repeats",
        3: "too few repeats",
        4: "slower",
        5: "slower",
    }
    few = pair_of(STEADY[:3], TENTH_LESS[:3])
    assert (
        (few.p, few.ratio) == (None, pytest.approx(0.9)) and few.interval and few.interval.high < 1
    )
    assert doubt(few) == "too few repeats, 3 and 3; a verdict needs 4 or more of each"
    assert pair_of([100.0] * 60, [50.0]).verdict == "too few repeats"


def test_benches_alike_are_seldom_called_different_and_a_tenth_nearly_always_even_where_runs_are_slow_at_times() -> (
    None
):
    generator, campaigns = random.Random(5), examples(200)

    def bench(typical: float) -> list[float]:
        return [
            typical * math.exp(generator.gauss(0, 0.01)) * generator.choice([1.0] * 19 + [0.92])
            for _ in range(5)
        ]

    called = {
        typical: sum(
            pair_of(bench(100.0), bench(typical)).verdict in ("slower", "faster")
            for _ in range(campaigns)
        )
        for typical in (100.0, 90.0)
    }
    assert called[100.0] <= 0.02 * campaigns and called[90.0] >= 0.95 * campaigns


def test_what_may_be_less_than_the_margin_is_slight() -> None:
    close = [speed * 0.992 for speed in STEADY]
    assert pair_of(STEADY, close).verdict == "slight"
    pairs = match_cells(
        cells(("1n1g", STEADY), prefix="a"), cells(("1n1g", TENTH_LESS), prefix="b")
    )
    verdicts = [compare_cells(pairs, margin)[0].verdict for margin in (0.0, 0.03, 0.097, 0.12)]
    assert verdicts == ["slower", "slower", "slight", "slight"]


def test_what_one_cell_alone_would_call_a_difference_may_be_chance_among_eight() -> None:
    lower = [97.0, 99.6, 98.4, 99.0, 96.9]
    alone, shapes = pair_of(STEADY, lower), [f"{nodes}n1g" for nodes in range(1, 9)]
    assert alone.p and 0.05 / 8 < alone.p < 0.05 and alone.verdict == "slight"
    before = cells(*((shape, STEADY) for shape in shapes), prefix="a")
    others = cells(*((shape, lower if shape == "1n1g" else STEADY) for shape in shapes), prefix="b")
    assert {pair.verdict for pair in compare_cells(match_cells(before, others))} == {
        "no difference"
    }
    slow = cells(*((shape, TENTH_LESS) for shape in shapes), prefix="c")
    assert {pair.verdict for pair in compare_cells(match_cells(before, slow))} == {"slower"}


def test_there_is_no_verdict_on_the_same_runs_on_simulated_ones_against_real_ones_and_on_nothing() -> (
    None
):
    same = match_cells(cells(("1n1g", STEADY), prefix="a"), cells(("1n1g", STEADY), prefix="a"))
    assert [pair.verdict for pair in compare_cells(same)] == ["same runs"]
    real, bad = (
        runs_of("1n1g", STEADY, "a"),
        [replace(failed("1n1g", n), run_id=f"b{n}") for n in range(5)],
    )
    simulated = [replace(run, simulated=True, run_id=f"b{run.run_id}") for run in real]
    assert [
        pair.verdict for pair in compare_cells(match_cells(cells_of(real), cells_of(simulated)))
    ] == ["simulated against real"]
    (other,) = compare_cells(
        match_cells(cells_of(real), cells_of(runs_of("1n1g", TENTH_LESS, "b", model="vgg16")))
    )
    assert other.verdict == "other model" and other.ratio == pytest.approx(0.9, rel=0.01)
    assert doubt(other) == "its spec differs in model"
    (nothing,) = compare_cells(match_cells(cells_of(real), cells_of(bad)))
    assert (nothing.verdict, nothing.ratio, nothing.interval, nothing.after.failed) == (
        "no number",
        None,
        None,
        5,
    )


METRICS = (Metric("latency", "us", "lower"), Metric("busbw", "GB/s", keys=("size_bytes", "op")))


def others(
    prefix: str,
    latencies: Sequence[float],
    factor: float = 1.0,
    keys: Sequence[tuple[int, str]] = (),
) -> list[Cell]:
    """The cells of a program with a metric without keys, and with one that has a value at each key."""
    repeats = [
        {"latency": latency, "busbw": {key: factor * latency for key in keys}}
        for latency in latencies
    ]
    made = runs_of_metrics("1n2g", METRICS, *repeats)
    return cells_of([replace(run, run_id=f"{prefix}{run.run_id}") for run in made])


def test_of_a_metric_of_which_less_is_better_more_is_slower() -> None:
    more, less = [1.1 * value for value in STEADY], TENTH_LESS
    (slower,), (faster,) = (
        compare_cells(match_cells(others("a", STEADY), others("b", values)))
        for values in (more, less)
    )
    assert (slower.metric, slower.unit, slower.better, slower.verdict) == (
        "latency",
        "us",
        "lower",
        "slower",
    )
    assert slower.ratio == pytest.approx(1.1) and slower.interval and slower.interval.low > 1
    assert (
        slower.gain
        and slower.gain.high == pytest.approx(1 / slower.interval.low)
        and slower.gain.high < 1
    )
    assert faster.verdict == "faster" and faster.ratio == pytest.approx(0.9)
    (allowed,) = compare_cells(match_cells(others("a", STEADY), others("b", more)), 0.12)
    assert allowed.verdict == "slight", "a tenth more may be less than an eighth less"


@pytest.mark.parametrize(
    ("before", "after", "is_other"),
    [
        ({"unit": "ms"}, {"unit": "us"}, True),
        ({"better": "lower"}, {"better": "higher"}, True),
        ({"across": "sum", "scope": "rank"}, {"across": "max", "scope": "rank"}, True),
        ({"over": "mean"}, {"over": "last"}, True),
        ({"over": "only"}, {"over": "last"}, False),
        ({"help": "how long"}, {"primary": True}, False),
        ({"group": "t", "factor": 1000.0}, {"group": "t_ms"}, False),
    ],
)
def test_metrics_of_one_name_that_are_other_quantities_have_no_change_and_no_verdict(
    before: dict[str, Any], after: dict[str, Any], is_other: bool
) -> None:
    declared = [replace(Metric("latency", "us", "lower"), **changes) for changes in (before, after)]
    sides = [
        runs_of_metrics("1n2g", [metric], *({"latency": value} for value in STEADY))
        for metric in declared
    ]
    later = [replace(run, run_id=f"b{run.run_id}") for run in sides[1]]
    (pair,) = compare_cells(match_cells(cells_of(sides[0]), cells_of(later)))
    assert (
        (pair.verdict == "other metric")
        == is_other
        == (pair.ratio is None)
        == (pair.interval is None)
    )
    assert ("orch summarize --reread" in doubt(pair)) == is_other


def test_values_that_are_not_above_zero_have_no_ratio_and_no_verdict() -> None:
    for values in ([0.0] * 5, [-1.0, 1.0, 2.0, 3.0, 4.0]):
        (pair,) = compare_cells(match_cells(others("a", values), others("b", STEADY)))
        assert (pair.verdict, pair.ratio, pair.interval, pair.p) == (
            "values not above 0",
            None,
            None,
            None,
        )


def test_equal_keys_are_paired_and_named_by_what_differs_among_them() -> None:
    keys = [(1024, "read"), (4096, "read")]
    before, after = (
        others("a", STEADY, keys=keys),
        others("b", STEADY, 0.9, [*keys, (8192, "read")]),
    )
    busbw = [of_metric(cells, "busbw") for cells in (before, after)]
    pairs = match_cells(*busbw)
    assert [(pair.case, pair.verdict) for pair in compare_cells(pairs)] == [
        ("1n2g size_bytes=1024", "slower"), ("1n2g size_bytes=4096", "slower"),
    ]  # fmt: skip
    assert (
        find_unmatched_cells(busbw[0], pairs) == ()
        and len(find_unmatched_cells(busbw[1], pairs)) == 1
    )


def test_without_a_name_the_primary_metric_is_compared_and_a_wrong_name_is_refused() -> None:
    found = others("a", STEADY, keys=[(1024, "read")])
    assert [cell.metric.name for cell in of_metric(found, "")] == ["latency"]
    assert [cell.metric.name for cell in of_metric(found, "all")] == ["latency", "busbw"]
    with pytest.raises(
        ConfigError,
        match="expected a metric of its configurations, got 'latncy'.*they have latency, busbw",
    ):
        of_metric(found, "latncy")


def test_a_gate_judges_like_work_that_is_all_there_only() -> None:
    assert doubt(pair_of(STEADY, TENTH_LESS)) == ""
    assert doubt(pair_of(STEADY, TENTH_LESS, dtype="fp16")) == "its spec differs in dtype"
    lame = cells_of([*runs_of("1n1g", TENTH_LESS, "b"), replace(failed("1n1g", 6), run_id="b6")])
    (found,) = compare_cells(match_cells(cells(("1n1g", STEADY), prefix="a"), lame))
    assert (found.verdict, doubt(found)) == ("slower", "1 of its runs failed")


# -- which cells belong together


def test_equal_specs_are_paired_and_what_is_in_one_bench_only_is_named() -> None:
    before = cells(("1n1g", STEADY), ("2n1g", STEADY), prefix="a")
    after = cells(("2n1g", STEADY), ("4n1g", STEADY), prefix="b")
    pairs = match_cells(before, after)
    assert [(one.spec.shape, other.spec.shape) for one, other in pairs] == [("2n1g", "2n1g")]
    assert find_unmatched_cells(before, pairs) == ("1n1g",) and find_unmatched_cells(
        after, pairs
    ) == ("4n1g",)


def test_cells_are_paired_across_what_was_changed_for_all_of_them() -> None:
    shapes = [("1n1g", STEADY), ("2n1g", STEADY)]
    plain = {"image_size": 224, "channels_last": True}
    before = cells(*shapes, prefix="a", options=plain)
    after = cells(*shapes, prefix="b", options=plain | {"channels_last": False}, steps=60)
    found = compare_cells(match_cells(before, after))
    assert [(pair.case, pair.differing) for pair in found] == [
        (shape, ("steps", "options.channels_last")) for shape in ("1n1g", "2n1g")
    ]
    # Where it is not clear which of several is meant, none is.
    both = cells(*shapes, prefix="c", dtype="bf16") + cells(*shapes, prefix="d", dtype="fp16")
    assert match_cells(before, both) == []


def test_cells_of_a_sweep_are_paired_by_options_and_variables_and_named_by_them() -> None:
    def swept(prefix: str) -> list[Cell]:
        return [
            cell
            for algorithm in ({}, {"NCCL_ALGO": "Tree"})
            for size in (64, 224)
            for cell in cells(
                ("1n1g", STEADY),
                prefix=f"{prefix}{algorithm}{size}",
                env=algorithm,
                options={"image_size": size},
            )
        ]

    pairs = compare_cells(match_cells(swept("a"), list(reversed(swept("b")))))
    assert [(pair.case, pair.differing) for pair in pairs] == [
        (f"1n1g image_size={size} NCCL_ALGO={algorithm}", ())
        for algorithm in ("(not set)", "Tree")
        for size in (64, 224)
    ]
    trees = cells_with(swept("a"), "NCCL_ALGO", "Tree")
    assert [cell.spec.options["image_size"] for cell in trees] == [64, 224]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["fp32", "fp16"])), unique=True, max_size=6
    ),
    st.data(),
)
def test_each_cell_is_in_one_pair_at_most_and_in_one_where_both_have_it(
    wanted: list[tuple[int, str]], data: Any
) -> None:
    others = data.draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.sampled_from(["fp32", "fp16"])), unique=True, max_size=6
        )
    )
    sides = [
        [
            cell
            for nodes, dtype in kinds
            for cell in cells((f"{nodes}n1g", STEADY), prefix=f"{prefix}{dtype}", dtype=dtype)
        ]
        for prefix, kinds in (("a", wanted), ("b", others))
    ]
    pairs = match_cells(*sides)
    for place in (0, 1):
        keys = [pair[place].key() for pair in pairs]
        assert len(keys) == len(set(keys))
    common = {cell.key() for cell in sides[0]} & {cell.key() for cell in sides[1]}
    assert {one.key() for one, other in pairs if one.key() == other.key()} == common


# -- what differs


def test_what_a_step_computes_is_named_by_its_options() -> None:
    def swept(prefix: str) -> list[Cell]:
        return [
            cell
            for shape, count in (("1n1g", 4), ("2n1g", 2))
            for cell in cells(
                (shape, STEADY),
                prefix=prefix,
                options={"accumulation": count},
                step=Step(32, count),
            )
        ]

    assert [pair.case for pair in compare_cells(match_cells(swept("a"), swept("b")))] == [
        "1n1g accumulation=4",
        "2n1g accumulation=2",
    ]


def measured(
    prefix: str, host_facts: dict[str, Any], observed: dict[str, Any], **spec: Any
) -> list[Cell]:
    result = {"facts": {f"node{n}": host_facts for n in (1, 2)}, "observed": observed}
    return cells_of(runs_of("2n1g", STEADY, prefix, result, **spec))


def test_what_differs_is_named_by_likely_weight() -> None:
    gpu = {"name": "NVIDIA H200", "driver": "535.104", "index": "0"}
    old = {
        "kernel": "6.1",
        "hostname": "x",
        "gpus": [gpu],
        "memory_bytes": 810_000_000_000,
        "framework": {"torch": "2.9"},
    }
    new = old | {
        "kernel": "6.8",
        "hostname": "y",
        "gpus": [gpu | {"driver": "550.54"}],
        "memory_bytes": 810_000_100_000,
    }
    before = measured("a", old, {"nccl": "2.26", "devices": {"NVIDIA H200": 2}})
    after = measured(
        "b", new, {"nccl": "2.28", "devices": {"NVIDIA H200": 2}}, batch_size=64, steps=240
    )
    about = {"orch": "0.1.0", "payload.train_pytorch.py": "aa", "command": "orch bench"}
    now = about | {"payload.train_pytorch.py": "ab", "command": "orch bench -b 64"}
    found = distinctions(match_cells(before, after), about, now)
    assert [(each.name, each.before, each.after) for each in found] == [
        ("batch_size", "128", "64"),
        ("payload.train_pytorch.py", "aa", "ab"),
        ("program.nccl", "2.26", "2.28"),
        ("node.gpus.driver", "535.104", "550.54"),
        ("node.kernel", "6.1", "6.8"),
        ("steps", "120", "240"),
        ("command", "orch bench", "orch bench -b 64"),
    ]


def test_one_odd_node_of_the_second_bench_is_a_difference_and_a_copy_has_none() -> None:
    alike = {"node1": {"kernel": "6.1"}, "node2": {"kernel": "6.1"}}
    before, copy = (cells_of(runs_of("2n1g", STEADY, name, {"facts": alike})) for name in "ab")
    odd = cells_of(runs_of("2n1g", STEADY, "c", {"facts": alike | {"node2": {"kernel": "6.8"}}}))
    moved = cells_of(
        runs_of(
            "2n1g", STEADY, "d", {"facts": {"node3": {"kernel": "6.1"}, "node4": {"kernel": "6.1"}}}
        )
    )
    assert distinctions(match_cells(before, copy), {"orch": "1"}, {"orch": "1"}) == ()
    assert [(each.name, each.after) for each in distinctions(match_cells(before, odd), {}, {})] == [
        ("node.kernel", "6.1, 6.8")
    ]
    named = {"interface": {"name": "eth0", "mtu": 1500}, "runner_python": "3.11.7", "user": "root"}
    renamed = {"interface": {"name": "ens3", "mtu": 9000}, "runner_python": "3.9.2", "user": "ops"}
    one, other = (
        cells_of(runs_of("1n1g", STEADY, name, {"facts": {"node1": facts}}))
        for name, facts in (("e", named), ("f", renamed))
    )
    mtu = distinctions(match_cells(one, other), {}, {})
    assert [(each.name, each.after) for each in mtu] == [("node.interface.mtu", "9000")]
    (hosts,) = distinctions(match_cells(before, moved), {}, {})
    assert (hosts.name, hosts.before, hosts.after) == ("hosts", "node[1-2]", "node[3-4]")


def names_of(before: list[Cell], after: list[Cell]) -> list[tuple[str, str, str]]:
    found = distinctions(match_cells(before, after), {}, {})
    return [(each.name, each.before, each.after) for each in found]


def test_what_a_side_did_not_record_or_measure_is_no_difference() -> None:
    facts = {"kernel": "6.1", "cpu": "a cpu"}
    older = measured("a", {"kernel": "6.1"}, {"devices": {"NVIDIA H200": 2}})
    later = measured(
        "b", facts, {"devices": {"NVIDIA H200": 2}, "python": "3.11.7", "networks": []}
    )
    assert names_of(older, later) == []
    bound = measured("c", facts, {"networks": ["NET/IB"], "cpu_binding": "numa"})
    assert names_of(later, bound) == [
        ("program.cpu_binding", "nothing", "numa"),
        ("program.networks", "nothing", "['NET/IB']"),
    ]
    nowhere = cells_of([replace(failed("2n1g", n), run_id=f"d{n}") for n in range(5)])
    assert names_of(later, nowhere) == names_of(nowhere, later) == []


def manifest(run: str, address: str, port: int, digest: str) -> dict[str, Any]:
    slots = [
        {"host": f"gpu{n}", "address": f"{address}{n}", "node_rank": n, "first_rank": n, "nproc": 1}
        for n in (0, 1)
    ]
    spec = {
        "framework": "simulated",
        "model": "resnet50",
        "nodes": 2,
        "gpus": 1,
        "device": "cpu",
        "batch_size": 64,
    }
    spec |= {
        "dtype": "fp32",
        "loader": "none",
        "steps": 12,
        "warmup_steps": 2,
        "timeout_s": 60,
        "options": {},
    }
    framework = {"log": {"files": ["rank-0.out"], "patterns": []}}
    return {
        "run_id": run,
        "bench_id": "b",
        "spec": spec,
        "framework": framework,
        "payload": {"train.py": digest},
        "placement": {"slots": slots, "master_port": port, "world_size": 2},
    }


def neutral_of(text: str, manifest: dict[str, Any]) -> str:
    return neutral(text, Manifest.of(manifest, "manifest.json", manifest["run_id"]))


def test_files_are_alike_where_only_run_port_address_and_payload_are_others() -> None:
    first, second = (
        manifest("b.001", "10.0.0.", 20000, "ab" * 32),
        manifest("b.002", "10.9.0.1", 29999, "cd" * 32),
    )

    def text(of: dict[str, Any], batch: int) -> str:
        slots, port = of["placement"]["slots"], of["placement"]["master_port"]
        peers = json.dumps([f"{slot['address']}:{port + slot['node_rank']}" for slot in slots])
        head = f"# {of['run_id']}\nexport PEERS={peers} HOST={slots[1]['host']}\n"
        return f"{head}run ../{payload_digest(of['payload'])}/train.py -b {batch}\n"

    one, other = (neutral_of(text(of, 64), of) for of in (first, second))
    assert one == other and "<port +1>" in one and "20000" not in one
    changed = neutral_of(text(second, 32), second)
    places = [("1n1g", 0, "launch.sh"), ("2n1g", 0, "launch.sh"), ("2n1g", 1, "launch.sh")]
    (found,) = file_differences(dict.fromkeys(places, one), dict.fromkeys(places, changed))
    assert (found.path, found.cases, found.node_ranks) == ("launch.sh", ("1n1g", "2n1g"), (0, 1))
    assert found.lines == ("-run ../<payload>/train.py -b 64", "+run ../<payload>/train.py -b 32")
    assert file_differences(dict.fromkeys(places, one), dict.fromkeys(places, other)) == ()
    assert (
        neutral_of("--name orch-b.001-1 --label orch.run=b.001", first)
        == "--name <container 1> --label orch.run=<run>"
    )
    assert (
        neutral_of("nothing of it: 10.0.0.11 gpu10 my-b.001", first)
        == "nothing of it: 10.0.0.11 gpu10 my-b.001"
    )

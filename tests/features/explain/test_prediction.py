"""Explanations: runs measured by others are foretold, parts add up, and what was not measured is
not told.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.features.explain.communication import Collective
from orchestrator.features.explain.curve import Curve
from orchestrator.features.explain.prediction import (
    LANGUAGE_MODEL_ERROR,
    MODEL_ERROR,
    PARTS,
    Explanation,
    explanation,
)
from orchestrator.results.entries import Row
from orchestrator.results.parts.overlap import Sharing
from orchestrator.results.parts.step_parts import StepParts, parse_step_parts, typical
from orchestrator.results.parts.transfers import ALL_REDUCE, Link
from orchestrator.results.summary import summarize
from tests.support.summaries import runs

MIB = 1 << 20
RESNET50 = StepParts(buckets_bytes=(8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160))
"""What DistributedDataParallel reduces of ResNet-50 at once: found with PyTorch, 4 bytes for each
of 25,557,032 parameters.
"""
HALVED = StepParts(buckets_bytes=tuple(size // 2 for size in RESNET50.buckets_bytes))


def rows(
    shape: str, speed: float, one: float, batch_size: int = 256, repeats: int = 1
) -> tuple[Row, Row]:
    """The row of a shape, and that of its baseline."""
    changes: dict[str, Any] = {"spec": {"batch_size": batch_size}}
    found = summarize(
        [*runs("1n1g", [one] * repeats, **changes), *runs(shape, [speed] * repeats, **changes)]
    ).rows
    return found[-1], found[0]


def ring(ranks: int, gigabytes_per_s: dict[int, float]) -> Curve:
    """All-reduces by bus bandwidth, which is bytes over time times 2 (n - 1) / n, by size in MiB."""
    return Curve.of(
        {
            size * MIB: size * MIB * 2 * (ranks - 1) / ranks / (speed * 1e9)
            for size, speed in gigabytes_per_s.items()
        }
    )


def all_reduces(curve: Curve, uncertain: float = 0.0) -> dict[Link, Collective]:
    return {ALL_REDUCE: Collective(curve, "a bench", uncertain)}


def explained(
    shape: str, speed: float, one: float, parts: StepParts, curve: Curve | None, **more: Any
) -> Explanation:
    batch_size, there = more.pop("batch_size", 256), more.pop("there", StepParts())
    measured = all_reduces(curve) if curve else {}
    found = explanation(*rows(shape, speed, one, batch_size), [parts], [there], measured, **more)
    assert found
    return found


NVLINK = ring(8, {25: 269, 100: 332, 512: 353})
SOCKETS, TUNED = ring(8, {25: 3.4, 100: 3.3, 512: 3.6}), ring(8, {25: 10.5, 100: 10.1, 512: 9.6})
# ResNet-50 on H200s, one run each, by a program of others: samples/s of the shape and of one GPU.
MEASURED = {
    "fp16": ("1n8g", 47_673, 6_075, RESNET50, NVLINK, {}),
    "fp16 compiled": ("1n8g", 54_098, 7_082, RESNET50, NVLINK, {}),
    "tf32": ("1n8g", 23_413, 2_985, RESNET50, NVLINK, {"batch_size": 128}),
    "sockets": ("4n2g", 28_191, 6_075, RESNET50, SOCKETS, {"sockets": True}),
    "sockets, 4 threads of 4": ("4n2g", 34_743, 6_075, RESNET50, TUNED, {"sockets": True}),
    "sockets, 4 threads of 4, half the bytes": ("4n2g", 35_080, 6_075, HALVED, TUNED, {"sockets": True}),
}  # fmt: skip
FITTED = "sockets, 4 threads of 4"
"""The one run from which ``SLOWED_BY_SOCKETS`` was taken."""


@pytest.mark.parametrize("name", MEASURED)
def test_runs_that_others_measured_are_foretold(name: str) -> None:
    shape, speed, one, parts, curve, more = MEASURED[name]
    found = explained(shape, speed, one, parts, curve, **more)
    assert found.off is not None and abs(found.off) < (0.001 if name == FITTED else 0.05)
    assert found.predicted == pytest.approx(speed * (1 + found.off))


def test_without_what_sockets_take_two_of_three_such_runs_are_not_foretold() -> None:
    # What the coefficient is for: no overlap of computing and reducing alone explains them.
    off = {}
    for name, (shape, speed, one, parts, curve, _) in MEASURED.items():
        off[name] = explained(shape, speed, one, parts, curve).off or 0.0
    assert [name for name, share in off.items() if abs(share) > 0.1] == [
        FITTED,
        "sockets, 4 threads of 4, half the bytes",
    ]


# -- parts

# One GPU: 256 in 42 ms. Two in 50 ms. Without communication 43 and 45 ms, and 41 alone; 1 ms and
# 0.2 ms of waits.
HERE = StepParts(
    (2 * MIB,),
    reduce_s=0.0016,
    solo_mean_s=0.044,
    solo_max_s=0.045,
    input_s=0.001,
    backward=0.5,
    slowed=1.0,
    sharing=Sharing(0, 0),
)
THERE = StepParts((), solo_mean_s=0.041, solo_max_s=0.041, input_s=0.0002)
TWO = Curve.of({MIB: 0.001, 2 * MIB: 0.0015})


def test_other_graphs_of_the_baseline_are_part_of_what_is_called_contention() -> None:
    apart = [replace(HERE, graphs="blocks"), replace(THERE, graphs="whole")]
    found = explained("1n2g", 512 / 0.050, 256 / 0.042, apart[0], TWO, there=apart[1])
    (behind,) = (part.behind for part in found.parts if part.name == "contention")
    assert behind.endswith(
        "41.00 ms in the baseline, compiled as whole, this shape as blocks: a part of the difference"
    )


def test_each_part_is_what_its_own_measurement_says_and_the_rest_is_unexplained() -> None:
    found = explained("1n2g", 512 / 0.050, 256 / 0.042, HERE, TWO, there=THERE)
    milliseconds = {part.name: round(1e3 * (part.seconds or 0.0), 6) for part in found.parts}
    # One bucket is ready when the backward pass ends, so all of its 1.5 ms show.
    # 50 - 42 = 8 ms: 1.5 + 0.8 + 1 + 3 are accounted for.
    assert milliseconds == {
        "communication": 1.5,
        "input": 0.8,
        "straggler": 1.0,
        "contention": 3.0,
        "unexplained": 1.7,
    }
    assert tuple(milliseconds) == PARTS
    # Foretold are 42 + 1 + 3 + 1.5 ms, and 43.5 by the baseline and the all-reduce alone.
    assert found.predicted == pytest.approx(512 / 0.0475) and found.from_baseline == pytest.approx(
        512 / 0.0435
    )
    behind = {part.name: part.behind for part in found.parts}
    assert (
        behind["straggler"]
        == "steps without communication: 45.00 ms on the slowest rank, 44.00 ms on average"
    )
    assert (
        behind["contention"]
        == "steps without communication: 44.00 ms with all ranks at once, 41.00 ms in the baseline"
    )
    assert (
        behind["input"]
        == "wait for data per step: 1.00 ms on the rank that waited longest, 0.20 ms in the baseline"
    )
    assert behind["communication"] == (
        "1 bucket of 2.1 MB ready at assumed times, all-reduced in 1.50 ms according to a bench (1.60 ms in these runs), "
        "during a backward pass of 50% of a step, during which computing loses 0% of its speed and reducing 0% (measured)"
    )


def test_what_was_not_measured_is_not_told_and_stays_in_the_rest() -> None:
    found = explained(
        "1n2g",
        512 / 0.050,
        256 / 0.042,
        StepParts((2 * MIB,)),
        None,
        missing=["orch bench allreduce"],
    )
    assert {part.name: part.seconds for part in found.parts[:-1]} == dict.fromkeys(PARTS[:-1])
    assert found.parts[-1].seconds == pytest.approx(0.008)
    assert (found.predicted, found.interval, found.from_baseline, found.off) == (
        None,
        None,
        None,
        None,
    )
    assert found.parts[
        0
    ].behind == "allreduce of this shape was not measured" and found.missing == (
        "orch bench allreduce",
    )
    assert (
        explained("1n2g", 10.0, 6.0, StepParts(), TWO).parts[0].behind
        == "the program did not report what ranks send each other in a step"
    )


def test_one_gpu_is_its_own_ideal() -> None:
    _, baseline = rows("1n2g", 11_000.0, 6000.0, repeats=3)
    found = explanation(baseline, baseline, [THERE], [THERE], {})
    assert (
        found
        and found.predicted == pytest.approx(6000.0)
        and [part.seconds for part in found.parts] == [0, 0, 0, 0, 0]
    )


def test_a_speed_above_the_ideal_leaves_a_negative_rest() -> None:
    found = explained("1n2g", 512 / 0.040, 256 / 0.042, HERE, TWO, there=THERE)
    assert found.parts[-1].seconds == pytest.approx(0.040 - 0.042 - 0.0063)


def test_measured_moments_stand_in_place_of_assumed_ones() -> None:
    # Two buckets of 1 ms; half of 42 ms is backward. Ready at once and half way, all of it is
    # hidden; both late, 2 ms show.
    early = replace(HERE, buckets_bytes=(MIB, MIB), ready=(0.0, 0.5))
    late = replace(early, ready=(1.0, 1.0))
    parts = [
        explained("1n2g", 10_000, 6_000, each, TWO, there=THERE).parts[0] for each in (early, late)
    ]
    assert [part.seconds for part in parts] == [pytest.approx(0.0, abs=1e-12), pytest.approx(0.002)]
    assert "ready at measured times" in parts[0].behind


def test_no_coefficient_is_assumed_where_something_of_the_shape_was_measured() -> None:
    # The shape's own steps without communication hold what sockets cost; what was measured beside
    # them is not doubled.
    plain = explained("4n2g", 30_000, 6_000, RESNET50, TUNED)
    assumed = explained("4n2g", 30_000, 6_000, RESNET50, TUNED, sockets=True)
    solo = replace(RESNET50, solo_mean_s=256 / 6000, solo_max_s=256 / 6000)
    alone = explained(
        "4n2g",
        30_000,
        6_000,
        solo,
        TUNED,
        sockets=True,
        there=replace(THERE, solo_mean_s=256 / 6000),
    )
    assert (
        assumed.predicted and plain.predicted and alone.predicted == pytest.approx(plain.predicted)
    )
    assert assumed.predicted < 0.8 * plain.predicted and "(assumed)" in assumed.parts[0].behind


numbers = st.none() | st.floats(1e-6, 10)
parts = st.builds(
    StepParts,
    buckets_bytes=st.lists(st.integers(1, 1 << 28), max_size=4).map(tuple),
    solo_mean_s=numbers,
    solo_max_s=numbers,
    input_s=numbers,
    backward=st.none() | st.floats(0, 1),
    slowed=st.none() | st.floats(1, 4),
    sharing=st.none() | st.builds(Sharing, st.floats(0, 1), st.floats(0, 0.9)),
)


@given(
    parts,
    parts,
    st.floats(1, 1e6),
    st.floats(1, 1e6),
    st.sampled_from([TWO, TUNED, None]),
    st.booleans(),
)
def test_parts_add_up_to_the_gap(
    here: StepParts, there: StepParts, speed: float, one: float, curve: Curve | None, sockets: bool
) -> None:
    found = explained("1n2g", speed, one, here, curve, there=there, sockets=sockets)
    total = math.fsum(part.seconds or 0.0 for part in found.parts)
    assert total == pytest.approx(512 / speed - 256 / one, abs=1e-9, rel=1e-9)
    # What is foretold is the ideal and all that is measured of the shape, without the waits for
    # data of the run itself.
    if found.predicted:
        named = {part.name: part.seconds or 0.0 for part in found.parts}
        step = found.ideal_s + named["communication"] + named["straggler"] + named["contention"]
        assert 512 / found.predicted == pytest.approx(step, rel=1e-9, abs=1e-9)


# -- shards

GATHER, SCATTER, PAIR = Link("all_gather"), Link("reduce_scatter"), Link("allreduce", 2, 2)
# 40 ms of a step alone: two gathered at once, one during 10 ms, both scattered at the end; a sum of
# pairs after it.
ROWS = [
    ["all_gather", 2 * MIB, 4, 1, 0.0, 0.0],
    ["all_gather", MIB, 4, 1, 0.010, 0.020],
    ["reduce_scatter", 2 * MIB, 4, 1, 0.030, 0.040],
    ["allreduce", MIB, 2, 2, 0.040, 0.040],
]
LAST_LINE = {
    "solo_step_s": [0.040] * 4,
    "parallel": "fsdp",
    "gradient_bytes": 4 * MIB,
    "collectives": ROWS,
}
SHARDS = {
    GATHER: Collective(Curve.of({MIB: 0.003, 2 * MIB: 0.005}), "g"),
    SCATTER: Collective(Curve.of({MIB: 0.006, 2 * MIB: 0.014}), "s"),
    PAIR: Collective(Curve.of({MIB: 0.001, 2 * MIB: 0.002}), "g"),
}


def test_shards_are_foretold_by_the_curves_of_what_they_gather_and_scatter() -> None:
    parts, alone = parse_step_parts(LAST_LINE, 10), StepParts(solo_mean_s=0.040, solo_max_s=0.040)
    row, baseline = rows("2n2g", 4 * 256 / 0.061, 256 / 0.040)
    found = explanation(row, baseline, [parts], [alone], SHARDS)
    # 5 ms at once, 3 of 10 hidden; 14 from 35 + 10 ms of backward pass on, 10 of them hidden; 1
    # after all: 10 ms more than 40.
    assert found and found.predicted == pytest.approx(4 * 256 / 0.050)
    assert found.parts[0].seconds == pytest.approx(0.010) and found.parts[
        -1
    ].seconds == pytest.approx(0.011)
    assert found.parts[0].behind == (
        "2 all_gather of 3.1 MB, 1 reduce_scatter of 2.1 MB, 1 allreduce of 2 ranks 2 apart of 1.0 MB, "
        "in 23.00 ms according to g and s, at measured times, neither slowing the other (assumed)"
    )


def test_what_a_cpu_gathers_and_scatters_adds_all_of_its_time() -> None:
    at_once = [[*row[:5], row[4]] for row in ROWS]
    row, baseline = rows("2n2g", 4 * 256 / 0.061, 256 / 0.040)
    found = explanation(
        row,
        baseline,
        [parse_step_parts(LAST_LINE | {"collectives": at_once}, 10)],
        [StepParts()],
        SHARDS,
    )
    assert found and found.predicted == pytest.approx(4 * 256 / 0.063)
    assert found.parts[0].behind.endswith("according to g and s, during which nothing is computed")


def test_a_collective_that_was_not_measured_is_named() -> None:
    row, baseline = rows("2n2g", 4 * 256 / 0.061, 256 / 0.040)
    found = explanation(
        row, baseline, [parse_step_parts(LAST_LINE, 10)], [StepParts()], {GATHER: SHARDS[GATHER]}
    )
    assert found and found.predicted is None
    assert (
        found.parts[0].behind
        == "allreduce of 2 ranks 2 apart and reduce_scatter of this shape were not measured"
    )


def test_collectives_that_are_not_reported_are_not_taken_for_all_reduces() -> None:
    # As with tensor parallelism, and of shards by programs that do not report them.
    for unknown in (
        LAST_LINE | {"collectives": None},
        {name: LAST_LINE[name] for name in LAST_LINE if name != "collectives"},
    ):
        parts = parse_step_parts(unknown, 10)
        assert parts.transfers is None and parts.buckets_bytes == ()
    assert parse_step_parts(
        {"solo_step_s": [0.04], "parallel": "ddp", "gradient_bytes": 4 * MIB}, 10
    ).buckets_bytes == (4 * MIB,)


@pytest.mark.parametrize(
    "row",
    [
        "all_gather", ["broadcast", 4, 2, 1, 0.0, 0.0], ["allreduce", 4, 2, 1, 0.0], ["allreduce", 0, 2, 1, 0.0, 0.0],
        ["allreduce", 4.0, 2, 1, 0.0, 0.0], ["allreduce", 4, True, 1, 0.0, 0.0], ["allreduce", 4, 2, 1, None, 0.0],
        ["allreduce", 4, 2, 1, -1.0, 0.0], ["allreduce", 4, 2, 1, 0.0, math.nan], ["allreduce", 4, 2, 10**30, 0.0, 0.0],
    ],
)  # fmt: skip
def test_a_row_that_is_no_collective_makes_all_of_them_unknown(row: Any) -> None:
    assert parse_step_parts(LAST_LINE | {"collectives": [*ROWS, row]}, 10).transfers is None


def test_moments_of_several_runs_are_those_in_the_middle() -> None:
    later = [[*row[:4], 2 * row[4], row[5]] for row in ROWS]
    found = typical(
        [
            parse_step_parts(LAST_LINE, 10),
            parse_step_parts(LAST_LINE | {"collectives": later}, 10),
            parse_step_parts(LAST_LINE | {"collectives": []}, 10),
        ]
    )
    assert found.transfers and [each.begins for each in found.transfers] == pytest.approx(
        [0.0, 0.375, 0.875, 1.0]
    )


def test_with_strong_scaling_a_rank_of_the_ideal_computes_its_share() -> None:
    weak, one = rows("1n2g", 256 / 0.023, 256 / 0.040)
    two = replace(weak, scaling="strong", global_batch=256, batch_size=128, step_s=0.023)
    found = explanation(
        two,
        one,
        [replace(HERE, solo_mean_s=0.021, solo_max_s=0.021)],
        [replace(THERE, solo_mean_s=0.038)],
        {},
    )
    # Half of 40 ms; 21 ms without communication, and half of the 38 of the baseline.
    assert found and found.ideal_s == pytest.approx(0.020) and found.step_s == pytest.approx(0.023)
    assert found.parts[3].seconds == pytest.approx(0.002)
    assert (
        found.ideal == "1 over the number of ranks times a step of 1n1g, the typical speed of 1 run"
    )


def test_a_baseline_of_several_ranks_is_ideal_without_its_communication() -> None:
    table = summarize([*runs("1n2g", [512 / 0.045]), *runs("2n2g", [4 * 256 / 0.061])]).rows
    alone = StepParts(solo_mean_s=0.038, solo_max_s=0.039)
    found = explanation(table[-1], table[0], [parse_step_parts(LAST_LINE, 10)], [alone], SHARDS)
    assert (
        found
        and found.ideal_s == 0.038
        and found.ideal == "a step of 1n2g without communication, the mean over its ranks"
    )
    assert found.parts[3].seconds == pytest.approx(0.002)
    assert (
        explanation(table[-1], table[0], [parse_step_parts(LAST_LINE, 10)], [StepParts()], SHARDS)
        is None
    )


# -- how certain


def test_an_interval_holds_what_its_inputs_leave_open() -> None:
    one, two = [5950.0, 6000.0, 6050.0], [11_000.0, 11_100.0, 11_200.0]
    found = summarize([*runs("1n1g", one), *runs("1n2g", two)]).rows
    baseline, row = found[0], found[1]
    assert baseline.interval
    sure = explanation(row, baseline, [HERE], [THERE], all_reduces(TWO))
    assert sure and sure.interval and sure.predicted
    # All else measured: the baseline, by Student's t of three runs 4.303 * 0.00833 / sqrt(3); its
    # parts, read from one run, and therefore as uncertain as one run of the baseline; and the
    # model.
    of_one_run = 4.303 * 0.00833
    width = math.hypot(of_one_run / math.sqrt(3), of_one_run, math.log(1 + MODEL_ERROR))
    assert math.log(sure.interval.high / sure.predicted) == pytest.approx(width, rel=0.01)
    assert math.log(sure.predicted / sure.interval.low) == pytest.approx(width, rel=0.01)
    # Three runs that tell the same leave only baseline and model, and runs that differ by 2 % more
    # than one alone.
    alike, apart = (
        explanation(
            row,
            baseline,
            [replace(HERE, solo_mean_s=by, solo_max_s=by) for by in times],
            [THERE],
            all_reduces(TWO),
        )
        for times in ([0.0445] * 3, [0.0445, 0.0450, 0.0454])
    )
    assert (
        alike
        and alike.interval
        and alike.predicted
        and apart
        and apart.interval
        and apart.predicted
    )
    width = math.hypot(of_one_run / math.sqrt(3), math.log(1 + MODEL_ERROR))
    assert math.log(alike.interval.high / alike.predicted) == pytest.approx(width, rel=0.01)
    assert apart.interval.high / apart.predicted > alike.interval.high / alike.predicted
    # What computing loses beside all-reduces was not measured: it may be all, which makes a step
    # longer and never shorter.
    early = replace(HERE, buckets_bytes=(2 * MIB, 2 * MIB), ready=(0.0, 1.0), sharing=None)
    unsure = explanation(row, baseline, [early], [THERE], all_reduces(TWO))
    assert unsure and unsure.interval and unsure.predicted
    assert unsure.interval.high / unsure.predicted == pytest.approx(
        sure.interval.high / sure.predicted
    )
    assert unsure.interval.low / unsure.predicted < sure.interval.low / sure.predicted
    # A curve that may be off by half: 0.75 ms of the step more or less.
    off = explanation(row, baseline, [HERE], [THERE], all_reduces(TWO, 0.5))
    assert off and off.interval and off.predicted
    step = row.world_size * row.batch_size / off.predicted
    assert off.interval.low / off.predicted == pytest.approx(
        math.exp(
            -math.hypot(math.log(sure.predicted / sure.interval.low), math.log(1 + 0.00075 / step))
        )
    )


def test_where_a_model_was_compared_with_less_its_interval_is_wider() -> None:
    one, four = [5950.0, 6000.0, 6050.0], [16_000.0, 16_100.0, 16_200.0]
    table = summarize([*runs("1n1g", one), *runs("2n2g", four)]).rows
    at_once = parse_step_parts(
        LAST_LINE | {"collectives": [[*row[:5], row[4]] for row in ROWS]}, 10
    )
    found = explanation(table[1], table[0], [at_once] * 3, [StepParts()], SHARDS)
    assert found and found.interval and found.predicted
    width = math.hypot(4.303 * 0.00833 / math.sqrt(3), math.log(1 + LANGUAGE_MODEL_ERROR))
    assert math.log(found.interval.high / found.predicted) == pytest.approx(width, rel=0.01)
    assert LANGUAGE_MODEL_ERROR > MODEL_ERROR


@pytest.mark.parametrize("name", MEASURED)
def test_the_interval_holds_the_speed_that_was_measured(name: str) -> None:
    shape, speed, one, parts, curve, more = MEASURED[name]
    spec = {"batch_size": more.get("batch_size", 256)}
    steady = [one * 0.999, float(one), one * 1.001]
    table = summarize(
        [*runs("1n1g", steady, spec=spec), *runs(shape, [float(speed)], spec=spec)]
    ).rows
    sockets = more.get("sockets", False)
    found = explanation(
        table[-1], table[0], [parts], [StepParts()], all_reduces(curve), sockets=sockets
    )
    assert found and found.interval and found.interval.low <= speed <= found.interval.high


def test_without_repeats_of_the_baseline_there_is_no_interval() -> None:
    assert explained("1n2g", 10_000, 6_000, HERE, TWO, there=THERE).interval is None


# -- what programs tell


def test_a_last_line_tells_its_parts() -> None:
    observed = {
        "gradient_bytes": 60, "gradient_buckets_bytes": [20, 40], "gradient_ready_s": [0.01, 0.05],
        "input_wait_s": [1.0, 3.0], "solo_step_s": [0.10, 0.14], "solo_forward_s": [0.04, 0.04],
        "solo_backward_s": [0.05, 0.05], "solo_reduce_s": [0.02, 0.02],
        # All of it is a tenth slower; the backward pass, 55 ms then, loses half of its speed for 40
        # ms, reducing half of its.
        "beside_forward_s": [0.044, 0.044], "beside_backward_s": [0.075, 0.075], "beside_reduce_s": [0.04, 0.04],
    }  # fmt: skip
    found = parse_step_parts(observed, window_steps=100)
    assert (
        found.buckets_bytes == (20, 40)
        and found.ready == pytest.approx((0.2, 1.0))
        and not found.is_cut_here
    )
    assert (
        found.solo_mean_s == pytest.approx(0.12)
        and found.solo_max_s == 0.14
        and found.input_s == 0.03
    )
    assert found.reduce_s == 0.02
    assert found.backward == pytest.approx(0.05 / 0.12) and found.slowed == pytest.approx(1.1)
    assert (
        found.sharing
        and found.sharing.compute == pytest.approx(0.5)
        and found.sharing.reduce == pytest.approx(0.5)
    )


@pytest.mark.parametrize(
    "said",
    [
        "1.0",
        True,
        None,
        [None, 1.0],
        [0.1, "0.2"],
        -1.0,
        math.nan,
        math.inf,
        10**400,
        {},
        [[1.0]],
        1e300,
    ],
)
def test_what_is_no_number_was_not_said(said: Any) -> None:
    names = (
        "gradient_buckets_bytes",
        "gradient_bytes",
        "solo_step_s",
        "input_wait_s",
        "solo_backward_s",
        "solo_forward_s",
    )
    assert parse_step_parts(dict.fromkeys((*names, "gradient_ready_s"), said), 10) == StepParts()


def test_buckets_that_are_not_told_are_cut_as_they_are_by_default() -> None:
    assert parse_step_parts({"gradient_bytes": 102_228_128}, 1).buckets_bytes == (
        26_214_400,
        26_214_400,
        26_214_400,
        23_584_928,
    )
    found = parse_step_parts({"gradient_bytes": 2 * MIB}, 1, bucket_cap_mb=1)
    assert found.buckets_bytes == (MIB, MIB) and found.is_cut_here
    assert parse_step_parts({"gradient_bytes": 10**12}, 1, bucket_cap_mb=1) == StepParts()


def test_runs_tell_together_what_the_middle_one_tells() -> None:
    three = [
        StepParts(solo_mean_s=one, solo_max_s=2 * one, sharing=Sharing(one, 0.0))
        for one in (0.1, 0.3, 0.2)
    ]
    found = typical([*three, StepParts((1, 2)), StepParts()])
    assert found == StepParts((1, 2), solo_mean_s=0.2, solo_max_s=0.4, sharing=Sharing(0.2, 0.0))
    assert typical([]) == StepParts()

"""When collectives run beside computing, by hand and by what must hold of any network and device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.errors import DataError
from orchestrator.features.explain.buckets import BLOCKS, Bucket, buckets_of, reduce_buckets
from orchestrator.features.explain.curve import Curve
from orchestrator.results.parts.overlap import ALONE, Sharing, Timed, elapsed_s, sharing_of


class DeviceModel(NamedTuple):
    """Seconds of a step on one device, and of its backward pass."""

    step_s: float
    backward_s: float


def step_s(
    device: DeviceModel, buckets: Sequence[Bucket], curve: Curve, sharing: Sharing = ALONE
) -> float:
    """The seconds of a step whose backward pass makes these buckets."""
    sent = reduce_buckets(buckets, device.backward_s / device.step_s)
    whole = device.step_s
    timed = [
        Timed(curve.time_s(each.size_bytes), each.begins * whole, each.needed * whole)
        for each in sent
    ]
    return elapsed_s(whole, timed, sharing)


MB = 1_000_000
TEN_A_MEGABYTE = Curve.of({MB: 0.010, 2 * MB: 0.020})
DEVICE = DeviceModel(step_s=0.030, backward_s=0.020)
EARLY_AND_LATE = (Bucket(MB, 0.25), Bucket(2 * MB, 1.0))

shares = st.floats(0, 1)
seconds = st.floats(1e-6, 10)
curves = st.dictionaries(st.integers(1, 1 << 32), seconds, min_size=2, max_size=8).map(Curve.of)
devices = st.tuples(seconds, shares).map(lambda both: DeviceModel(both[0], both[0] * both[1]))
sharings = st.builds(Sharing, shares, st.floats(0, 0.99))
buckets = st.lists(st.builds(Bucket, st.integers(1, 1 << 30), shares), max_size=6).map(
    lambda found: tuple(sorted(found, key=lambda bucket: bucket.ready))
)


# Forward 10 ms, backward 20 ms; the first bucket is there after 5 ms of it and takes 10 ms, the
# second at its end, 20 ms.
@pytest.mark.parametrize(
    ("sharing", "milliseconds"),
    [
        # 15 to 25 beside computing, which ends at 30; 30 to 50.
        (ALONE, 50),
        # By 25 only 5 ms more are computed, 10 of 20; the rest until 35; 35 to 55.
        (Sharing(0.5, 0.0), 55),
        # Computing ends at 30, when 7.5 ms of reducing are done; the rest until 32.5, and 20 more.
        (Sharing(0.0, 0.5), 52.5),
        # Reducing takes 20 ms, until 35, and 10 ms are computed meanwhile, 15 of 20; the rest until
        # 40, and 20 more.
        (Sharing(0.5, 0.5), 60),
        # Nothing is computed while anything is reduced: 10 + 20 + 10 + 20.
        (Sharing(1.0, 0.0), 60),
        # Nothing is reduced while anything is computed: the same sum.
        (Sharing(0.0, 1.0), 60),
        (Sharing(1.0, 1.0), 60),
    ],
)
def test_a_step_of_two_buckets_is_what_it_is_by_hand(sharing: Sharing, milliseconds: float) -> None:
    assert step_s(DEVICE, EARLY_AND_LATE, TEN_A_MEGABYTE, sharing) == pytest.approx(
        milliseconds / 1000
    )


@pytest.mark.parametrize("sharing", [Sharing(1.0, 0.0), Sharing(1.0, 1.0)])
@given(backward_ms=st.integers(1, 1000), ready=st.integers(0, 100))
@example(
    backward_ms=10, ready=10
)  # what is left of the pass after the second is rounded to less than nothing
def test_buckets_that_are_ready_at_the_end_are_reduced_after_it(
    sharing: Sharing, backward_ms: int, ready: int
) -> None:
    some = (Bucket(MB, ready / 100), Bucket(MB, 1.0), Bucket(MB, 1.0))
    device = DeviceModel(step_s=backward_ms / 500, backward_s=backward_ms / 1000)
    assert step_s(device, some, TEN_A_MEGABYTE, sharing) == pytest.approx(device.step_s + 0.030)


# Two layers in shards, 30 ms: forward 0 to 5 and 5 to 10 ms, backward 10 to 20 and 20 to 30.
# Gathered: the first layer at once, the second during the first, the first again during the second
# one's backward pass; scattered: each after its backward pass.
SHARDS = ((2, 0, 0), (4, 0, 5), (4, 10, 20), (6, 20, 30), (6, 30, 30))


@pytest.mark.parametrize(
    ("slower", "milliseconds"),
    [
        # 0 to 2; 2 to 6 beside computing, which has come to 10 at 12; 12 to 16; to 20 at 22; 22 to
        # 28; to 30 at 32; 32 to 38.
        (1, 38),
        # 0 to 6; 6 to 18, of which computing uses 5 and waits; to 10 at 23; 23 to 35, it waits from
        # 33 on; 35 to 53; 53 to 71.
        (3, 71),
    ],
)
def test_a_step_of_two_layers_in_shards_is_what_it_is_by_hand(
    slower: int, milliseconds: float
) -> None:
    timed = [
        Timed(slower * time / 1000, begins / 1000, needed / 1000) for time, begins, needed in SHARDS
    ]
    assert elapsed_s(0.030, timed) == pytest.approx(milliseconds / 1000)


def test_what_is_waited_for_at_once_adds_all_of_its_time() -> None:
    timed = [Timed(0.001, moment, moment) for moment in (0.0, 0.004, 0.010)]
    assert elapsed_s(0.010, timed, Sharing(0.5, 0.5)) == pytest.approx(0.013)


def test_what_is_queued_behind_another_holds_up_computing_before_it_begins() -> None:
    # 5 to 15, needed at the end; behind it, needed at 8, from 15 to 16. Computing stands at 8, and
    # has 12 more from 16 on.
    assert elapsed_s(
        0.020, [Timed(0.010, 0.005, 0.020), Timed(0.001, 0.006, 0.008)]
    ) == pytest.approx(0.028)


def test_a_bucket_waits_for_the_one_before_it() -> None:
    # Ready at 11 and 12 ms, 20 ms each: 11 to 31, 31 to 51.
    both = (Bucket(2 * MB, 0.05), Bucket(2 * MB, 0.10))
    assert step_s(DEVICE, both, TEN_A_MEGABYTE) == pytest.approx(0.051)


@given(devices, sharings, curves)
def test_nothing_to_reduce_leaves_the_step_as_it_is(
    device: DeviceModel, sharing: Sharing, curve: Curve
) -> None:
    assert step_s(device, (), curve, sharing) == pytest.approx(device.step_s)


@given(devices, buckets, sharings, curves)
def test_a_network_without_end_leaves_the_step_as_it_is(
    device: DeviceModel, some: tuple[Bucket, ...], sharing: Sharing, curve: Curve
) -> None:
    assert step_s(device, some, curve.scale(1e-30), sharing) == pytest.approx(
        device.step_s, abs=1e-9
    )


@given(devices, buckets, sharings, curves, st.floats(1, 100))
def test_a_slower_network_never_makes_a_step_quicker(
    device: DeviceModel, some: tuple[Bucket, ...], sharing: Sharing, curve: Curve, factor: float
) -> None:
    quick, slow = (step_s(device, some, each, sharing) for each in (curve, curve.scale(factor)))
    assert slow >= quick * (1 - 1e-9)


@given(devices, buckets, sharings, curves)
def test_a_step_lies_between_perfect_overlap_and_none(
    device: DeviceModel, some: tuple[Bucket, ...], sharing: Sharing, curve: Curve
) -> None:
    reduce_s = math.fsum(curve.time_s(bucket.size_bytes) for bucket in some)
    found = step_s(device, some, curve, sharing)
    assert found >= max(device.step_s, device.step_s - device.backward_s + reduce_s) * (1 - 1e-9)
    assert found >= step_s(device, some, curve) * (1 - 1e-9)
    if sharing.compute + sharing.reduce <= 1:  # where both lose more, taking turns would be quicker
        assert found <= (device.step_s + reduce_s) * (1 + 1e-9)


@given(seconds, seconds, st.floats(0, 0.95), st.floats(0, 0.95))
def test_what_two_that_began_at_once_take_from_each_other_is_found_again(
    backward_s: float, reduce_s: float, compute: float, reduce: float
) -> None:
    reduced, computed = reduce_s / (1 - reduce), backward_s / (1 - compute)
    if reduced <= computed:  # the rest of the backward pass goes on alone
        computed = reduced + backward_s - reduced * (1 - compute)
    else:
        reduced = computed + reduce_s - computed * (1 - reduce)
    found = sharing_of(backward_s, reduce_s, computed, reduced)
    # In a short common time of a long whole, rounding is all that can be seen.
    room = 1e-9 * max(backward_s, reduce_s) / min(reduced, computed)
    assert found.compute == pytest.approx(
        compute, abs=room + 1e-9
    ) and found.reduce == pytest.approx(reduce, abs=room + 1e-9)


def test_times_that_cannot_be_are_cut_to_shares() -> None:
    assert sharing_of(1.0, 1.0, 0.9, 0.8) == Sharing(0.0, 0.0)
    assert sharing_of(1.0, 1.0, 9.0, 2.0) == Sharing(1.0, 0.5)


# -- curves


def test_between_sizes_a_curve_is_a_power_below_them_a_latency_and_a_bandwidth_above_them_a_bandwidth() -> (
    None
):
    curve = Curve.of({1000: 0.001, 4000: 0.002})
    assert curve.time_s(1000) == 0.001 and curve.time_s(4000) == 0.002
    assert curve.time_s(2000) == pytest.approx(0.001 * math.sqrt(2))
    # 1 ms more for 3000 bytes more: 1000 bytes are 1/3 ms, and the other 2/3 ms are there however
    # few they are.
    assert curve.time_s(500) == pytest.approx(0.001 * (2 / 3 + 1 / 6))
    assert curve.time_s(8000) == pytest.approx(0.004)


def test_a_curve_that_is_flat_at_first_has_a_floor_and_one_that_is_more_than_steep_no_negative_latency() -> (
    None
):
    assert Curve.of({1024: 2e-5, 2048: 2e-5, 4096: 3e-5}).time_s(8) == pytest.approx(2e-5)
    assert Curve.of({1000: 0.001, 2000: 0.004}).time_s(100) == pytest.approx(0.0001)


def test_a_curve_tells_of_sizes_up_to_four_times_its_largest() -> None:
    # All latency, it would be four times too long there, and it is so much the further off the
    # larger they are.
    curve = Curve.of({1024: 0.01, 65536: 0.01})
    assert curve.reaches(1) and curve.reaches(4 * 65536) and not curve.reaches(4 * 65536 + 1)


def test_no_size_takes_longer_than_a_larger_one() -> None:
    # One hiccup of the first size: padded to the second it would have been quicker.
    assert Curve.of({1024: 9e-4, 2048: 2e-5, 4096: 3e-5}).points == (
        (1024, 2e-5),
        (2048, 2e-5),
        (4096, 3e-5),
    )


@given(curves, st.integers(1, 1 << 33), st.integers(1, 1 << 33))
def test_time_never_falls_with_size(curve: Curve, one: int, other: int) -> None:
    assert curve.time_s(min(one, other)) <= curve.time_s(max(one, other)) * (1 + 1e-9)


IMPOSSIBLE: list[dict[int, float]] = [
    {}, {1024: 0.1}, {0: 0.1, 1024: 0.1}, {512: 0.0, 1024: 0.1}, {512: -1.0, 1024: 0.1}, {1: math.nan, 2: 1.0},
    {1: math.inf, 2: 1.0},
]  # fmt: skip


@pytest.mark.parametrize("times", IMPOSSIBLE)
def test_too_few_points_or_impossible_ones_are_an_error(times: dict[int, float]) -> None:
    with pytest.raises(DataError, match="curve of a collective: expected"):
        Curve.of(times)


# -- buckets


def bottleneck(channels: int, width: int, projects: bool) -> int:
    """Parameters of a residual block by its definition: 1 x 1, 3 x 3, 1 x 1, each with two for
    every channel of BatchNorm.
    """
    convolutions = (
        channels * width + 9 * width * width + width * 4 * width + 2 * (width + width + 4 * width)
    )
    return convolutions + (channels * 4 * width + 2 * 4 * width if projects else 0)


def test_the_blocks_of_resnet50_are_those_of_its_definition() -> None:
    found, channels = [3 * 64 * 49 + 2 * 64], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            found.append(bottleneck(channels, width, block == 0))
            channels = 4 * width
    found.append(channels * 1000 + 1000)
    assert [parameters for parameters, _ in BLOCKS["resnet50"]] == found[::-1] and sum(
        found
    ) == 25_557_032


def test_the_buckets_of_resnet50_are_ready_by_block_not_by_byte() -> None:
    # As DistributedDataParallel built them with its defaults, first bucket 1 MiB, others 25 MiB:
    # 102,228,128 bytes in all.
    sizes = (8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160)
    found = buckets_of(sizes, "resnet50")
    assert [bucket.size_bytes for bucket in found] == list(sizes)
    # The classifier takes no time. 39.7 MB are classifier, the last block of 17.85 MB and 13.65 MB
    # of the next: 1.765 of 17.
    assert found[0].ready == 0
    assert found[1].ready == pytest.approx(
        (1 + (39_698_336 - 8_196_000 - 4 * 4_462_592) / (4 * 4_462_592)) / 17
    )
    assert found[-1].ready == 1
    assert [round(bucket.ready, 2) for bucket in found] == [0, 0.10, 0.17, 0.49, 1]


def test_of_an_unknown_model_bytes_stand_for_time() -> None:
    assert [bucket.ready for bucket in buckets_of([1, 1, 2], "mine")] == [0.25, 0.5, 1.0]
    assert buckets_of([], "mine") == ()

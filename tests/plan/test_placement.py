"""Where ranks live: each exactly once, on hosts that hold them, in the order of the inventory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import order_cells, run_name
from orchestrator.plan.placement import ladder, place, used_hosts
from orchestrator.plan.schedule import ORDERS
from orchestrator.plan.spec import RunSpec
from orchestrator.record.state_file import check_name


def wanted(nodes: int, gpus: int, device: str = "cuda") -> RunSpec:
    return RunSpec(
        "pytorch", "resnet50", nodes, gpus, device, 128, "fp32", "synthetic", 20, 5, 60.0, {}
    )


def hosts(*capacities: int | None) -> list[Host]:
    return [
        Host(f"gpu{n:03d}", f"10.11.0.{n}", gpus=capacity)
        for n, capacity in enumerate(capacities, start=2)
    ]


@given(st.integers(1, 300), st.integers(1, 16), st.integers(0, 5))
def test_ranks_are_exactly_zero_to_world_size(nodes: int, gpus: int, spare: int) -> None:
    placement = place(wanted(nodes, gpus), hosts(*[gpus] * (nodes + spare)), 23456)
    assert [rank for slot in placement.slots for rank in slot.ranks] == list(
        range(placement.world_size)
    )
    assert placement.world_size == nodes * gpus
    assert [slot.node_rank for slot in placement.slots] == list(range(nodes))
    assert len({slot.host for slot in placement.slots}) == nodes
    assert all(slot.devices == ",".join(map(str, range(gpus))) for slot in placement.slots)
    assert (placement.master_addr, placement.master_port) == (placement.slots[0].address, 23456)


@given(
    st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(1, 9),
)
def test_a_run_goes_to_the_first_hosts_that_fit_or_is_refused(
    capacities: list[int | None], nodes: int, gpus: int
) -> None:
    machines = [
        Host(f"h{n}", f"10.0.0.{n}", gpus=0 if capacity == 0 else capacity, slots=1)
        for n, capacity in enumerate(capacities)
    ]
    fitting = [host.name for host in machines if host.capacity is None or host.capacity >= gpus]
    try:
        placement = place(wanted(nodes, gpus), machines, 20000)
    except ConfigError:
        assert len(fitting) < nodes
    else:
        assert [slot.host for slot in placement.slots] == fitting[:nodes]


@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=9),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1),
)
def test_of_the_hosts_that_a_bench_takes_each_run_is_placed_on_those_of_the_plan(
    capacities: list[int], shapes: list[tuple[int, int]]
) -> None:
    machines = hosts(*capacities, 4, 4, 4)
    specs = [wanted(*shape) for shape in shapes]
    chosen = used_hosts(specs, machines)
    assert [place(one, chosen, 1) for one in specs] == [place(one, machines, 1) for one in specs]
    used = {slot.host for one in specs for slot in place(one, machines, 1).slots}
    assert [host.name for host in chosen] == sorted(used)


def test_too_few_hosts_are_counted_and_named_folded() -> None:
    with pytest.raises(ConfigError) as caught:
        place(wanted(5, 8), hosts(8, 8, 8, 8), 20000)
    assert str(caught.value) == (
        "--nodes: expected 5 hosts, 4 selected: gpu[002-005]. select more hosts with --hosts, or lower --nodes"
    )


def at(*addresses: str) -> list[Host]:
    return [Host(f"n{at}", address, gpus=2) for at, address in enumerate(addresses)]


@pytest.mark.parametrize("local", ["localhost", "127.0.1.1", "::1", "localhost.localdomain"])
def test_a_node_at_an_address_of_the_loopback_is_refused_beside_others(local: str) -> None:
    for hosts_ in (at(local, "brutus"), at("brutus", local)):
        with pytest.raises(ConfigError, match=f"all nodes of a run can reach, got {local}"):
            place(wanted(2, 2), hosts_, 20000)
    assert place(wanted(1, 2), at(local, "brutus"), 20000).master_addr == local
    assert (
        place(wanted(2, 2), at("127.0.0.2", "127.0.0.3"), 20000).world_size == 4
    )  # a rehearsal on one machine


def test_too_few_gpus_are_named_with_the_hosts_that_lack_them() -> None:
    with pytest.raises(ConfigError) as caught:
        place(wanted(3, 8), hosts(8, 4, 8, 4), 20000)
    assert str(caught.value) == (
        "--gpus: expected 8 gpus per node on 3 nodes, too few on gpu[003,005]. "
        "lower --gpus, or correct gpus: for these hosts in the inventory"
    )
    small = [Host("n1", "10.0.0.1", gpus=0, slots=2)]
    with pytest.raises(ConfigError, match="expected 3 slots per node on 1 node, too few on n1"):
        place(wanted(1, 3, "cpu"), small, 20000)


@given(st.integers(1, 1000), st.integers(1, 16))
def test_a_ladder_goes_up_by_doubling_from_one_to_everything(nodes: int, gpus: int) -> None:
    shapes = ladder(nodes, gpus)
    sizes = [n * g for n, g in shapes]
    assert (shapes[0], shapes[-1]) == ((1, 1), (nodes, gpus))
    assert sizes == sorted(set(sizes))
    assert all(n == 1 or g == gpus for n, g in shapes)
    assert all(b <= 2 * a for a, b in zip(sizes, sizes[1:], strict=False))


def test_the_ladder_of_the_reference_cluster() -> None:
    assert ladder(4, 8) == ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8))
    assert ladder(3, 6) == ((1, 1), (1, 2), (1, 4), (1, 6), (2, 6), (3, 6))
    assert ladder(1, 1) == ((1, 1),)


@given(st.integers(1, 8), st.integers(1, 6), st.sampled_from(ORDERS), st.integers(0, 1 << 32))
def test_each_repeat_visits_every_cell_once_before_the_next_one_begins(
    count: int, repeats: int, order: str, seed: int
) -> None:
    runs = order_cells(count, repeats, order, seed)
    assert runs == order_cells(count, repeats, order, seed)
    assert [repeat for _, repeat in runs] == [
        repeat for repeat in range(1, repeats + 1) for _ in range(count)
    ]
    for repeat in range(1, repeats + 1):
        visited, forwards = [cell for cell, number in runs if number == repeat], list(range(count))
        assert sorted(visited) == list(range(count))
        assert order == "random" or visited in (forwards, forwards[::-1])
        assert order != "interleaved" or visited == forwards


@pytest.mark.parametrize(
    ("repeats", "powers"), [(2, 1), (3, 0), (4, 2), (5, 0), (6, 1), (8, 3), (16, 4)]
)
def test_in_a_balanced_order_every_cell_meets_the_same_drift(repeats: int, powers: int) -> None:
    count = 5
    runs = order_cells(count, repeats, "balanced", 0)
    places = {
        cell: [2 * at - len(runs) + 1 for at, run in enumerate(runs) if run[0] == cell]
        for cell in range(count)
    }
    moments = {
        cell: [sum(place**power for place in at) for power in range(6)]
        for cell, at in places.items()
    }
    for cell in range(count):
        mirrored = moments[count - 1 - cell]
        if (
            repeats % 2
        ):  # quadratic drift is balanced, and of linear drift that of one block is left
            assert moments[cell][2] == mirrored[2] and moments[cell][1] == -mirrored[1]
            assert abs(moments[cell][1]) <= count - 1
        assert moments[cell][: powers + 1] == mirrored[: powers + 1]


def test_added_blocks_continue_the_balanced_order_of_the_plan() -> None:
    for planned in (1, 3, 8):
        longer = order_cells(3, 12, "balanced", 0, planned)
        assert longer[: 3 * planned] == order_cells(3, planned, "balanced", 0)
        assert order_cells(3, 11, "balanced", 0, planned) == longer[:33]


def test_run_names_are_names_that_a_directory_and_a_node_take() -> None:
    name = run_name("20260101-000000-abcd", 7, wanted(4, 8), 3)
    assert name == "20260101-000000-abcd.007-pytorch-resnet50-4n8g-fp32-r3"
    assert check_name(name, "here") == name


@pytest.mark.parametrize(
    ("listed", "gpus", "expected"),
    [("4,5,6,7", 2, "4,5"), ("7, 6", 2, "7,6"), (3, 1, "3"), (None, 3, "0,1,2")],
)
def test_a_run_takes_the_first_devices_that_a_host_lists(
    listed: object, gpus: int, expected: str
) -> None:
    host = Host(
        "a", "10.0.0.1", gpus=8, vars={} if listed is None else {"cuda_visible_devices": listed}
    )
    assert place(wanted(1, gpus), [host], 20000).slots[0].devices == expected


def test_a_host_that_lists_too_few_devices_is_named() -> None:
    host = Host("a", "10.0.0.1", gpus=8, vars={"cuda_visible_devices": "4,5"})
    with pytest.raises(
        ConfigError,
        match="vars.cuda_visible_devices of host a: expected 4 devices or more, got 4,5",
    ):
        place(wanted(1, 4), [host], 20000)

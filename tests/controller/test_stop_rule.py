"""When a bench that adds repeats, or has a budget of time, goes on and when it ends."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller import stop_rule as stopping
from orchestrator.controller.earlier_benches import find_times
from orchestrator.controller.stop_rule import Decision, Width, decide, find_hopeless_cells, widest
from orchestrator.errors import RunError
from orchestrator.inventory.hosts import Host
from orchestrator.logs.metrics import Metric
from orchestrator.plan.bench import Bench
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import open_framework
from orchestrator.plan.limits import Limits
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec
from orchestrator.record.bench_parts import PlanEntry
from orchestrator.record.bench_record import new_bench_record
from orchestrator.record.pending_work import add_block, leave_out
from orchestrator.record.rundir import BenchDir
from orchestrator.results.numbers.throughput import Throughput
from orchestrator.results.progress_so_far import longest, spent_s
from orchestrator.results.run import RunResult
from orchestrator.results.summary import summarize
from tests.support.summaries import measured

HOSTS = [
    Host(name, address, gpus=0, slots=1)
    for name, address in (("a", "127.0.0.2"), ("b", "127.0.0.3"))
]
FOLDER = open_framework("simulated")
CELLS = configure(Request("resnet50", nodes=(1, 2), gpus=(1,)), [FOLDER], HOSTS).specs


def runs(spec: RunSpec, speeds: list[float | None]) -> list[RunResult]:
    """Return a run per speed; one without a speed has failed."""
    lost = RunError("rank 0 ended with exit code 3", kind="rank_failed")
    return [
        RunResult(
            f"{spec.shape}-{repeat}",
            repeat,
            spec,
            True,
            "finished",
            Throughput(speed, 100, 100 / speed, 1, 10),
        )
        if speed
        else RunResult(f"{spec.shape}-{repeat}", repeat, spec, True, "failed", error=lost)
        for repeat, speed in enumerate(speeds, start=1)
    ]


COURSES = st.builds(
    lambda repeats, more, aim, budget_s: Schedule(repeats=repeats, until_ci=aim, max_repeats=repeats + more, budget_s=budget_s),
    st.integers(1, 10), st.integers(0, 30), st.none() | st.floats(1e-4, 0.5), st.none() | st.floats(1, 500),
)  # fmt: skip


@given(
    COURSES,
    st.lists(st.floats(0, 1) | st.just(math.inf), min_size=50, max_size=50),
    st.floats(0.5, 60),
)
def test_a_bench_ends_at_the_first_block_that_is_narrow_enough_within_its_cap_and_its_budget(
    schedule: Schedule, shares: list[float], block_s: float
) -> None:
    def decision_after(blocks: int) -> Decision:
        return decide(
            schedule,
            Width("speed", shares[blocks]),
            blocks=blocks,
            used_s=blocks * block_s,
            block_s=block_s,
        )

    blocks = 0
    while (decision := decision_after(blocks)).goes_on:
        blocks += 1
        assert blocks <= schedule.most
    assert schedule.budget_s is None or blocks * block_s <= schedule.budget_s
    narrow = [
        n
        for n in range(schedule.repeats, schedule.most + 1)
        if schedule.until_ci and shares[n] <= schedule.until_ci
    ]
    wanted = min([*narrow, schedule.most])
    if decision.reason == "budget":
        assert (
            schedule.budget_s is not None
            and blocks < wanted
            and (blocks + 1) * block_s > schedule.budget_s
        )
    else:
        assert blocks == wanted
        assert decision.reason == (
            "planned" if schedule.until_ci is None else "narrow" if narrow else "most"
        )


def test_a_budget_lets_nothing_begin_that_is_not_expected_to_end_in_it_and_the_unknown_only_before_its_end() -> (
    None
):
    schedule = Schedule(budget_s=60.0)
    assert [schedule.fits(50.0, 10.0), schedule.fits(50.0, 10.1), schedule.fits(59.9, 0.0), schedule.fits(60.0, 0.0)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert Schedule().fits(1e9, 1e9)


def test_the_widest_interval_is_that_of_the_table_be_it_of_a_speed_or_a_speedup() -> None:
    base, double = CELLS
    drifting = [100.0, 90.0, 81.0], [200.0, 180.0, 162.0]
    results = [*runs(base, list(drifting[0])), *runs(double, list(drifting[1]))]
    row = next(row for row in summarize(results).rows if row.shape == "1n1g")
    assert row.interval and row.value
    found = widest(results)
    assert found is not None and found.of in ("speed of 1n1g", "speed of 2n1g")
    assert found.share == pytest.approx((row.interval.high - row.interval.low) / 2 / row.value)

    apart = [*runs(base, [100.0, 101.0, 100.0]), *runs(double, [200.0, 199.0, 201.0])]
    row = next(row for row in summarize(apart).rows if row.shape == "2n1g")
    assert row.speedup_interval and row.speedup
    wide = (row.speedup_interval.high - row.speedup_interval.low) / 2 / row.speedup
    assert widest(apart) == Width("speedup of 2n1g", wide)


def test_of_other_metrics_the_primary_one_is_judged_by_its_name_and_equal_values_are_narrow() -> (
    None
):
    declared = (Metric("latency", "us", "lower"), Metric("power", "W"))
    repeats = [
        {"latency": latency, "power": power}
        for latency, power in ((8.0, 100.0), (8.2, 500.0), (8.1, 900.0))
    ]
    results = measured("1n2g", declared, *repeats)
    latency = next(row for row in summarize(results).rows if row.primary)
    assert latency.interval and latency.value
    share = (latency.interval.high - latency.interval.low) / 2 / latency.value
    assert widest(results) == Width("latency of 1n2g", share, has_others=True) and share < 0.05

    for value in (0.0, 8.0, -8.0):
        found = widest(measured("1n2g", declared, *[{"latency": value}] * 3))
        assert found and found.share == pytest.approx(0.0, abs=1e-12)
    negative = widest(
        measured("1n2g", declared, {"latency": -8.0}, {"latency": -8.2}, {"latency": -8.1})
    )
    assert negative and negative.share == pytest.approx(share, rel=0.01)
    around_zero = widest(measured("1n2g", declared, {"latency": -1.0}, {"latency": 1.0}))
    assert around_zero == Width("latency of 1n2g", math.inf)


def test_what_ends_says_that_the_intervals_of_other_metrics_do_not_count() -> None:
    declared = (Metric("rate", "GB/s", primary=True), Metric("latency", "us", "lower"))
    steady = [{"rate": 5.0 + n / 10000, "latency": 1.0 + n} for n in range(3)]
    schedule = Schedule(3, until_ci=0.01)
    for metrics, ending in (
        (declared, "rate of 1n1g; intervals of other metrics are not considered"),
        (declared[:1], "rate of 1n1g"),
    ):
        width = widest(measured("1n1g", metrics, *steady))
        assert stopping.end_words(schedule, "narrow", width, 3).endswith(ending)


def test_one_repeat_is_never_narrow() -> None:
    assert widest(runs(CELLS[0], [100.0])) == Width("speed of 1n1g", math.inf)
    assert widest([]) is None


def test_a_cell_whose_last_three_repeats_failed_is_given_up_and_no_longer_keeps_the_others_going() -> (
    None
):
    base, double = CELLS
    steady = runs(base, [100.0, 100.1, 100.0, 99.9, 100.0])
    assert find_hopeless_cells([*steady, *runs(double, [200.0, 180.0, None, None])]) == []
    failing = [*steady, *runs(double, [200.0, 180.0, None, None, None])]
    assert find_hopeless_cells(failing) == [double]
    assert widest(failing) == widest(steady)
    hopeless = [*runs(base, [None] * 3), *runs(double, [None] * 3)]
    assert widest(hopeless) is None
    schedule = Schedule(repeats=3, until_ci=0.01)
    assert decide(schedule, None, blocks=3, used_s=0.0, block_s=0.0).reason == "failing"


@given(st.sampled_from(["interleaved", "random"]), st.integers(0, 1 << 32), st.integers(1, 12))
def test_every_block_holds_every_cell_once_whenever_it_is_asked_for(
    order: str, seed: int, repeats: int
) -> None:
    plan = Bench("bench-1", CELLS, {"simulated": FOLDER}, Schedule(order, seed, repeats=repeats))
    again = replace(plan, schedule=replace(plan.schedule, repeats=1))
    blocks = [again.block(repeat) for repeat in range(1, repeats + 1)]
    assert tuple(run for block in blocks for run in block) == plan.list_runs()
    assert all(sorted(run.spec.shape for run in block) == ["1n1g", "2n1g"] for block in blocks)
    assert len({run.run_id for run in plan.list_runs()}) == 2 * repeats


# ------------------------------------------------------------------ the journal as a clock


def bench_of(root: Path, name: str, journal: list[tuple[float, str, str]]) -> BenchDir:
    """Return a bench of two cells whose journal has these events at these times."""
    plan = Bench(name, CELLS, {"simulated": FOLDER}, Schedule(repeats=2))
    bench = BenchDir.create(
        root, new_bench_record(plan, {}, HOSTS, "a,b", (), Limits(), (), ["orch"]).as_dict()
    )
    names = [run.run_id for run in plan.list_runs()]
    for at, event, run in journal:
        bench.event(event, at=at, **({"run": names[int(run) - 1]} if run else {}))
    return bench


def test_a_run_takes_from_its_plan_to_its_logs_and_the_longest_of_a_cell_counts(
    tmp_path: Path,
) -> None:
    journal = [
        (100.0, "begun", ""), (101.0, "planned", "1"), (109.0, "finished", "1"), (110.0, "collected", "1"),
        (110.5, "planned", "2"), (130.5, "finished", "2"), (131.0, "planned", "3"), (136.0, "failed", "3"),
        (137.0, "planned", "4"), (140.0, "lost", "4"),
    ]  # fmt: skip
    bench = bench_of(tmp_path, "b1", journal)
    assert longest(bench) == [(CELLS[0], 9.0), (CELLS[1], 20.0)]
    assert find_times(tmp_path, CELLS[:1]) == [(CELLS[0], 9.0)]
    bench_of(tmp_path, "b2", [(1.0, "begun", ""), (2.0, "planned", "1"), (5.0, "finished", "1")])
    assert find_times(tmp_path, CELLS) == [(CELLS[0], 3.0), (CELLS[1], 20.0)]
    (tmp_path / "b2" / "bench.json").write_text("{")
    assert find_times(tmp_path, CELLS) == [(CELLS[0], 9.0), (CELLS[1], 20.0)]


def test_time_between_two_controllers_is_not_spent_and_a_run_seen_by_both_has_no_length(
    tmp_path: Path,
) -> None:
    journal = [
        (100.0, "begun", ""),
        (101.0, "planned", "1"),
        (500.0, "begun", ""),
        (502.0, "finished", "1"),
        (900.0, "begun", ""),
    ]
    bench = bench_of(tmp_path, "b1", journal)
    assert spent_s(bench.events()) == 3.0
    assert longest(bench) == []


def test_runs_that_are_added_and_left_out_stand_in_the_record(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "b1", [])
    plan = Bench("b1", CELLS, {"simulated": FOLDER}, Schedule(repeats=2))
    before = bench.record().runs
    add_block(bench, plan, plan.block(3))
    added = [run.run_id for run in plan.block(3)]
    assert bench.record().runs == (*before, *added)
    assert (bench.record().plan or {})[added[1]] == PlanEntry(
        cell=0, repeat=3
    )  # the third block runs backwards
    leave_out(bench, added, ["left out: 2"])
    record = bench.record()
    assert (record.runs, record.left_out, record.notes) == (before, tuple(added), ("left out: 2",))

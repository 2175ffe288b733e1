"""Which run of a bench comes next: the planned ones, further blocks until intervals are narrow, and
none that time forbids.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.controller.events import BlockOver, Decided, RunsPlanned
from orchestrator.controller.scheduler import BlockScheduler
from orchestrator.errors import RunError
from orchestrator.record.journal import Event
from orchestrator.record.state_file import read_state
from tests.support.fake_bench import FakeBench, training


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(rig: FakeBench, clock: Clock, expected_s: float | None = None) -> BlockScheduler:
    expected = [] if expected_s is None else [(rig.spec, expected_s)]
    return BlockScheduler(rig.bench, rig.plan, expected, rig.observe, clock)


def executed(
    rig: FakeBench,
    pace: BlockScheduler,
    step_s: list[float],
    clock: Clock | None = None,
    took_s: float = 0.0,
) -> list[int]:
    """Execute what a pace yields, each run with the next step time; return the repeats in order."""
    repeats = []

    def runs():
        for run in pace.runs(rig.plan.list_runs()):
            rig.runs(training(rig.spec, after_s=0.0, step_s=step_s[len(repeats) % len(step_s)]))
            repeats.append(run.repeat)
            yield run
            if clock:
                clock.now += took_s

    assert rig.campaign.execute(runs(), pace.needs(rig.plan.list_runs())) == []
    return repeats


def notes(rig: FakeBench) -> list[str]:
    return [note for event in rig.shown if isinstance(event, Decided) for note in event.notes]


def test_a_bench_that_does_not_adapt_is_its_plan(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    pace = paced(rig, Clock())
    assert pace.needs(rig.plan.list_runs()) == list(rig.plan.list_runs())
    assert [run.repeat for run in pace.runs(rig.plan.list_runs())] == [1, 2]
    assert "decided" not in rig.told() and "left_out" not in read_state(
        rig.bench.path / "bench.json"
    )
    assert notes(rig) == [] and pace.errors == []
    assert [len(event.runs) for event in rig.shown if isinstance(event, RunsPlanned)] == [2]
    assert not any(isinstance(event, BlockOver) for event in rig.shown)


def test_equal_speeds_are_narrow_after_the_planned_repeats(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2, until_ci=0.05)
    pace = paced(rig, Clock())
    assert [run.repeat for run in pace.needs(rig.plan.list_runs())] == [1, 2, 1]
    assert executed(rig, pace, [0.5]) == [1, 2]
    (decided,) = [entry.fields for entry in rig.bench.events() if entry.event == Event.DECIDED]
    assert (decided["reason"], decided["blocks"]) == (
        "narrow",
        2,
    ) and "every 95 % interval was within" in notes(rig)[0]
    assert [event.repeat for event in rig.shown if isinstance(event, BlockOver)] == [1, 2]


def test_unequal_speeds_are_repeated_up_to_the_most_and_each_block_is_written_down_before_it_starts(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=2, until_ci=0.001, max_repeats=3)
    written = []
    rig.when["planned"] = lambda: written.append(len(rig.bench.record().runs))
    assert executed(rig, paced(rig, Clock()), [0.5, 0.4, 0.6]) == [1, 2, 3]
    assert written == [2, 2, 3]
    reasons = [
        entry.fields["reason"] for entry in rig.bench.events() if entry.event == Event.DECIDED
    ]
    assert reasons == ["wide", "most"] and len(rig.bench.record().plan or {}) == 3


def test_a_run_that_does_not_fit_into_the_budget_is_left_out_and_named(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=3, budget_s=100.0)
    clock = Clock()
    assert executed(rig, paced(rig, clock, expected_s=30.0), [0.5], clock, took_s=60.0) == [1, 2]
    record = rig.bench.record()
    assert record.left_out == (rig.plan.list_runs()[2].run_id,) and len(record.runs) == 2
    assert (
        list(record.notes) == ["left out for the budget of 100 s: 1 run, 1 of 2n1g"] == notes(rig)
    )
    left = [event.left_s for event in rig.shown if isinstance(event, BlockOver)]
    assert left == [40.0, 0.0]


def test_a_budget_that_holds_no_run_at_all_is_an_error(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=1, budget_s=10.0)
    pace = paced(rig, Clock(), expected_s=11.0)
    assert list(pace.runs(rig.plan.list_runs())) == []
    (error,) = pace.select_errors([])
    assert error.kind == "budget_over" and "before the first run of 2n1g fp32" in error.message
    assert pace.select_errors([RunError("x", kind="rank_failed")])[0].kind == "rank_failed"


def test_who_goes_on_with_a_bench_that_has_ended_by_its_budget_runs_nothing_and_says_the_same(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=1, budget_s=10.0)
    list(paced(rig, Clock(), expected_s=11.0).runs(rig.plan.list_runs()))
    again = paced(rig, Clock())
    assert list(again.runs([])) == [] and [error.kind for error in again.errors] == ["budget_over"]


@pytest.mark.parametrize(("spent_s", "repeats"), [(0.0, [1]), (9.5, [])])
def test_what_earlier_controllers_spent_counts_for_the_budget(
    tmp_path: Path, spent_s: float, repeats: list[int]
) -> None:
    rig = FakeBench(tmp_path, repeats=1, budget_s=10.0)
    rig.bench.event(Event.BEGUN, at=100.0)
    rig.bench.event(Event.PLANNED, at=100.0 + spent_s, run="x")
    rig.bench.event(Event.BEGUN, at=500.0)
    assert [
        run.repeat for run in paced(rig, Clock(), expected_s=1.0).runs(rig.plan.list_runs())
    ] == repeats

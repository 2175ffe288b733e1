"""One process that conducts a bench: what it writes at its beginning and its end, and which errors
decide its exit status.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.controller.controller import PROGRESS_LOG, Controller
from orchestrator.controller.events import Decided, PlanMade, RunOver, Started
from orchestrator.errors import DataError, RunError
from orchestrator.inventory import NO_SECRETS, Redaction
from orchestrator.record.journal import Entry, Event
from orchestrator.record.ownership import holder, take
from tests.support.fake_bench import IMPATIENT, INVENTORY, FakeBench, training
from tests.support.fake_supervisor import Rank


def conducted(
    rig: FakeBench, controller: Controller | None = None
) -> tuple[list[tuple[int, str, str]], Entry]:
    """Conduct the bench; return its errors as (exit code, kind, host) and the event of its end."""
    errors, _ = (controller or rig.controller()).conduct(rig.show)
    over = rig.bench.events()[-1]
    assert over.event == Event.OVER and [error["kind"] for error in over.errors] == [
        error.kind for error in errors
    ]
    assert over.fields["code"] == (errors[0].exit_code if errors else 0)
    return [(error.exit_code, error.kind, error.host) for error in errors], over


def go_on(rig: FakeBench, *, retry_failed: bool = False) -> Controller:
    def connect(hosts: Any, redaction: Redaction) -> Any:
        assert [host.name for host in hosts] == [
            "a",
            "b",
        ] and redaction == rig.cluster.redaction != NO_SECRETS
        return rig.cluster

    return Controller.go_on(
        rig.bench,
        rig.bench.path.parent,
        connect,
        retry_failed=retry_failed,
        argv=["orch", "resume"],
    )


def test_a_bench_that_goes_well_is_begun_and_over_and_let_go(rig: FakeBench) -> None:
    controller = rig.controller()
    assert holder(rig.bench) is not None
    errors, results = controller.conduct(rig.show)
    assert errors == [] and [result.throughput is not None for result in results] == [True]
    events = rig.bench.events()
    assert (events[0].event, events[0].fields) == (Event.BEGUN, {"argv": ["orch"]})
    assert (events[-1].event, events[-1].fields) == (Event.OVER, {"code": 0, "errors": []})
    assert holder(rig.bench) is None and rig.cluster.nodes == {}
    assert (rig.bench.path / PROGRESS_LOG).read_text() == f"{rig.first.run_id} finished\n"
    assert (rig.bench.path / PROGRESS_LOG).stat().st_mode & 0o777 == 0o600


def test_a_bench_without_anything_left_to_do_says_so(rig: FakeBench) -> None:
    def told() -> list[str]:
        return [note for event in rig.shown if isinstance(event, Decided) for note in event.notes]

    conducted(rig)
    assert told() == []
    assert conducted(rig, go_on(rig))[0] == []
    (note,) = told()
    assert note.startswith("all runs of this bench are over; to repeat those that failed: ")


def test_a_run_that_is_over_is_shown_with_its_result(rig: FakeBench) -> None:
    conducted(rig)
    (over,) = [event for event in rig.shown if isinstance(event, RunOver)]
    assert (
        over.result
        and over.result.throughput
        and round(over.result.throughput.samples_per_s) == 512
    )


def test_a_plan_that_adapts_is_told_in_words(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=1, budget_s=3600.0)
    conducted(rig)
    assert [event.words for event in rig.shown if isinstance(event, PlanMade)] == [
        "1 cell, 1 repeat; a budget of 3600 s"
    ]


def test_a_failed_rank_ends_a_bench_with_1(rig: FakeBench) -> None:
    rig.runs(b=lambda order: {1: Rank(b"", 3, 0.05)})
    errors, over = conducted(rig)
    assert errors == [(1, "rank_failed", "b")] and over.errors[0]["run_id"] == rig.first.run_id


def test_nodes_that_cannot_be_reached_end_it_with_3_and_all_are_named(rig: FakeBench) -> None:
    rig.a.away = rig.b.away = True
    errors, _ = conducted(rig)
    assert errors == [
        (3, "host_unreachable", "a"),
        (3, "host_unreachable", "b"),
    ] and rig.told() == ["begun", "over"]


def test_a_lost_node_ends_it_with_3(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT)
    rig.runs(lambda order: {order["node_rank"]: Rank()})
    rig.when[Started] = lambda: setattr(rig.b, "silent", True)
    assert conducted(rig)[0] == [(3, "node_lost", "b")]


def test_an_unfit_node_ends_it_with_1_before_anything_is_planned(rig: FakeBench) -> None:
    rig.b.facts = {"disk_error": "Read-only file system"}
    assert conducted(rig)[0] == [(1, "node_unfit", "b")] and not rig.run().path.exists()


def test_a_signal_ends_it_with_its_number_whatever_else_failed(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    rig.runs(b=lambda order: {1: Rank(b"", 3, 0.05)})
    rig.when[RunOver] = lambda: setattr(rig.interrupt, "signal", 15)
    errors, over = conducted(rig)
    assert [(code, kind) for code, kind, _ in errors] == [(143, "interrupted"), (1, "rank_failed")]
    assert over.fields["code"] == 143
    assert not rig.run(1).path.exists()


def test_logs_that_prove_nothing_end_it_with_4(rig: FakeBench) -> None:
    rig.runs(lambda order: {order["node_rank"]: Rank(b"", 0, 0.0)})
    errors, _ = conducted(rig)
    assert [(code, kind) for code, kind, _ in errors] == [(4, "log_unmatched")]
    assert rig.run().manifest_content()["outcome"]["state"] == "finished"


def test_logs_that_come_home_altered_end_it_with_4_and_do_not_stop_it(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    rig.b.corrupt_fetches = 2
    errors, _ = conducted(rig)
    assert [(code, kind) for code, kind, _ in errors] == [
        (4, "result_invalid")
    ] and "not_collected" in rig.told()
    assert [rig.run(number).manifest_content()["outcome"]["state"] for number in (0, 1)] == [
        "finished",
        "finished",
    ]


def test_a_bench_that_another_controller_conducts_is_refused(rig: FakeBench) -> None:
    taken = take(rig.bench)
    for begin in (rig.controller, lambda: go_on(rig)):
        with pytest.raises(RunError) as caught:
            begin()
        assert caught.value.kind == "run_in_use"
    taken.release()
    assert rig.told() == []


def test_who_goes_on_watches_the_run_that_was_under_way_and_does_the_rest(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    rig.runs(training(rig.spec, after_s=0.5))

    class Killed(BaseException):
        pass

    def dies() -> None:
        rig.when.clear()
        for node in rig.nodes.values():
            for supervisor in node.supervisors.values():
                supervisor.lines.clear()  # the system closes what a dead controller had open
        raise Killed

    rig.when[Started] = dies
    first = rig.controller()
    with pytest.raises(Killed):
        first.conduct(rig.show)
    first.ownership.release()
    assert "over" not in rig.told()
    errors, _ = conducted(rig, go_on(rig))
    assert errors == [] and rig.told().count("begun") == 2 and rig.told().count("taken_over") == 1
    assert [rig.run(number).manifest_content()["outcome"]["state"] for number in (0, 1)] == [
        "finished",
        "finished",
    ]
    assert rig.told().count("planned") == 2 and rig.bench.record().superseded == {}


@pytest.mark.parametrize("retry_failed", [False, True])
def test_a_run_that_failed_of_itself_is_repeated_only_where_asked_for(
    rig: FakeBench, retry_failed: bool
) -> None:
    rig.runs(b=lambda order: {1: Rank(b"", 3, 0.05)})
    conducted(rig)
    rig.runs(training(rig.spec))
    errors, _ = conducted(rig, go_on(rig, retry_failed=retry_failed))
    assert [kind for _, kind, _ in errors] == ([] if retry_failed else ["rank_failed"])
    assert list(rig.bench.record().superseded) == [rig.first.run_id] * retry_failed


def test_a_bench_whose_plan_has_changed_is_named_and_let_go(rig: FakeBench) -> None:
    rig.source.write_text(INVENTORY.replace("10.11.0.3", "10.11.0.9"))
    with pytest.raises(DataError) as caught:
        go_on(rig)
    assert caught.value.kind == "plan_changed" and holder(rig.bench) is None and rig.told() == []


def test_runs_that_are_borrowed_stand_in_the_bench_before_its_own(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    lender, rig = FakeBench(tmp_path / "one"), FakeBench(tmp_path / "two", repeats=2)
    conducted(lender)
    conducted(rig, rig.controller(borrowed=[lender.run()]))
    assert (
        rig.told()[:2] == ["begun", "borrowed"]
        and rig.run().manifest_content()["run_id"] == lender.first.run_id
    )

"""Spares in mid-bench: a host that is lost is replaced, and no cell has repeats on different hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.controller.controller import Controller
from orchestrator.controller.events import Decided, RunBegun, RunOver, Started
from orchestrator.controller.scheduler import BlockScheduler
from orchestrator.controller.spares import find_lost_hosts
from orchestrator.errors import Faults, RunError, TransportError
from orchestrator.inventory import Redaction
from orchestrator.inventory.hosts import Host
from orchestrator.record.journal import Event
from orchestrator.record.manifest import read_manifest
from orchestrator.record.pending_work import reopen
from orchestrator.results.bench import read_bench
from tests.support.fake_bench import IMPATIENT, FakeBench, left_in_the_middle, training
from tests.support.fake_node import FakeCluster
from tests.support.fake_supervisor import Rank


def conducted(rig: FakeBench) -> list[tuple[int, str, str]]:
    errors, _ = rig.controller().conduct(rig.show)
    return [(error.exit_code, error.kind, error.host) for error in errors]


def at_start(rig: FakeBench, number: int, fault: Callable[[], Any]) -> None:
    """Let something happen when the run of this number, from 1, has started, which never ends by
    itself.
    """
    begun = 0

    def begins() -> None:
        nonlocal begun
        begun += 1
        event = rig.shown[-1]
        assert isinstance(event, RunBegun)
        rig.runs(
            (lambda order: {order["node_rank"]: Rank()})
            if begun == number
            else training(event.run.spec)
        )

    rig.when[RunBegun] = begins
    rig.when[Started] = lambda: fault() if begun == number else None


def hosts_of(rig: FakeBench) -> dict[str, list[str]]:
    """Return the hosts of every run that counts."""
    return {
        run.run_id.partition("resnet50-")[2].replace("-fp32-", " "): [
            slot["host"] for slot in run.manifest_content()["placement"]["slots"]
        ]
        for run in rig.bench.runs()
    }


def test_a_node_that_dies_in_mid_bench_is_replaced_and_its_cell_is_measured_again_from_the_first_repeat(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=3, spares=["c"])
    at_start(rig, 2, lambda: setattr(rig.b, "silent", True))
    assert conducted(rig) == []
    assert hosts_of(rig) == {
        "2n1g r1-a2": ["a", "c"],
        "2n1g r2-a2": ["a", "c"],
        "2n1g r3": ["a", "c"],
    }
    record = rig.bench.record()
    assert record.replaced == {"b": "c"} and record.spares == ("c",)
    (note,) = record.notes
    repeated = "; 2 runs of its configurations are repeated"
    assert re.match(r"c in place of b: no sign of life for \d+\.\d s", note) and note.endswith(
        repeated
    )
    (event,) = [entry for entry in rig.bench.events() if entry.event == Event.REPLACED]
    assert (event.fields["host"], event.fields["by"]) == ("b", "c")
    assert any(isinstance(shown, Decided) and note in shown.notes for shown in rig.shown)
    # What was measured on the lost host is kept, and does not count.
    assert len(read_bench(rig.bench)) == 3 and len(rig.bench.runs(superseded=True)) == 5


def test_cells_that_were_not_on_the_lost_host_stay_as_they_are(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, nodes=(1, 2), spares=["c"])
    at_start(rig, 3, lambda: setattr(rig.b, "silent", True))
    assert conducted(rig) == []
    pairs = {"2n1g r1-a2": ["a", "c"], "2n1g r2-a2": ["a", "c"]}
    assert hosts_of(rig) == {"1n1g r1": ["a"], "1n1g r2": ["a"], **pairs}


def test_a_host_that_is_lost_between_two_runs_is_replaced_and_a_run_without_it_stays(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, nodes=(1, 2), spares=["c"])
    at_start(rig, 0, lambda: None)

    def fault() -> None:
        event = rig.shown[-1]
        if isinstance(event, RunOver) and event.index == 0:
            rig.b.away = True
            rig.b.break_lines()

    rig.when[RunOver] = fault
    assert conducted(rig) == []
    assert hosts_of(rig) == {
        "1n1g r1": ["a"],
        "1n1g r2": ["a"],
        "2n1g r1": ["a", "c"],
        "2n1g r2": ["a", "c"],
    }
    assert rig.bench.record().superseded == {} and rig.bench.record().replaced == {"b": "c"}


def test_a_bench_goes_on_later_with_the_hosts_that_it_had_last(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, spares=["c", "d"])
    at_start(rig, 1, lambda: setattr(rig.b, "silent", True))
    assert conducted(rig) == []
    opened = reopen(rig.bench)
    assert [host.name for host in opened.hosts] == ["a", "c"] and [
        host.name for host in opened.spares
    ] == ["d"]
    rig.source.write_text(re.sub("  b: .*\\n", "", rig.source.read_text()))
    assert reopen(rig.bench).hosts == opened.hosts, (
        "a host that was replaced may leave the inventory"
    )


@pytest.mark.parametrize("what", ["away", "unfit", "held"])
def test_a_spare_that_is_not_fit_takes_no_place_and_the_next_one_does(
    tmp_path: Path, what: str
) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, spares=["c", "d"])

    def fault() -> None:
        rig.b.silent = True
        if what == "away":
            rig.nodes["c"].away = True
            rig.nodes["c"].break_lines()
        elif what == "unfit":
            rig.nodes["c"].facts = {"disk_error": "Read-only file system"}
        else:
            rig.nodes["c"].facts = {"held_by": "run r9 of ann@desk"}

    at_start(rig, 1, fault)
    assert conducted(rig) == []
    assert set(map(tuple, hosts_of(rig).values())) == {("a", "d")}


def test_without_a_spare_that_is_fit_the_bench_ends_as_without_spares(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, spares=["c"])
    rig.nodes["c"].facts = {"disk_error": "Read-only file system"}
    at_start(rig, 2, lambda: setattr(rig.b, "silent", True))
    assert conducted(rig) == [(3, "node_lost", "b")]
    assert rig.bench.record().replaced == {} and set(map(tuple, hosts_of(rig).values())) == {
        ("a", "b")
    }


@pytest.mark.parametrize("spares", [["c", "d"], ["c"]])
def test_of_two_nodes_that_die_in_one_run_both_are_replaced_or_none(
    tmp_path: Path, spares: list[str]
) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, spares=spares)
    at_start(rig, 2, lambda: [setattr(node, "silent", True) for node in (rig.a, rig.b)])
    ended = conducted(rig)
    if len(spares) == 2:
        assert ended == [] and set(map(tuple, hosts_of(rig).values())) == {("c", "d")}
        assert (
            rig.bench.record().replaced == {"a": "c", "b": "d"}
            and len(rig.bench.record().notes) == 2
        )
        return
    assert (
        len(ended) == 1 and ended[0][:2] == (3, "node_lost") and rig.bench.record().replaced == {}
    )
    why = "no spare takes the place of a,b: 2 are needed, 1 is fit (c); to continue once that has changed: orch resume bench-1"
    assert any(isinstance(shown, Decided) and shown.notes == [why] for shown in rig.shown)
    assert rig.bench.events()[-1].fields["errors"][0]["hint"].endswith(why)


def test_what_is_left_of_a_run_is_said_although_the_run_is_made_again(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, spares=["c"])

    def fault() -> None:
        rig.b.silent = True
        rig.a.unverified = [(4711, "a daemon")]

    at_start(rig, 1, fault)
    errors, _ = rig.controller().conduct(rig.show)
    assert rig.first.run_id in rig.bench.record().superseded
    assert (rig.first.run_id, "not_verified") in [(error.run_id, error.kind) for error in errors]


@pytest.mark.parametrize(
    "when", ["before the first run", "in preflight", "when its logs are collected"]
)
def test_a_host_is_replaced_whenever_it_is_lost(tmp_path: Path, when: str) -> None:
    rig = FakeBench(tmp_path, limits=replace(IMPATIENT, ask_s=0.5), repeats=2, spares=["c"])
    at_start(rig, 0, lambda: None)
    if when == "before the first run":
        rig.b.away = True
    elif when == "in preflight":
        ask = rig.b._facts

        def facts(**request: Any) -> dict[str, Any]:
            rig.b.away = rig.b.silent = True
            rig.b.reached()
            return ask(**request)

        rig.b._facts = facts  # type: ignore[method-assign]
    else:
        fetch = rig.b.fetch

        def fetched(*words: Any, **more: Any) -> Any:
            rig.b.away = True
            rig.b.break_lines()
            return fetch(*words, **more)

        rig.b.fetch = fetched  # type: ignore[method-assign]
    assert conducted(rig) == []
    assert set(map(tuple, hosts_of(rig).values())) == {("a", "c")} and len(hosts_of(rig)) == 2
    assert len(read_bench(rig.bench)) == 2 and rig.bench.record().replaced == {"b": "c"}


def test_a_line_that_breaks_when_logs_are_collected_is_no_lost_host(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=1, spares=["c"])
    at_start(rig, 0, lambda: None)
    fetch = rig.b.fetch

    def fetched(*words: Any, **more: Any) -> Any:
        rig.b.fetch = fetch  # type: ignore[method-assign]
        rig.b.break_lines()
        return fetch(*words, **more)

    rig.b.fetch = fetched  # type: ignore[method-assign]
    conducted(rig)
    assert rig.bench.record().replaced == {} and rig.bench.record().superseded == {}


def resumed(rig: FakeBench) -> list[tuple[int, str, str]]:
    """Let another controller finish the bench, with connections of its own; return its errors."""
    rig.interrupt.signal = 0
    rig.when.clear()
    rig.runs(training(rig.spec))

    def connect(hosts: Sequence[Host], redaction: Redaction) -> Any:
        return FakeCluster([rig.nodes[host.name] for host in hosts], redaction)

    controller = Controller.go_on(
        rig.bench, rig.bench.path.parent, connect, retry_failed=False, argv=["orch", "resume"]
    )
    errors, _ = controller.conduct(rig.show)
    return [(error.exit_code, error.kind, error.host) for error in errors]


def interrupted(rig: FakeBench) -> None:
    """Interrupt a bench in its second run."""
    at_start(rig, 2, lambda: setattr(rig.interrupt, "signal", 15))
    assert [code for code, _, _ in conducted(rig)] == [143]


def test_a_host_that_was_lost_before_the_bench_is_resumed_is_replaced_as_in_its_course(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=3, spares=["c"])
    interrupted(rig)
    rig.b.away = True
    assert resumed(rig) == []
    assert hosts_of(rig) == {
        "2n1g r1-a2": ["a", "c"],
        "2n1g r2-a2": ["a", "c"],
        "2n1g r3": ["a", "c"],
    }
    (note,) = rig.bench.record().notes
    assert re.fullmatch(
        "c in place of b: connection refused .before .*-r[12](-a2)?.; 1 run of .* is repeated", note
    )
    (event,) = [entry for entry in rig.bench.events() if entry.event == Event.REPLACED]
    assert (event.fields["host"], event.fields["by"]) == ("b", "c") and len(
        read_bench(rig.bench)
    ) == 3


def test_a_run_that_is_under_way_without_one_of_its_hosts_is_stopped_and_repeated_on_the_spare(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, spares=["c"])
    left_in_the_middle(rig, started=("a", "b"))
    rig.b.away = True
    rig.b.break_lines()
    assert resumed(rig) == []
    assert hosts_of(rig) == {"2n1g r1-a2": ["a", "c"], "2n1g r2": ["a", "c"]}
    outcome = read_manifest(rig.run()).outcome
    assert outcome and outcome.error and (outcome.state, outcome.error.host) == ("lost", "b")
    assert (
        "controller died while it was being started, and this node is lost: connection refused"
        in outcome.error.message
    )
    assert rig.a.supervisors == {}


def test_a_run_that_is_under_way_without_one_of_its_hosts_is_left_alone_where_there_is_no_spare(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, spares=["c"])
    left_in_the_middle(rig, started=("a", "b"))
    rig.b.away = rig.nodes["c"].away = True
    rig.b.break_lines()
    assert resumed(rig)[0] == (3, "host_unreachable", "b")
    assert read_manifest(rig.run()).outcome is None and rig.bench.record().superseded == {}
    rig.b.away = False
    assert resumed(rig) == [] and set(map(tuple, hosts_of(rig).values())) == {("a", "b")}


def test_nothing_is_measured_again_for_a_bench_that_is_complete(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=IMPATIENT, repeats=2, spares=["c"])
    at_start(rig, 0, lambda: None)
    rig.when[RunOver] = lambda: setattr(rig.b, "away", True)
    rig.when["over"] = rig.b.break_lines
    assert conducted(rig) == [] and resumed(rig) == []
    assert rig.bench.record().replaced == {} and rig.bench.record().superseded == {}


def test_nothing_is_planned_again_without_time_for_it_in_the_budget(tmp_path: Path) -> None:
    rig, now = FakeBench(tmp_path, repeats=3, budget_s=3600.0, spares=["c"]), [0.0]
    pace = BlockScheduler(rig.bench, rig.plan, (), rig.observe, lambda: now[0])
    assert pace.again(rig.first, lambda spec: True) == 0, "no run is over"
    at_start(rig, 0, lambda: None)
    assert conducted(rig) == []
    now[0] = 3601.0
    assert pace.again(rig.first, lambda spec: True) is None and rig.bench.record().superseded == {}
    now[0] = 10.0
    assert pace.again(rig.first, lambda spec: True) == len(rig.bench.record().superseded) == 3


def test_a_failed_program_is_no_lost_host_nor_is_a_host_with_another_key() -> None:
    hosts = [Host("a", "10.11.0.2"), Host("b", "10.11.0.3")]
    gone = TransportError("no route", kind="host_unreachable", host="b")
    failed = RunError("rank 0", kind="rank_failed", host="a")
    assert (
        find_lost_hosts(hosts, [failed])
        == find_lost_hosts(hosts, [RunError("killed", kind="node_lost", host="a")])
        == {}
    )
    assert (
        find_lost_hosts(hosts, [failed, gone])
        == find_lost_hosts(hosts, [Faults([gone])])
        == {"b": gone}
    )
    changed = TransportError("changed", kind="host_key_changed", host="a")
    assert find_lost_hosts(hosts, [changed, gone]) == {}

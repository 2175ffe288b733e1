"""A bench executed on nodes that behave: what stops it, what does not, and what is written down of
each run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.past_cells import dump_past_bench
from orchestrator.controller.busy import wait_until_free
from orchestrator.controller.campaign import ports
from orchestrator.controller.events import Checked, NodeEnded, RunBegun, RunOver, Started, Waiting
from orchestrator.errors import Faults, Interrupted, RunError, TransportError
from orchestrator.inventory.secrets import SHOWN
from orchestrator.record.journal import Event
from orchestrator.record.node_record import exit_record
from orchestrator.results.read import read_run
from tests.support.fake_bench import IMPATIENT, LIMITS, FakeBench, left_in_the_middle, training
from tests.support.fake_supervisor import Rank
from tests.support.secret_forms import all_forms


def test_runs_go_one_after_another_each_collected_before_the_next_one_starts(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    assert rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs()) == []
    one = ["planned", "staged", "armed", "started", "finished", "collected"]
    assert rig.told() == ["preflight", *one, *one]
    results = [read_run(rig.run(number)) for number in (0, 1)]
    assert [round(result.throughput.samples_per_s) for result in results if result.throughput] == [
        512,
        512,
    ]
    assert [event.index for event in rig.shown if isinstance(event, RunOver)] == [0, 1]
    outcome = rig.run().manifest_content()["outcome"]
    assert (
        outcome["clean"] == {name: {"checked": True, "left": []} for name in ("a", "b")}
        and outcome["error"] is None
    )
    assert not rig.a.supervisors and not rig.b.supervisors


def test_a_run_is_asked_for_when_the_one_before_is_over(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    states = []

    def asked():
        for run in rig.plan.list_runs():
            states.append(rig.told().count("collected"))
            yield run

    rig.campaign.execute(asked(), rig.plan.list_runs())
    assert states == [0, 1]


@pytest.mark.parametrize(("loader", "looked_at"), [("synthetic", None), ("native", "/data")])
def test_the_data_set_is_looked_at_only_if_a_run_reads_it(
    rig: FakeBench, loader: str, looked_at: str | None
) -> None:
    requests: list[dict[str, Any]] = []
    answer = rig.a._facts
    rig.a._facts = lambda **request: requests.append(request) or answer(**request)  # type: ignore[method-assign]
    rig.a.transport.host = rig.a.host = replace(
        rig.a.host, vars={**rig.a.host.vars, "data_dir": "/data"}
    )
    runs = [replace(run, spec=replace(run.spec, loader=loader)) for run in rig.plan.list_runs()]
    rig.b.facts = {"disk_error": "Read-only file system"}
    with pytest.raises(Faults):
        rig.campaign.execute(runs, runs)
    assert [request["data_dir"] for request in requests] == [looked_at]


def test_an_unfit_node_refuses_the_bench_before_anything_is_sent(rig: FakeBench) -> None:
    rig.b.facts = {"disk_error": "Read-only file system"}
    with pytest.raises(Faults) as caught:
        rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    assert [(error.host, error.kind) for error in caught.value.errors] == [("b", "node_unfit")]
    assert (
        rig.told() == []
        and not list(rig.b.root.iterdir())
        and any(isinstance(event, Checked) for event in rig.shown)
    )


def test_two_names_of_one_machine_refuse_the_bench(rig: FakeBench) -> None:
    rig.cluster.open()
    rig.b.boot_id, rig.b.transport.host_key = rig.a.boot_id, rig.a.transport.host_key
    with pytest.raises(Faults, match="one machine"):
        rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())


@pytest.mark.parametrize(("times", "state"), [(1, "finished"), (2, "finished"), (3, "failed")])
def test_a_port_that_is_taken_is_replaced_by_another_twice(
    rig: FakeBench, times: int, state: str
) -> None:
    rig.b.refusals = [("port_busy", "port 1: Address already in use")] * times
    errors = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    manifest = rig.run().manifest_content()
    assert manifest["outcome"]["state"] == state and [error.kind for error in errors] == [
        "port_busy"
    ] * (state == "failed")
    assert manifest["placement"]["master_port"] == 20000 + min(times, 2)
    assert manifest["outcome"].get("released", True) is (state == "finished")
    assert rig.started_on() == (["a", "b"] if state == "finished" else [])


def test_a_refusal_that_is_no_taken_port_is_not_tried_again(rig: FakeBench) -> None:
    rig.b.refusals = [("node_busy", "another run holds this node")]
    (error,) = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    assert isinstance(error, Faults) and [(one.kind, one.host) for one in error.errors] == [
        ("node_busy", "b")
    ]
    assert rig.run().manifest_content()["outcome"]["error"]["host"] == "b"
    assert rig.told().count("planned") == 1
    assert not rig.a.folder(rig.first.run_id).exists()


HOLDER = json.dumps(
    {"user": "ann", "controller": "desk", "process": 7, "since": "noon", "run_id": "r9"}
)


def test_a_node_that_another_run_holds_refuses_the_bench_before_its_first_run(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=3)
    rig.b.owner = HOLDER
    with pytest.raises(Faults) as caught:
        rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    (error,) = caught.value.errors
    assert (error.kind, error.host, error.exit_code) == ("node_busy", "b", 1)
    assert error.message == "another run holds this node: run r9 of ann@desk, process 7, since noon"
    assert "--wait" in error.hint and rig.told() == [] and not rig.bench.runs()


def test_a_bench_that_may_wait_begins_when_the_node_is_free(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=replace(LIMITS, wait_s=60.0))
    rig.b.owner = HOLDER
    rig.when[Waiting] = lambda: setattr(rig.b, "owner", None)
    assert rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs()) == []
    (waiting,) = [event for event in rig.shown if isinstance(event, Waiting)]
    assert waiting.holders == {"b": "run r9 of ann@desk, process 7, since noon"}
    assert rig.run().manifest_content()["outcome"]["state"] == "finished"


def test_the_wait_has_a_limit_and_ends_at_an_interrupt(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=replace(LIMITS, wait_s=1.5))
    rig.b.owner = HOLDER
    with pytest.raises(Faults, match=r"holds this node after 1.5 s of waiting: run r9 of ann@desk"):
        rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    rig.when[Waiting] = lambda: setattr(rig.interrupt, "signal", 2)
    wait_until_free(rig.stage, ["a", "b"])
    assert rig.interrupt.signal == 2 and rig.b.owner


def test_a_node_that_is_taken_between_two_runs_ends_the_bench_unless_it_may_wait(
    tmp_path: Path,
) -> None:
    for wait_s, states in ((0.0, ["failed"]), (60.0, ["finished", "finished"])):
        (tmp_path / str(wait_s)).mkdir()
        rig = FakeBench(tmp_path / str(wait_s), repeats=2, limits=replace(LIMITS, wait_s=wait_s))
        rig.b.refusals = [("node_busy", "another run holds this node")]
        errors = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
        assert [error.kind for error in errors] == ([] if wait_s else ["node_busy"])
        assert [run.manifest_content()["outcome"]["state"] for run in rig.bench.runs()] == states


def test_a_failed_run_is_named_with_its_last_words_without_secrets_and_the_bench_goes_on(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    words = b"ValueError: cannot log in with hush-hush\n"

    def program(order):
        return (
            {1: Rank(words, 3, 0.05)}
            if order["run_id"] == rig.first.run_id
            else training(rig.spec)(order)
        )

    rig.runs(b=program)
    (error,) = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    assert (error.host, error.kind, error.message) == (
        "b",
        "rank_failed",
        "rank 1 ended with exit code 3",
    )
    assert "ValueError: cannot log in with" in error.hint and "hush-hush" not in error.hint
    assert [rig.run(number).manifest_content()["outcome"]["state"] for number in (0, 1)] == [
        "failed",
        "finished",
    ]
    assert rig.run().manifest_content()["outcome"]["error"] == error.as_dict()


def test_a_secret_that_ranks_print_in_every_form_is_in_their_raw_logs_only(tmp_path: Path) -> None:
    """It is printed by a rank that fails, and by ranks that train, also where the log grammar reads
    it.
    """
    rig, secret = FakeBench(tmp_path, repeats=3), "hush-hush"
    printed = "\n".join(all_forms(secret)).encode() + b"\n"

    def program(order: Mapping[str, Any]) -> dict[int, Rank]:
        if order["run_id"] == rig.first.run_id:
            return {
                1: Rank(
                    printed
                    + b"x" * 700
                    + secret.encode()
                    + b"y" * 700
                    + b"\nValueError: "
                    + printed,
                    3,
                    0.05,
                )
            }
        ranks = training(rig.spec)(order)
        done = {
            "world_size": 2,
            "ranks": [0, 1],
            "simulated": True,
            "devices": [secret],
            "remarks": [f"by {secret}"],
        }
        done |= {"output_dtype": secret}
        closing = f"orch done {json.dumps(done)}\n".encode()
        return {
            number: replace(
                rank, out=printed + rank.out.partition(b"orch done")[0] + closing * (number == 0)
            )
            for number, rank in ranks.items()
        }

    rig.runs(program)
    errors, results = rig.controller().conduct(rig.show)
    assert (
        len(errors) == 1
        and "last lines of rank-1" in errors[0].hint
        and [bool(result.throughput) for result in results] == [False, True, True]
    )
    history = dump_past_bench(rig.bench, "b", [read_run(run) for run in rig.bench.runs()])
    files = [
        path for path in rig.bench.path.rglob("*") if path.is_file() and "logs" not in path.parts
    ]
    assert {path.name for path in files} >= {
        "bench.json",
        "events.jsonl",
        "manifest.json",
        "throughput.json",
        "progress.log",
        "b.json",
    }
    texts = {path: path.read_text() for path in files}
    texts |= {
        Path("error"): str(errors[0]),
        Path("results"): repr(results),
        Path("history"): json.dumps(history),
    }
    parts = ("hush-hus", "ush-hush", "aHVzaC1odXNo", "h1c2gtaHVz", "odXNoLWh1c2", "687573682d")
    assert {path: part for path, text in texts.items() for part in parts if part in text} == {}
    raw = rig.run().log_path("b", "rank-1.out").read_bytes()
    assert secret.encode() in raw and SHOWN in errors[0].hint


def test_a_lost_node_ends_the_bench_and_is_not_waited_for_again(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2, limits=IMPATIENT)
    rig.runs(lambda order: {order["node_rank"]: Rank()})
    rig.when[Started] = lambda: setattr(rig.b, "silent", True)
    (error,) = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    assert (error.kind, error.host, error.exit_code) == ("node_lost", "b", 3) and isinstance(
        error, TransportError
    )
    outcome = rig.run().manifest_content()["outcome"]
    assert (
        outcome["clean"]["b"] == {"checked": False, "left": []} and outcome["clean"]["a"]["checked"]
    )
    assert outcome["answers"]["b"]["silent"] and not rig.run(1).path.exists()
    assert "collected" not in rig.told() and "not_collected" not in rig.told()


def broken_after_the_end(rig: FakeBench, **state: bool) -> None:
    """Lose the connection to b once it has ended, while a still runs; then its server is in this
    state.
    """
    rig.runs(a=training(rig.spec, after_s=0.6), b=training(rig.spec))

    def lose() -> None:
        for name, value in state.items():
            setattr(rig.b, name, value)
        rig.b.break_lines()

    ended = iter((lose,))
    rig.when[NodeEnded] = lambda: next(ended, lambda: None)()


def test_a_connection_that_breaks_between_the_end_and_the_pull_is_made_again(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    broken_after_the_end(rig)
    assert rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs()) == []
    assert rig.told().count("collected") == 2 and "not_collected" not in rig.told()
    assert all(read_run(rig.run(number)).throughput for number in (0, 1))


@pytest.mark.parametrize(
    ("state", "kind", "hint"),
    [
        ("stranger", "host_key_changed", ""),
        ("away", "host_unreachable", "when it is back, orch collect fetches its logs"),
    ],
)
def test_a_server_that_is_gone_or_another_between_the_end_and_the_pull_is_told(
    tmp_path: Path, state: str, kind: str, hint: str
) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    broken_after_the_end(rig, **{state: True})
    (error,) = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    assert (error.kind, error.host, error.exit_code) == (
        kind,
        "b",
        3,
    ) and error.run_id == rig.first.run_id
    assert (
        error.hint == hint
        if hint
        else error.hint != "when it is back, orch collect fetches its logs"
    )
    assert "not_collected" in rig.told() and not rig.run(1).path.exists()
    assert exit_record(rig.run(), "a") and not exit_record(rig.run(), "b")


def test_processes_that_are_left_are_ended_and_written_down(rig: FakeBench) -> None:
    rig.b.leftovers = [77]
    assert rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs()) == []
    assert "stop" in rig.b.asked and "stop" not in rig.a.asked
    assert rig.run().manifest_content()["outcome"]["clean"]["b"] == {"checked": True, "left": []}


def test_an_end_that_cannot_be_verified_is_an_error_and_written_down(rig: FakeBench) -> None:
    rig.b.unverified = [(11, "sleep")]
    (error,) = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    assert (error.kind, error.host, error.exit_code) == (
        "not_verified",
        "b",
        1,
    ) and "11 (sleep)" in error.message
    clean = rig.run().manifest_content()["outcome"]["clean"]
    assert (
        clean["b"] == {"checked": True, "left": [], "unverified": [[11, "sleep"]]}
        and "unverified" not in clean["a"]
    )
    assert any(
        "not verified: whether the run has ended on b" in note
        for note in read_run(rig.run()).qualifications
    )


def test_a_node_that_sends_something_else_than_logs_is_named(
    rig: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(run_id: str, *_: object, max_bytes: int, **__: object) -> None:
        assert max_bytes == rig.limits.output_bytes + (4 << 20)  # samples do not count
        raise RunError(
            "expected a piece of a log, got something malformed: bytes",
            kind="result_invalid",
            host="b",
        )

    monkeypatch.setattr(rig.b, "fetch", lie)
    (error,) = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    assert (error.kind, error.host, error.run_id, error.exit_code) == (
        "result_invalid",
        "b",
        rig.first.run_id,
        1,
    )


def test_what_is_no_log_stays_there_and_is_named(rig: FakeBench) -> None:
    logs = rig.a.folder(rig.first.run_id) / "logs"
    rig.when["armed"] = lambda: (logs / "link").symlink_to("/etc/passwd")
    assert rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs()) == []
    (entry,) = [entry for entry in rig.bench.events() if entry.event == Event.LEFT_OUT]
    assert entry.fields == {"host": "a", "names": ["link"]} and entry.run == rig.first.run_id
    assert not (rig.run().path / "logs" / "a" / "link").exists()


def test_a_signal_between_two_runs_decides_the_end(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    rig.when[RunOver] = lambda: setattr(rig.interrupt, "signal", 2)
    (error,) = rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    assert isinstance(error, Interrupted) and (error.exit_code, error.hint) == (
        130,
        "to continue: orch resume bench-1",
    )
    assert (
        rig.run().manifest_content()["outcome"]["state"] == "finished"
        and not rig.run(1).path.exists()
    )


def test_a_run_that_nobody_started_is_taken_back(rig: FakeBench) -> None:
    campaign = left_in_the_middle(rig, started=())
    assert campaign.take_over(rig.first) is None
    assert not rig.a.folder(rig.first.run_id).exists() and rig.started_on() == []


def test_a_run_that_goes_on_everywhere_is_watched_to_its_end(rig: FakeBench) -> None:
    outcome = left_in_the_middle(rig, started=("a", "b")).take_over(rig.first)
    assert outcome and (outcome.state, outcome.error) == ("finished", None)
    assert (
        rig.told()[-3:] == ["taken_over", "finished", "collected"]
        and read_run(rig.run()).throughput
    )


def test_a_run_that_was_started_on_some_nodes_only_is_stopped(rig: FakeBench) -> None:
    outcome = left_in_the_middle(rig, started=("a",)).take_over(rig.first)
    assert (
        outcome
        and outcome.error
        and (outcome.state, outcome.error.kind, outcome.error.host)
        == ("interrupted", "interrupted", "b")
    )
    record = exit_record(rig.run(), "a")
    assert record and record.reason == "interrupted: its controller died while it was being started"
    assert not rig.a.supervisors


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (True, "this node no longer has the run"),
        (False, "the supervisor on this node left no exit record"),
    ],
)
def test_a_run_that_was_lost_in_its_course_is_not_said_to_have_been_starting(
    rig: FakeBench, gone: bool, words: str
) -> None:
    campaign = left_in_the_middle(rig, started=("a", "b"))
    rig.bench.event(Event.STARTED, run=rig.first.run_id, skew_s=0.0, bound_s=0.0, hosts={})
    rig.b.die()
    if gone:
        shutil.rmtree(rig.b.root / "nodes")
    outcome = campaign.take_over(rig.first)
    assert (
        outcome
        and outcome.error
        and (outcome.error.kind, outcome.error.host) == ("interrupted", "b")
    )
    expected = f"the controller died in mid-run, and {words}; the run was stopped on all nodes"
    assert outcome.error.message == expected
    record = exit_record(rig.run(), "a")
    assert record and record.reason == "interrupted: its controller died in mid-run"


def test_each_port_is_given_out_once() -> None:
    numbers = iter([20001, 20001, 20002, 20001, 20003])
    port = ports(lambda _: next(numbers))
    assert [port(), port(), port()] == [20001, 20002, 20003]


def test_the_runs_are_shown_in_their_order(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    rig.campaign.execute(rig.plan.list_runs(), rig.plan.list_runs())
    begun = [event for event in rig.shown if isinstance(event, RunBegun)]
    assert [(event.index, event.run.repeat) for event in begun] == [(0, 1), (1, 2)]

"""What lets another process go on with a bench: who has it, what it was planned with, and which
runs it still owes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.controller import reopen_bench
from orchestrator.controller.events import RunOver, Started, TakenOver, TakingOver
from orchestrator.controller.resume import remaining
from orchestrator.errors import ConfigError, DataError, Faults, RunError
from orchestrator.inventory.devices import chosen
from orchestrator.inventory.read import open_inventory
from orchestrator.plan.bench import Bench
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import open_framework
from orchestrator.plan.limits import Limits
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import Schedule
from orchestrator.record import ownership
from orchestrator.record.bench_record import new_bench_record
from orchestrator.record.manifest import RecordedOutcome
from orchestrator.record.pending_work import reopen, supersede
from orchestrator.record.rundir import BenchDir
from orchestrator.record.state_file import read_state
from tests.support import judge
from tests.support.fake_bench import FakeBench, training
from tests.support.fake_supervisor import Rank
from tests.support.judge import LIMIT_S

INVENTORY = """\
schema: 1
defaults: {gpus: 0, slots: 2, env: {HF_TOKEN: hush}}
secrets: [HF_TOKEN]
hosts:
  a: {address: 127.0.0.2}
  b: {address: 127.0.0.3}
"""
FIRST, SECOND = (f"bench-1.00{repeat}-simulated-resnet50-2n1g-fp32-r{repeat}" for repeat in (1, 2))


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    """A bench of one cell and two repeats on two hosts, planned and not begun."""
    source = tmp_path / "cluster.yaml"
    source.write_text(INVENTORY)
    inventory = open_inventory(str(source))
    folder = open_framework("simulated")
    request = Request("resnet50", nodes=(2,), gpus=(1,), axes={"dtype": ("fp32",)})
    (spec,) = configure(request, [folder], inventory.hosts).specs
    plan = Bench("bench-1", (spec,), {"simulated": folder}, Schedule(repeats=2))
    limits = Limits(lease_s=7.0)
    record = new_bench_record(
        plan,
        {"old-run": "bench-0"},
        inventory.hosts,
        str(source),
        inventory.secrets,
        limits,
        (),
        ["orch"],
    )
    return BenchDir.create(tmp_path / "runs", record.as_dict())


def test_a_bench_is_read_back_as_it_was_planned(bench: BenchDir) -> None:
    opened = reopen(bench)
    assert list(opened.runs) == [FIRST, SECOND]
    assert [
        (run.repeat, run.spec.shape, run.spec.dtype, run.bench_id) for run in opened.runs.values()
    ] == [
        (1, "2n1g", "fp32", "bench-1"),
        (2, "2n1g", "fp32", "bench-1"),
    ]
    assert opened.runs[FIRST].spec.origins["dtype"] == "command line"
    assert [host.name for host in opened.hosts] == ["a", "b"] and opened.limits == Limits(
        lease_s=7.0
    )


def test_devices_that_options_chose_are_those_of_the_resumed_bench(
    bench: BenchDir, tmp_path: Path
) -> None:
    (tmp_path / "gpu.yaml").write_text("schema: 1\nhosts: {a: {gpus: 4, address: 127.0.0.2}}\n")
    inventory = open_inventory(str(tmp_path / "gpu.yaml"))
    hosts = chosen(inventory, inventory.hosts, ["1-2"], {})
    folder = open_framework("simulated")
    (spec,) = configure(Request("resnet50", nodes=(1,), gpus=(2,)), [folder], hosts).specs
    plan = Bench("bench-2", (spec,), {"simulated": folder}, Schedule(repeats=1))
    record = new_bench_record(
        plan,
        {},
        hosts,
        str(tmp_path / "gpu.yaml"),
        (),
        Limits(),
        (),
        ["orch"],
        None,
        {"a": "1,2"},
        ["a note"],
    )
    opened = reopen(made := BenchDir.create(tmp_path / "runs", record.as_dict()))
    assert opened.hosts == tuple(hosts) and opened.hosts[0].gpus == 2
    assert made.record().notes == ("a note",)


def test_secrets_are_not_in_the_record_and_a_new_one_changes_no_plan(
    bench: BenchDir, tmp_path: Path
) -> None:
    assert "hush" not in (bench.path / "bench.json").read_text()
    (tmp_path / "cluster.yaml").write_text(INVENTORY.replace("hush", "other"))
    assert len(reopen(bench).runs) == 2


def test_what_becomes_a_secret_after_the_plan_changes_none_and_is_not_shown(
    bench: BenchDir, tmp_path: Path
) -> None:
    record = read_state(bench.path / "bench.json")
    record["planned_with"]["hosts"]["a"]["env"]["HF_TOKEN"] = (
        "hush"  # an earlier version took it for no secret
    )
    (bench.path / "bench.json").write_text(json.dumps(record))
    assert len(reopen(bench).runs) == 2
    (tmp_path / "cluster.yaml").write_text(INVENTORY.replace("slots: 2", "slots: 1"))
    with pytest.raises(DataError) as caught:
        reopen(bench)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("127.0.0.3", "127.0.0.9", "hosts.b.address: planned '127.0.0.3', now '127.0.0.9'"),
        (
            "slots: 2",
            "slots: 1",
            "hosts.a.slots: planned 2, now 1; hosts.b.slots: planned 2, now 1",
        ),
        ("  b: {address: 127.0.0.3}\n", "", "expected the hosts b, got an inventory without them"),
    ],
)
def test_what_has_changed_is_named(
    bench: BenchDir, tmp_path: Path, old: str, new: str, words: str
) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY.replace(old, new))
    with pytest.raises(DataError) as caught:
        reopen(bench)
    assert caught.value.kind == "plan_changed" and words in caught.value.message
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    assert reopen(bench).hosts


def test_no_job_is_submitted_for_a_bench_whose_framework_has_changed(
    bench: BenchDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has no Slurm: a job that was to be submitted would be an error of its own."""
    record = read_state(bench.path / "bench.json")
    record["job"] = ["--nodes=2"]
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    (bench.path / "bench.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="sbatch"):
        reopen_bench(bench, accept_new=False)
    record["planned_with"]["frameworks"]["simulated"]["payload"]["train_simulated.py"] = "another"
    (bench.path / "bench.json").write_text(json.dumps(record))
    with pytest.raises(
        DataError, match=r"frameworks.simulated.payload.train_simulated.py: the file has changed"
    ):
        reopen_bench(bench, accept_new=False)


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.pop(key)


@pytest.mark.parametrize(
    "damage",
    [
        _without("plan"),
        _without("cells"),
        _without("planned_with"),
        lambda record: record["plan"].pop(SECOND),
        lambda record: record["plan"][FIRST].update(cell=3),
        lambda record: record["cells"][0]["spec"].pop("dtype"),
        lambda record: record["limits"].update(surprise=1),
        lambda record: record.update(planned_with=[]),
    ],
)
def test_a_damaged_record_is_named_and_not_guessed_at(
    bench: BenchDir, damage: Callable[[dict[str, Any]], None]
) -> None:
    record = read_state(bench.path / "bench.json")
    damage(record)
    (bench.path / "bench.json").write_text(json.dumps(record))
    with pytest.raises(DataError) as caught:
        reopen(bench)
    assert caught.value.kind == "state_damaged" and "bench.json" in caught.value.where


def test_a_fresh_attempt_takes_the_place_of_a_run_and_the_old_one_stays_known(
    bench: BenchDir,
) -> None:
    run = reopen(bench).runs[FIRST]
    second = supersede(bench, run)
    third = supersede(bench, second)
    assert (second.run_id, third.run_id) == (f"{FIRST}-a2", f"{FIRST}-a3")
    assert bench.record().runs == ("old-run", f"{FIRST}-a3", SECOND)
    assert bench.record().superseded == {FIRST: f"{FIRST}-a2", f"{FIRST}-a2": f"{FIRST}-a3"}
    assert [(run_id, run.repeat) for run_id, run in reopen(bench).runs.items()] == [
        (f"{FIRST}-a3", 1),
        (SECOND, 2),
    ]


@pytest.mark.parametrize(
    ("state", "kind", "expected"),
    [
        ("finished", "", True),
        ("failed", "rank_failed", True),
        ("failed", "run_timeout", True),
        ("failed", "output_limit", True),
        ("failed", "lease_expired", False),
        ("failed", "interrupted", False),
        ("failed", "start_timeout", False),
        ("interrupted", "interrupted", False),
        ("lost", "node_lost", False),
        ("lost", "node_rebooted", False),
    ],
)
def test_a_run_counts_that_finished_or_failed_of_itself(
    state: str, kind: str, expected: bool
) -> None:
    outcome = RecordedOutcome.of({"state": state, "error": {"kind": kind} if kind else None}, "r1")
    assert outcome and outcome.counts is expected


def test_one_controller_at_a_time_has_a_bench(bench: BenchDir) -> None:
    assert ownership.holder(bench) is None
    taken = ownership.take(bench)
    who = ownership.holder(bench)
    assert who and who.process == os.getpid()
    with pytest.raises(RunError) as caught:
        ownership.take(bench)
    assert caught.value.kind == "run_in_use" and f"process {os.getpid()}" in caught.value.message
    taken.release()
    assert ownership.holder(bench) is None
    ownership.take(bench).release()


def _other(bench: BenchDir) -> subprocess.Popen[str]:
    """Start another process that has the bench."""
    code = (
        "import pathlib, sys, time\nfrom orchestrator.record import ownership\n"
        "from orchestrator.record.rundir import BenchDir\n"
        "taken = ownership.take(BenchDir(pathlib.Path(sys.argv[1])))\nprint('on', flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(bench.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "on\n"
    return process


def test_a_dead_controllers_bench_is_free_although_its_record_stays(bench: BenchDir) -> None:
    with _other(bench) as process:
        who = ownership.holder(bench)
        assert who and who.process == process.pid
        process.kill()
    assert ownership.holder(bench) is None
    assert str(process.pid) in (bench.path / "owner.lock").read_text()
    ownership.take(bench).release()


def test_only_the_very_process_that_has_a_bench_is_signalled(bench: BenchDir) -> None:
    with _other(bench) as process:
        who = ownership.holder(bench)
        assert who
        elsewhere = ownership.Holder(who.user, "another-machine", who.process, who.ticks, who.since)
        reused = ownership.Holder(who.user, who.controller, who.process, who.ticks + 1, who.since)
        assert not elsewhere.signal(signal.SIGTERM) and not reused.signal(signal.SIGTERM)
        assert process.poll() is None
        assert who.signal(signal.SIGTERM) and process.wait(LIMIT_S) == -signal.SIGTERM
        assert not who.signal(signal.SIGTERM)


def test_an_unreadable_record_of_a_held_bench_is_still_a_refusal(bench: BenchDir) -> None:
    taken = ownership.take(bench)
    (bench.path / "owner.lock").write_text("}")
    with pytest.raises(RunError, match="its record cannot be read"):
        ownership.take(bench)
    assert ownership.holder(bench)
    taken.release()


@pytest.fixture
def rig(tmp_path: Path) -> FakeBench:
    """A bench of two repeats on nodes that behave."""
    return FakeBench(tmp_path, repeats=2)


class Killed(BaseException):
    """The controller dies."""


def killed_while_running(rig: FakeBench, after_s: float) -> None:
    """Have the first run under way on both nodes, and its controller dead."""

    def dies() -> None:
        for node in rig.nodes.values():
            for supervisor in node.supervisors.values():
                supervisor.lines.clear()  # the system closes what a dead controller had open
        rig.when.clear()
        raise Killed

    rig.runs(training(rig.spec, after_s=after_s))
    rig.when[Started] = dies
    with pytest.raises(Killed):
        rig.campaign.execute([rig.first], [rig.first])
    rig.cluster.close()


def owed(rig: FakeBench, **more: bool) -> tuple[list[str], list[str]]:
    """Return the runs that the bench still owes, and the kinds of the errors that count."""
    campaign = rig.campaign
    runs = remaining(campaign, reopen(rig.bench).runs, **more)
    return [run.run_id.rpartition("-")[2] for run in runs], [
        error.kind for error in campaign.errors
    ]


def test_runs_that_were_never_written_are_owed_as_planned(rig: FakeBench) -> None:
    assert owed(rig) == (["r1", "r2"], []) and rig.cluster.nodes == {}


def test_a_run_that_finished_is_not_owed_again(rig: FakeBench) -> None:
    rig.campaign.execute([rig.first], [rig.first])
    assert owed(rig) == (["r2"], [])


def test_a_run_that_failed_of_itself_is_an_error_again_or_repeated_where_asked_for(
    rig: FakeBench,
) -> None:
    rig.runs(b=lambda order: {1: Rank(b"", 3, 0.05)})
    rig.campaign.execute([rig.first], [rig.first])
    assert owed(rig) == (["r2"], ["rank_failed"])
    assert owed(rig, retry_failed=True) == (["a2", "r2"], [])


def test_a_run_that_measured_nothing_is_repeated_under_another_name(rig: FakeBench) -> None:
    rig.runs(lambda order: {order["node_rank"]: Rank()})
    rig.when[Started] = lambda: rig.b.supervisors[rig.first.run_id].stop("cancelled by me")
    rig.campaign.execute([rig.first], [rig.first])
    assert owed(rig) == (["a2", "r2"], []) and rig.run().path.exists()


def test_a_run_of_which_only_the_journal_knows_is_not_written_over(rig: FakeBench) -> None:
    rig.bench.event("planned", run=rig.first.run_id, port=20000)
    assert owed(rig) == (["a2", "r2"], [])


def test_a_run_that_goes_on_without_its_controller_is_watched_to_its_end(rig: FakeBench) -> None:
    killed_while_running(rig, after_s=0.5)
    assert owed(rig) == (["r2"], [])
    assert rig.run().manifest_content()["outcome"]["state"] == "finished"
    assert [type(event) for event in rig.shown if isinstance(event, (TakingOver, TakenOver))] == [
        TakingOver,
        TakenOver,
    ]


def test_a_run_that_ended_without_its_controller_is_read_from_its_records(rig: FakeBench) -> None:
    killed_while_running(rig, after_s=0.0)
    judge.wait_for(
        lambda: not any(node.supervisors for node in rig.nodes.values()), 5, "it does not end"
    )
    assert (
        owed(rig) == (["r2"], []) and rig.run().manifest_content()["outcome"]["state"] == "finished"
    )
    assert rig.run().manifest_content()["start"]["skew_s"] >= 0


def test_a_run_whose_supervisor_is_gone_on_one_node_is_stopped_and_repeated(rig: FakeBench) -> None:
    killed_while_running(rig, after_s=30.0)
    rig.b.die()
    assert owed(rig) == (["a2", "r2"], [])
    outcome = rig.run().manifest_content()["outcome"]
    assert outcome["state"] == "interrupted" and not rig.a.supervisors
    assert outcome["error"]["host"] == "b"


def test_what_may_be_left_of_a_run_that_is_taken_over_is_an_error_of_the_bench(
    rig: FakeBench,
) -> None:
    killed_while_running(rig, after_s=30.0)
    rig.b.unverified = [(11, "sleep")]
    rig.b.die()
    assert owed(rig) == (["a2", "r2"], ["not_verified"])
    outcome = rig.run().manifest_content()["outcome"]
    assert (
        "b: not verified: process 11 (sleep) may belong to the run" in outcome["error"]["message"]
    )
    assert outcome["clean"]["b"]["unverified"] == [[11, "sleep"]]


def test_a_node_of_a_run_under_way_that_cannot_be_reached_ends_the_attempt(rig: FakeBench) -> None:
    killed_while_running(rig, after_s=30.0)
    rig.b.away = True
    with pytest.raises(Faults) as caught:
        owed(rig)
    assert [error.host for error in caught.value.errors] == ["b"] and rig.run().manifest_content()[
        "outcome"
    ] is None


def test_a_signal_while_a_run_is_taken_over_leaves_nothing_to_be_started(rig: FakeBench) -> None:
    killed_while_running(rig, after_s=30.0)
    rig.when[TakenOver] = lambda: setattr(rig.interrupt, "signal", 2)
    assert (
        owed(rig) == ([], []) and rig.run().manifest_content()["outcome"]["state"] == "interrupted"
    )
    assert not any(isinstance(event, RunOver) for event in rig.shown)

"""What lets another process go on with a bench: who has it, what it was planned with, and which runs it still owes."""

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

from orchestrator.controller.resume import counts
from orchestrator.errors import DataError, RunError
from orchestrator.inventory.read import open_inventory
from orchestrator.plan.bench import Bench, Request, specs
from orchestrator.plan.folders import open_framework
from orchestrator.plan.limits import Limits
from orchestrator.plan.schedule import Schedule
from orchestrator.record import ownership
from orchestrator.record.benchfile import bench_record, reopen, supersede
from orchestrator.record.rundir import BenchDir

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
    (spec,) = specs(request, [folder], inventory.hosts)
    plan = Bench("bench-1", (spec,), {"simulated": folder}, Schedule(repeats=2))
    limits = Limits(lease_s=7.0)
    record = bench_record(plan, {"old-run": "bench-0"}, inventory.hosts, str(source), inventory.secrets, limits, None, ["orch"])
    return BenchDir.create(tmp_path / "runs", record)


def test_a_bench_is_read_back_as_it_was_planned(bench: BenchDir) -> None:
    opened = reopen(bench)
    assert list(opened.runs) == [FIRST, SECOND]
    assert [(run.repeat, run.spec.shape, run.spec.dtype, run.bench_id) for run in opened.runs.values()] == [
        (1, "2n1g", "fp32", "bench-1"),
        (2, "2n1g", "fp32", "bench-1"),
    ]
    assert opened.runs[FIRST].spec.origins["dtype"] == "command line"
    assert [host.name for host in opened.hosts] == ["a", "b"] and opened.limits == Limits(lease_s=7.0)


def test_secrets_are_not_in_the_record_and_a_new_one_changes_no_plan(bench: BenchDir, tmp_path: Path) -> None:
    assert "hush" not in (bench.path / "bench.json").read_text()
    (tmp_path / "cluster.yaml").write_text(INVENTORY.replace("hush", "other"))
    assert len(reopen(bench).runs) == 2


def test_what_becomes_a_secret_after_the_plan_changes_none_and_is_not_shown(bench: BenchDir, tmp_path: Path) -> None:
    record = bench.bench()
    record["planned_with"]["hosts"]["a"]["env"]["HF_TOKEN"] = "hush"  # an earlier version took it for no secret
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
        ("slots: 2", "slots: 1", "hosts.a.slots: planned 2, now 1; hosts.b.slots: planned 2, now 1"),
        ("  b: {address: 127.0.0.3}\n", "", "expected the hosts b, got an inventory without them"),
    ],
)
def test_what_has_changed_is_named(bench: BenchDir, tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY.replace(old, new))
    with pytest.raises(DataError) as caught:
        reopen(bench)
    assert caught.value.kind == "plan_changed" and words in caught.value.message
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    assert reopen(bench).hosts


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
def test_a_damaged_record_is_named_and_not_guessed_at(bench: BenchDir, damage: Callable[[dict[str, Any]], None]) -> None:
    record = bench.bench()
    damage(record)
    (bench.path / "bench.json").write_text(json.dumps(record))
    with pytest.raises(DataError) as caught:
        reopen(bench)
    assert caught.value.kind == "state_damaged" and "bench.json" in caught.value.where


def test_a_fresh_attempt_takes_the_place_of_a_run_and_the_old_one_stays_known(bench: BenchDir) -> None:
    run = reopen(bench).runs[FIRST]
    second = supersede(bench, run)
    third = supersede(bench, second)
    assert (second.run_id, third.run_id) == (f"{FIRST}-a2", f"{FIRST}-a3")
    assert bench.bench()["runs"] == ["old-run", f"{FIRST}-a3", SECOND]
    assert bench.bench()["superseded"] == {FIRST: f"{FIRST}-a2", f"{FIRST}-a2": f"{FIRST}-a3"}
    assert [(run_id, run.repeat) for run_id, run in reopen(bench).runs.items()] == [(f"{FIRST}-a3", 1), (SECOND, 2)]


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
def test_a_run_counts_that_finished_or_failed_of_itself(state: str, kind: str, expected: bool) -> None:
    assert counts({"state": state, "error": {"kind": kind} if kind else None}) is expected


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
    process = subprocess.Popen([sys.executable, "-c", code, str(bench.path)], stdout=subprocess.PIPE, text=True)
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
        assert who.signal(signal.SIGTERM) and process.wait(10) == -signal.SIGTERM
        assert not who.signal(signal.SIGTERM)


def test_an_unreadable_record_of_a_held_bench_is_still_a_refusal(bench: BenchDir) -> None:
    taken = ownership.take(bench)
    (bench.path / "owner.lock").write_text("}")
    with pytest.raises(RunError, match="its record cannot be read"):
        ownership.take(bench)
    assert ownership.holder(bench)
    taken.release()

"""A bench that is left alone, looked at again, stopped from elsewhere, and gone on with."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.e2e.rig import LONG, QUICK, SMALL, Controller, held
from tests.support import faults, judge

SLOW = (
    "--set",
    "compute_ms=200",
    "--steps",
    "20",
    "--warmup-steps",
    "1",
    "--set",
    "peer_timeout_s=30",
)


def test_a_detached_bench_goes_on_and_attach_ends_as_it_does(controller: Controller) -> None:
    words = (
        "--set",
        "fail_at_step=30",
        "--set",
        "fail_rank=1",
        "--set",
        "fail_mode=exit3",
        "--repeats",
        "2",
    )
    begun = controller.orch("bench", *LONG, "--nodes", "2", "--gpus", "1", "--detach", *words)
    assert begun.code == 0 and f"orch attach {controller.bench.name}" in begun.err, begun
    assert "run by" in controller.orch("status").out
    done = controller.orch("attach")
    assert done.code == 1 and "orch: node2: rank 1 ended with exit code 3" in done.err, done
    assert "[2/2]" in done.err and "failed in" in done.err and "2n1g" in done.out, done
    assert judge.ours(controller.lab) == []
    again = controller.orch("attach", "--json")
    assert again.code == 1 and [row["failed"] for row in again.json["rows"]] == [2]


def test_a_detached_bench_that_cannot_begin_says_so_at_once(controller: Controller) -> None:
    done = controller.orch(
        "bench", "resnet50", "-f", "tensorflow", "--nodes", "2", "--no-baseline", "--detach"
    )
    assert done.code == 1 and "expected the probe of tensorflow to run" in done.err, done


def test_cancelling_a_bench_ends_its_controller_too_and_resume_goes_on_with_a_fresh_attempt(
    controller: Controller, tmp_path: Path
) -> None:
    hold = held(controller, "node1", tmp_path / "held")  # until it is cancelled
    words = (*QUICK, "--nodes", "2", "--repeats", "2", "--templates", str(tmp_path / "held"))
    assert controller.orch("bench", *words, "--detach").code == 0
    judge.wait_for(
        lambda: any(event["event"] == "started" for event in controller.events()),
        20,
        "nothing started",
    )
    cancel = controller.orch("cancel", controller.bench.name)
    assert cancel.code == 0 and "stopping its controller" in cancel.out, cancel
    assert f"(bench {controller.bench.name}), " in cancel.err, cancel
    assert judge.ours(controller.lab) == []
    hold.unlink()
    assert controller.orch("attach").code == 143
    (cut,) = controller.runs
    before = {path: path.read_bytes() for path in cut.rglob("*") if path.is_file()}

    done = controller.orch("resume")
    assert done.code == 0, done
    record = json.loads((controller.bench / "bench.json").read_text())
    assert record["superseded"] == {cut.name: f"{cut.name}-a2"} and len(record["runs"]) == 2
    assert {path: path.read_bytes() for path in before} == before, (
        "the run that was cut short was touched"
    )
    assert [row["n"] for row in controller.orch("summarize", "--json").json["rows"]] == [2]
    prune = controller.orch("collect", "--prune")
    assert prune.code == 0 and "\n  pruned: no files of 3 runs are left on node[1-2]\n" in prune.out
    assert not list(
        (controller.lab.node("node1").home / ".orch-node").glob(
            f"nodes/*/runs/{controller.bench.name}*"
        )
    )


def test_a_bench_that_lost_a_node_is_gone_on_with_when_it_is_back(controller: Controller) -> None:
    process = controller.start("bench", *SMALL, *SLOW, "--nodes", "2", "--repeats", "2")
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 20, "no run was planned"
    )
    controller.wait_for_step(2)
    faults.crash(controller.lab, "node2")
    done = controller.end(process, 30)
    assert done.code == 3 and "node2: no sign of life" in done.err, done
    down = controller.orch("resume")
    assert down.code == 3 and "node2" in down.err, down
    faults.boot(controller.lab, "node2")
    done = controller.orch("resume")
    assert done.code == 0, done
    assert [row["n"] for row in controller.orch("summarize", "--json").json["rows"]] == [2]


def test_a_run_whose_folder_is_lost_is_told_and_its_nodes_keep_what_they_have(
    controller: Controller,
) -> None:
    assert controller.orch("bench", *SMALL, "--nodes", "2", "--repeats", "2").code == 0
    lost = controller.runs[-1]
    before = judge.digests(controller.lab, "node1", f".orch-node/nodes/node1/runs/{lost.name}")
    lost.rename(controller.project / "elsewhere")
    for words in (("collect",), ("summarize",), ("archive", "--output", "a.tar")):
        done = controller.orch(*words)
        assert (
            done.code == 4 and f"{lost.name}" in done.out + done.err and "found none" in done.err
        ), done
    assert [
        (row["n"], row["failed"]) for row in controller.orch("summarize", "--json").json["rows"]
    ] == [(1, 0)]
    done = controller.orch("resume")
    assert done.code == 0, done
    assert (
        judge.digests(controller.lab, "node1", f".orch-node/nodes/node1/runs/{lost.name}") == before
    )
    assert controller.runs[-1].name == f"{lost.name}-a2"
    assert [row["n"] for row in controller.orch("summarize", "--json").json["rows"]] == [2]
    assert controller.orch("archive", "--output", "a.tar").code == 0


def test_attach_says_when_the_controller_has_died_and_can_be_left(controller: Controller) -> None:
    process = controller.start("bench", *LONG, "--nodes", "1", "--gpus", "1", "--lease", "3")
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 20, "no run was planned"
    )
    follower, second = controller.start("attach"), controller.start("attach")
    controller.wait_for_step(3)
    assert second.stderr and any(
        line.startswith("[1/1] ") for line in iter(second.stderr.readline, "")
    )
    os.kill(second.pid, signal.SIGINT)
    left = controller.end(second, 10)
    assert left.code == 130 and "still running; to stop it: orch cancel" in left.err, left
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    done = controller.end(follower, 10)
    assert done.code == 1 and "the controller died" in done.err and "orch resume" in done.err, done
    judge.wait_until_clean(controller.lab, 3.0 + 2.0 + 0.5)

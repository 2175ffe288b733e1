"""The controller dies, sleeps, comes back, or meets another one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

from tests.e2e.rig import Controller
from tests.faults.rows.common import GRACE_S, LEASE_S, running
from tests.faults.suite import Trial, row
from tests.support import faults, judge

# Two cells of two repeats, a second each.
CELLS = ("resnet50", "-f", "simulated", "--no-baseline", "--gpus", "1", "--repeats", "2", "--stop-grace", "0.5",
         "--set", "gradient_mb=0.1", "--set", "compute_ms=20", "--steps", "30", "--warmup-steps", "5",
         "--set", "peer_timeout_s=30")  # fmt: skip
BENCH = (*CELLS, "--nodes", "1,4", "--lease", "60")
BENCH_S = 9.0
"""About how long that takes, start of the interpreter included."""


@row("C1", "controller killed at a random instant, then resumed", trials=200, limit_s=180)
def killed_and_resumed(trial: Trial) -> None:
    controller = trial.controller
    process = controller.start("bench", *BENCH)
    time.sleep(trial.random.uniform(0.0, BENCH_S) if trial.full else 4.0)
    process.kill()
    controller.end(process, 10)
    if not list(controller.project.glob("runs/*/bench.json")):
        assert judge.ours(trial.lab) == []
        trial.notes.append("killed before there was a bench")
        return
    begin = time.monotonic()
    done = controller.orch("resume", timeout_s=120)
    assert done.code == 0, done
    trial.stopped_s = time.monotonic() - begin
    assert judge.ours(trial.lab) == [], judge.ours(trial.lab)
    _as_if_undisturbed(controller)
    trial.keep()
    again = controller.orch("resume")
    assert again.code == 0 and "[1/" not in again.err, again


def _as_if_undisturbed(controller: Controller) -> None:
    """Check that each cell and repeat is there once, finished, with all its samples, in the order
    that was planned.
    """
    bench = json.loads((controller.bench / "bench.json").read_text())
    expected = [(1, 1), (4, 1), (4, 2), (1, 2)]
    order = []
    for run in bench["runs"]:
        manifest = json.loads((controller.bench / run / "manifest.json").read_text())
        assert manifest["outcome"]["state"] == "finished", (run, manifest["outcome"])
        assert all(
            state == {"checked": True, "left": []}
            for state in manifest["outcome"]["clean"].values()
        ), run
        order.append((manifest["spec"]["nodes"], manifest["repeat"]))
        log = (controller.bench / run / "logs" / "node1" / "rank-0.out").read_text()
        assert [line.split()[1] for line in log.splitlines() if line.startswith("orch step=")] == [
            f"step={step}" for step in range(31)
        ], run
    assert order == expected, order
    rows = controller.orch("summarize", "--json").json["rows"]
    assert [(row["nodes"], row["n"], row["failed"]) for row in rows] == [(1, 2, 0), (4, 2, 0)], rows


@row("C2", "controller killed, never to come back", trials=20)
def killed_for_good(trial: Trial) -> None:
    controller = trial.controller
    lease_s = LEASE_S if trial.full else 3.0
    process = running(controller, "--lease", str(lease_s))
    time.sleep(trial.random.uniform(0.0, 1.0))
    process.kill()
    trial.clean_within(lease_s + 2.0 + GRACE_S)
    controller.end(process, 10)
    done = controller.orch("collect")
    assert done.code == 0 and done.out.count(" complete") == 5, done
    trial.keep()
    ends = []
    for host in trial.nodes:
        record = controller.exit_record(host)
        ends.append((record["state"], record["reason"].partition(":")[0]))
        # Leases end within a poll of each other: a rank may lose its peer to another node's before
        # its own node's is over.
        if ends[-1] == ("failed", "rank_failed"):
            assert (
                "peer rank"
                in next((controller.runs[-1] / "logs" / host).glob("rank-*.err")).read_text()
            ), record
        else:
            assert ends[-1] == ("stopped", "lease_expired"), record
    assert ("stopped", "lease_expired") in ends, ends


@row("C9", "the controller is killed in mid-run and a node comes back without its work directory")
def recycled_node(trial: Trial) -> None:
    controller, victim = trial.controller, trial.random.choice(trial.nodes)
    process = running(controller, "--lease", str(LEASE_S))
    os.kill(process.pid, signal.SIGKILL)
    controller.end(process, 10)
    faults.kill(trial.lab, victim)
    shutil.rmtree(trial.lab.node(victim).home / ".orch-node")
    faults.boot(trial.lab, victim)
    trial.clean_within(LEASE_S + 2.0 + GRACE_S)
    done = controller.orch("collect")
    assert (
        done.code == 1
        and f"orch: {victim}: run " in done.err
        and "its logs cannot be collected" in done.err
    ), done
    trial.keep(*(name for name in trial.nodes if name != victim))
    interrupted = controller.runs[-1].name
    process = controller.start("resume")
    judge.wait_for(lambda: len(controller.runs) > 1, 30, "no new attempt is made")
    manifest = json.loads((controller.bench / interrupted / "manifest.json").read_text())
    error = manifest["outcome"]["error"]
    assert error["host"] == victim and error["message"].startswith(
        "the controller died in mid-run, and this node no"
    ), error
    process.terminate()
    assert controller.end(process, 30).code == 143


@row("C3", "controller stopped for 20 s, with a lease of 60 s and of 5 s", trials=3, limit_s=180)
def stopped_for_a_while(trial: Trial) -> None:
    stopped_s = 20.0 if trial.full else 4.5
    controller = trial.controller
    process = running(controller, "--lease", "60", "--steps", str(int(stopped_s * 10) + 60))
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(stopped_s)
    os.kill(process.pid, signal.SIGCONT)
    done = controller.end(process, 60)
    assert done.code == 0, done
    trial.keep()

    second = trial.rival()
    process = running(second, "--lease", "3" if not trial.full else str(LEASE_S))
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(stopped_s if trial.full else 6.0)
    left = [proc for proc in judge.ours(trial.lab) if "train_" in proc.cmdline]
    os.kill(process.pid, signal.SIGCONT)
    done = second.end(process, 30)
    assert not left, "the nodes outlived their lease"
    assert done.code == 1 and "no controller renewed the lease" in done.err, done
    assert second.manifest()["outcome"]["error"]["kind"] == "lease_expired"
    trial.keep(controller=second)


@row("C4", "resume of a living bench; resume after inventory or template changed", trials=5)
def resumed_wrongly(trial: Trial) -> None:
    controller = trial.controller
    inventory = controller.project / "cluster.yaml"
    inventory.write_text(trial.lab.inventory.read_text())
    templates = _own_templates(controller.project)
    words = (
        "--hosts",
        str(inventory),
        "--templates",
        str(templates),
        "--lease",
        "3",
        "--nodes",
        "2",
    )
    process = controller.start("bench", *CELLS, "--steps", judge.steps(400), *words)
    judge.wait_for(lambda: _seen(controller, "started"), 30, "nothing was started")
    refused = controller.orch("resume")
    assert (
        refused.code == 1
        and f"process {process.pid}" in refused.err
        and os.uname().nodename in refused.err
    ), refused
    assert "another controller is running this bench" in refused.err
    os.kill(process.pid, signal.SIGKILL)
    controller.end(process, 10)
    judge.wait_until_clean(trial.lab, 3.0 + 2.0 + GRACE_S)

    before = inventory.read_text()
    inventory.write_text(before.replace("10.11.0.3", "10.11.0.99"))
    changed = controller.orch("resume")
    assert (
        changed.code == 4
        and "hosts.node2.address: planned '10.11.0.3', now '10.11.0.99'" in changed.err
    ), changed
    inventory.write_text(before)
    launch = templates / "simulated" / "launch.sh.j2"
    launch.write_text(launch.read_text() + "\n# changed\n")
    changed = controller.orch("resume")
    assert changed.code == 4 and "frameworks.simulated.files" in changed.err, changed
    assert judge.ours(trial.lab) == []
    launch.write_text(launch.read_text().removesuffix("\n# changed\n"))
    done = controller.orch("resume")
    assert done.code == 0, done
    trial.keep()


def _seen(controller: Controller, name: str) -> bool:
    return bool(list(controller.project.glob("runs/*/events.jsonl"))) and any(
        event["event"] == name for event in controller.events()
    )


def _own_templates(project: Path) -> Path:
    folder = project / "templates"
    shutil.copytree(Path(__file__).parents[3] / "templates" / "simulated", folder / "simulated")
    return folder

"""Nodes share one work directory, as in a home on NFS: what is done to one node leaves the others
alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.e2e.rig import Controller
from tests.faults.rows.common import DETECT_S, GRACE_S, LONG, SMALL
from tests.faults.rows.network import stopping
from tests.faults.rows.setup import inventory
from tests.faults.rows.workload import release, workload
from tests.faults.suite import Trial, row
from tests.support import judge
from tests.support.faultlab import shared_folder

LASTING = (*LONG, "--nodes", "2", "--gpus", "1")
HELD = """
def step(number):
    if number == STEPS:
        hold()
"""
_CELL = (
    "--nodes",
    "2",
    "--gpus",
    "1",
    "--set",
    "compute_ms=20",
    "--steps",
    "30",
    "--warmup-steps",
    "5",
    "--repeats",
    "2",
)
CELL = (*SMALL, *_CELL, "--set", "peer_timeout_s=30", "--lease", "60")
CELL_S = 6.0
"""About how long that takes, start of the interpreter included."""


@contextmanager
def two_benches(trial: Trial) -> Iterator[tuple[Controller, list[str], Controller, list[str]]]:
    """Have two controllers with two nodes each; all four nodes share one work directory."""
    names = trial.random.sample(trial.nodes, 4)
    with shared_folder(trial.lab, f"shared-{trial.random.randrange(1 << 30)}") as folder:
        pairs = [(trial.controller, names[:2]), (trial.rival(), names[2:])]
        for owner, nodes in pairs:
            owner.shared = folder
            hosts = {name: {"address": trial.lab.node(name).address} for name in nodes}
            inventory(owner, hosts, name="pair.yaml", variables={"workdir": str(folder)})
        yield (*pairs[0], *pairs[1])


def start(controller: Controller, nodes: Sequence[str], *words: str) -> subprocess.Popen[str]:
    """Start a bench on the two nodes of a controller, and return once its first rank has done a few
    steps.
    """
    process = controller.start("bench", *words, "--hosts", "pair.yaml")
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 20, "no run was planned"
    )
    controller.wait_for_step(3, node=nodes[0])
    return process


def ours_on(trial: Trial, nodes: Sequence[str]) -> list[judge.Proc]:
    """Return the processes of the tool that are on these nodes."""
    return [process for process in judge.ours(trial.lab) if process.node in nodes]


def untouched(
    controller: Controller,
    process: subprocess.Popen[str],
    nodes: Sequence[str],
    pids: dict[str, int],
) -> None:
    """Check that a bench goes on as if nothing had happened, with its supervisors and variables,
    and ends well.
    """
    assert process.poll() is None, controller.end(process, 10)
    assert {name: controller.supervisor(name).pid for name in nodes} == pids
    assert all((controller.node_run(name) / "env.sh").exists() for name in nodes)
    release(controller, nodes)
    done = controller.end(process, 60)
    assert done.code == 0, done


@row("W1", "nodes share the work directory; the supervisor of a run is killed on one of them")
def killed_supervisor(trial: Trial) -> None:
    with two_benches(trial) as (controller, nodes, other, others):
        _, *held = workload(other, HELD)
        beside = start(other, others, *held, "--nodes", "2", "--steps", "20", "--timeout", "600")
        process = start(controller, nodes, *LASTING)
        victim, pids = (
            trial.random.choice(nodes),
            {name: other.supervisor(name).pid for name in others},
        )
        os.kill(controller.supervisor(victim).pid, signal.SIGKILL)
        trial.detected_s = judge.wait_for(
            lambda: stopping(controller), DETECT_S, "it was not noticed"
        )
        done = controller.end(process, 20)
        assert done.code in (1, 3) and judge.names_killed_runner(victim, done.err), done
        trial.stopped_s = judge.wait_for(
            lambda: not ours_on(trial, nodes), GRACE_S + 1.0, lambda: str(ours_on(trial, nodes))
        )
        assert not any((controller.node_run(name) / "env.sh").exists() for name in nodes), (
            "variables were left"
        )
        untouched(other, beside, others, pids)
        trial.keep(*nodes)
        trial.keep(*others, controller=other)


@row(
    "W2",
    "nodes share the work directory; the controller is killed, and the run cancelled or the bench resumed",
    limit_s=180,
)
def killed_controller(trial: Trial) -> None:
    with two_benches(trial) as (controller, nodes, other, others):
        beside = start(other, others, *LASTING)
        pids = {name: other.supervisor(name).pid for name in others}
        for end in (_cancelled, _resumed):
            end(trial, controller, nodes)
            assert ours_on(trial, nodes) == []
            trial.keep(*nodes)
        assert beside.poll() is None, other.end(beside, 10)
        assert {name: other.supervisor(name).pid for name in others} == pids
        other.orch("cancel", "--hosts", "pair.yaml")
        done = other.end(beside, 30)
        assert done.code in (1, 130) and judge.ours(trial.lab) == [], done
        trial.keep(*others, controller=other)


def _cancelled(trial: Trial, controller: Controller, nodes: Sequence[str]) -> None:
    process = start(controller, nodes, *LASTING)
    os.kill(process.pid, signal.SIGKILL)
    controller.end(process, 10)
    # Without a bench it ends all runs of this user: on these two nodes only.
    done = controller.orch("cancel", "--hosts", "pair.yaml")
    assert done.code == 0 and f"stopped {controller.runs[-1].name} on" in done.out, done
    assert controller.orch("collect").code == 0


def _resumed(trial: Trial, controller: Controller, nodes: Sequence[str]) -> None:
    earlier = controller.bench
    process = controller.start("bench", *CELL, "--hosts", "pair.yaml")
    if trial.full:
        time.sleep(trial.random.uniform(1.0, CELL_S))
    else:
        judge.wait_for(lambda: controller.bench != earlier and controller.runs, 60, "no run came")
    process.kill()
    controller.end(process, 10)
    if controller.bench == earlier:
        trial.notes.append("killed before there was a bench")
        return
    done = controller.orch("resume", controller.bench.name, timeout_s=90)
    assert done.code == 0, done
    rows = controller.orch("summarize", controller.bench.name, "--json").json["rows"]
    assert [(entry["nodes"], entry["n"], entry["failed"]) for entry in rows] == [(2, 2, 0)], rows

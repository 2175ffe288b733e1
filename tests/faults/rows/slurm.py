"""Runs in a job of Slurm, through its steps: the controller, a step, the job or a node ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.e2e.rig import Controller, outer_environment
from tests.faults.rows.common import DETECT_S, GRACE_S, LEASE_S, LONG
from tests.faults.rows.control import BENCH, BENCH_S, _as_if_undisturbed
from tests.faults.suite import Trial, row
from tests.support import faults, judge

SPAWNER_S = 70.0
"""A spawner that nobody can reach ends by itself after 60 s."""
CONTACT_S = 10.0
"""A step takes its time to start on a crowded machine."""


def no_slurm() -> str:
    """Return why there is no Slurm here."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun") if not shutil.which(name)]
    if missing or os.geteuid():
        return f"needs root and {', '.join(missing)}"
    # Without it the lab's Slurm ends only what has kept its parents, unlike that of clusters.
    return (
        ""
        if Path("/sys/fs/cgroup/freezer/release_agent").exists()
        else "needs the freezer of control groups v1"
    )


def asked(lab: Lab, *argv: str) -> str:
    """Return what one of Slurm's programs says on the controller's side."""
    variables = outer_environment(Path("/")) | dict(labs.environment(lab))
    command = labs.argv_inside(lab, argv)
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=judge.LIMIT_S, check=True
    ).stdout


@contextmanager
def job(trial: Trial, *options: str) -> Iterator[tuple[Controller, str]]:
    """Have a lab with Slurm and a job on its four nodes; at the end no process and no step of orch
    may be left.
    """
    with trial.own_lab(slurm=True) as controller:
        asked(controller.lab, "salloc", "--no-shell", "-N4", "--quiet", *options)
        yield controller, asked(controller.lab, "squeue", "-ho", "%i").strip()
        nothing_of_slurm(controller, 10.0)


def nothing_of_slurm(controller: Controller, within_s: float) -> None:
    """Wait until no srun of orch runs and Slurm lists no step of it."""
    judge.wait_for(
        lambda: not relays(controller.lab),
        within_s,
        lambda: f"srun runs on: {relays(controller.lab)}",
    )
    judge.wait_for(
        lambda: not steps(controller.lab),
        within_s,
        lambda: f"steps are listed: {steps(controller.lab)}",
    )


def names(controller: Controller) -> list[str]:
    """Return the names of the nodes."""
    return [node.name for node in controller.lab.nodes]


def relays(lab: Lab) -> dict[int, str]:
    """Return the programs srun on the controller's side that belong to the lab, by process. Each
    has a second process.
    """
    commands, parents = {}, {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text() == "srun\n":
                command = (entry / "cmdline").read_text().replace("\0", " ")
                if f"SLURM_CONF={lab.slurm_conf}\0" in (entry / "environ").read_text():
                    commands[int(entry.name)] = command
                    parents[int(entry.name)] = int(
                        (entry / "stat").read_text().rpartition(")")[2].split()[1]
                    )
        except OSError:
            continue
    return {pid: command for pid, command in commands.items() if parents[pid] not in commands}


def steps(lab: Lab) -> list[str]:
    """Return the steps that Slurm lists, without those that belong to the job itself."""
    listed = asked(lab, "squeue", "--steps", "-ho", "%i %j").splitlines()
    return [line for line in listed if line.split()[0].rpartition(".")[2].isdigit()]


def running(controller: Controller, number: str, *words: str) -> subprocess.Popen[str]:
    """Start a bench through the job that lasts, and return once its first rank has done a few
    steps.
    """
    process = controller.start(
        "bench", *LONG, "--nodes", "4", "--gpus", "1", "--hosts", f"srun:{number}", *words
    )
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 40, "no run was planned"
    )
    controller.wait_for_step(3, within_s=40)
    return process


def clean(trial: Trial, controller: Controller, within_s: float) -> None:
    """Wait until no process of ours is left on any node."""
    trial.stopped_s = judge.wait_until_clean(controller.lab, within_s)


@row(
    "Q1",
    "Slurm: the controller is killed at a random instant, then resumed",
    short=False,
    limit_s=240,
    skip=no_slurm,
)
def killed_and_resumed(trial: Trial) -> None:
    with job(trial) as (controller, number):
        process = controller.start("bench", *BENCH, "--hosts", f"srun:{number}")
        time.sleep(trial.random.uniform(0.0, BENCH_S + 6.0) if trial.full else 9.0)
        process.kill()
        controller.end(process, 10)
        if not list(controller.project.glob("runs/*/bench.json")):
            clean(trial, controller, CONTACT_S)
            trial.notes.append("killed before there was a bench")
            return
        done = controller.orch("resume", timeout_s=180)
        assert done.code == 0, done
        clean(trial, controller, CONTACT_S)
        _as_if_undisturbed(controller)
        trial.keep(*names(controller), controller=controller)


@row(
    "Q2",
    "Slurm: the controller is killed, never to come back",
    short=False,
    limit_s=180,
    skip=no_slurm,
)
def killed_for_good(trial: Trial) -> None:
    with job(trial) as (controller, number):
        process = running(controller, number, "--lease", str(LEASE_S))
        os.kill(process.pid, signal.SIGKILL)
        clean(trial, controller, LEASE_S + 2.0 + GRACE_S + 2.0)
        controller.end(process, 10)
        judge.wait_for(
            lambda: not steps(controller.lab), 10, "a step of spawners owns nothing and stays"
        )
        done = controller.orch("collect", timeout_s=90)
        assert done.code == 0 and done.out.count(" complete") == 5, done
        trial.keep(*names(controller), controller=controller)


@row("Q3", "Slurm: the srun of a connection is killed in mid-run", limit_s=180, skip=no_slurm)
def killed_relay(trial: Trial) -> None:
    with job(trial) as (controller, number):
        process = running(controller, number)
        victims = [
            pid for pid, command in relays(controller.lab).items() if "orch-spawners" not in command
        ]
        assert len(victims) == 4, relays(controller.lab)
        for victim in victims if trial.random.choice((True, False)) else victims[:1]:
            os.kill(victim, signal.SIGKILL)
        before = rank_processes(controller)
        time.sleep(4.0)
        assert rank_processes(controller) == before and process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        done = controller.end(process, 60)
        assert done.code == 130, done
        clean(trial, controller, CONTACT_S)
        trial.keep(*names(controller), controller=controller)


def rank_processes(controller: Controller) -> list[int]:
    """Return the training process of each node."""
    return [controller.rank_process(node.name).pid for node in controller.lab.nodes]


@row(
    "Q4",
    "Slurm: the srun of the spawners is killed in mid-run",
    short=False,
    limit_s=180,
    skip=no_slurm,
)
def killed_spawners(trial: Trial) -> None:
    with job(trial) as (controller, number):
        process = running(controller, number)
        (victim,) = [
            pid for pid, command in relays(controller.lab).items() if "orch-spawners" in command
        ]
        os.kill(victim, signal.SIGKILL)
        ended(trial, controller, process, ("the node runner was killed", "SIGKILL", "lost"))
        done = controller.orch("resume", "--retry-failed", "--detach", timeout_s=60)
        assert done.code == 0, done
        judge.wait_for(lambda: len(controller.runs) > 1, 30, "no new attempt is made")
        assert (
            controller.orch(
                "cancel", controller.bench.name, "--hosts", f"srun:{number}", timeout_s=90
            ).code
            == 0
        )
        clean(trial, controller, CONTACT_S)


def ended(
    trial: Trial, controller: Controller, process: subprocess.Popen[str], words: Sequence[str]
) -> str:
    """Wait until a bench is over by itself, with one of these words in its error; nothing may be
    left.
    """
    begin = time.monotonic()
    done = controller.end(process, 90)
    trial.detected_s = time.monotonic() - begin
    assert done.code in (1, 3), done
    assert any(word in done.err for word in words), done
    clean(trial, controller, CONTACT_S)
    return done.err


@row("Q5", "Slurm: the job is cancelled in mid-run", limit_s=180, skip=no_slurm)
def cancelled_job(trial: Trial) -> None:
    with job(trial) as (controller, number):
        process = running(controller, number)
        asked(controller.lab, "scancel", number)
        ended(trial, controller, process, ("cancelled by Slurm",))
        judge.wait_for(lambda: not asked(controller.lab, "squeue", "-h"), 20, "the job is listed")
        whole(trial, controller)


def whole(trial: Trial, controller: Controller) -> None:
    """Compare the logs that came home with those on the nodes, and those that did not with the
    manifest, which names them.
    """
    outcome = json.loads((controller.runs[-1] / "manifest.json").read_text())["outcome"]
    trial.notes.append(f"{outcome['state']}: {json.dumps(outcome.get('error'))[:160]}")
    trial.keep(*names(controller), controller=controller)


@row(
    "Q6",
    "Slurm: the job reaches its time limit in mid-run",
    limit_s=240,
    short=False,
    trials=5,
    skip=no_slurm,
)
def over_time(trial: Trial) -> None:
    with job(trial, "--time=1") as (controller, number):
        process = running(controller, number)
        ended(trial, controller, process, ("cancelled by Slurm",))
        whole(trial, controller)


@row("Q7", "Slurm: a node is cut off in mid-run", limit_s=240, short=False, skip=no_slurm)
def lost_node(trial: Trial) -> None:
    with job(trial, "--no-kill") as (controller, number):
        process = running(controller, number, "--lease", str(LEASE_S))
        victim = trial.random.choice(names(controller))
        faults.link(controller.lab, victim, up=False)
        begin = time.monotonic()
        judge.wait_for(lambda: not rank_left(controller, victim), 30, "the other nodes run on")
        trial.detected_s = time.monotonic() - begin
        assert judge.in_time(trial.detected_s, DETECT_S + GRACE_S + 2.0), trial.detected_s
        done = controller.end(process, 90)
        assert done.code == 3 and victim in done.err, done
        left = LEASE_S + 2.0 + GRACE_S
        judge.wait_for(lambda: not rank_left(controller), left, "the run goes on without a lease")
        clean(trial, controller, SPAWNER_S)
        faults.link(controller.lab, victim, up=True)
        # Slurm ends the steps of a lost node when the node has registered again.
        judge.wait_for(
            lambda: state_of(controller, victim) in ("idle", "allocated", "mixed"),
            90,
            "it does not come back",
        )
        nothing_of_slurm(controller, 60.0)
        trial.keep(*(name for name in names(controller) if name != victim), controller=controller)


def state_of(controller: Controller, node: str) -> str:
    """Return the state of a node as Slurm tells it."""
    return asked(controller.lab, "sinfo", "-hNo", "%T", "-plab", "-n", node).strip()


def rank_left(controller: Controller, victim: str = "") -> bool:
    """Claim that a node besides the victim has a process of a run."""
    return any(proc.environ_run_id and proc.node != victim for proc in judge.ours(controller.lab))


@row("Q8", "Slurm: Ctrl-C in mid-run", short=False, skip=no_slurm)
def interrupted(trial: Trial) -> None:
    with job(trial) as (controller, number):
        process = running(controller, number)
        os.kill(process.pid, signal.SIGINT)
        begin = time.monotonic()
        done = controller.end(process, 60)
        trial.detected_s = time.monotonic() - begin
        assert done.code == 130, done
        clean(trial, controller, CONTACT_S)
        trial.keep(*names(controller), controller=controller)

"""A run hangs: one rank stops, sleeps, loops, waits for something else, or a link between two nodes
is cut.

Every fault comes from outside: signals, control groups, packet filters, and for what happens inside
of Python a sitecustomize that reacts to a signal. A trial passes where the run was ended with the
rank, or the link, that was broken; naming another rank or another node fails it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.e2e.rig import SMALL, Controller
from tests.faults.suite import Trial, row
from tests.support import faults, judge, node_groups

TEMPLATES = Path(__file__).parents[3] / "templates"
INJECTED = Path(__file__).parents[1] / "injected"
HANGS = (
    "--set",
    "compute_ms=100",
    "--steps",
    "100000",
    "--warmup-steps",
    "1",
    "--set",
    "peer_timeout_s=300",
    "--timeout",
    "900",
)
PAUSING_S = 240.0
SOON_S, PATIENT_S, LATE_S = 12.0, 20.0, 45.0
"""At most so many seconds after the fault is a run ended: stopped at once, a short pause could look
like it, work could.
"""


def open_to_faults(trial: Trial, given: str = "") -> tuple[str, ...]:
    """Return the words of a bench of the simulated trainer whose Python loads `sitecustomize`, as
    that of any program would.
    """
    folder = trial.controller.project / "templates" / "simulated"
    if not folder.is_dir():
        shutil.copytree(TEMPLATES / "simulated", folder)
        script = folder / "launch.sh.j2"
        text = script.read_text()
        assert "{{ python }} -s -E -S -u" in text
        text = text.replace("{{ python }} -s -E -S -u", "{{ python }} -u")
        given = given or f"export PYTHONPATH={INJECTED} INJECT_FAULT=$HOME/fault\n"
        script.write_text(text.replace("start() {", given + "start() {", 1))
    return ("--templates", str(folder.parent))


def hanging(trial: Trial) -> tuple[subprocess.Popen[str], int, int]:
    """Start a bench on 2 or 4 nodes; return its process, the number of nodes, and the rank that is
    going to be broken, each in turn."""
    nodes = trial.random.choice((2, 4)) if trial.full else 2
    rank = trial.random.randrange(nodes)
    controller = trial.controller
    process = controller.start(
        "bench", *SMALL, *HANGS, "--nodes", str(nodes), "--gpus", "1", *open_to_faults(trial)
    )

    def planned() -> bool:
        runs = controller.project.glob("runs/*/*/manifest.json")
        return process.poll() is not None or any(runs)

    judge.wait_for(planned, 90, "no run was planned")
    assert process.poll() is None, controller.end(process, 5)
    controller.wait_for_step(40 + trial.random.randrange(20), within_s=90)
    return process, nodes, rank


def told_by_signal(trial: Trial, fault: str, rank: int) -> None:
    """Let a rank break itself, as the sitecustomize of its Python does at a signal."""
    node = trial.nodes[rank]
    (trial.lab.node(node).home / "fault").write_text(fault)
    os.kill(trial.controller.rank_process(node).pid, signal.SIGUSR1)


def named(
    trial: Trial, process: subprocess.Popen[str], rank: int, within_s: float, *words: str
) -> None:
    """Wait until the run is ended, and check that this rank, on its node, is named with these
    words, and nobody else.
    """
    error = ended(trial, process, within_s)
    assert error.get("host") == trial.nodes[rank] and error["message"].startswith(
        f"rank {rank} "
    ), error
    assert all(word in error["message"] for word in words), error
    wrong = [
        line
        for line in accusing(trial.controller)
        if f" s: rank {rank} on {trial.nodes[rank]} " not in line
    ]
    assert not wrong, wrong


def ended(trial: Trial, process: subprocess.Popen[str], within_s: float) -> dict[str, Any]:
    """Wait until the run is being stopped, note how long that took, and return the error in its
    manifest.
    """
    controller = trial.controller
    begun = time.monotonic()

    def is_stopping() -> bool:
        return any(event["event"] in ("stopping", "failed") for event in controller.events())

    judge.wait_for(is_stopping, within_s * 2, lambda: f"it goes on; said: {said(controller)}")
    trial.detected_s = time.monotonic() - begun
    for name in trial.nodes:
        node_groups.thaw(trial.lab, name)
    controller.end(process, 60)
    error: dict[str, Any] = controller.manifest()["outcome"]["error"]
    trial.notes.append(f"{trial.detected_s:.1f} s: {error.get('host')}: {error['message']}")
    return error


def said(controller: Controller) -> list[str]:
    """Return the suspicions in the journal."""
    return [event["words"] for event in controller.events() if event["event"] == "stalled"]


def accusing(controller: Controller) -> list[str]:
    """Return the suspicions that name a rank as the cause."""
    return [line for line in said(controller) if re.search(r"usually \S+ s: ranks? \d", line)]


def _no_freezer() -> str:
    return node_groups.obstacle("freezer")


@row("R1", "a rank is stopped (SIGSTOP)", trials=30, limit_s=300, short=False)
def stopped_rank(trial: Trial) -> None:
    process, _, rank = hanging(trial)
    os.kill(trial.controller.rank_process(trial.nodes[rank]).pid, signal.SIGSTOP)
    named(trial, process, rank, SOON_S, "stopped", "(state T)")


@row("R2", "a rank loops in Python", trials=30, limit_s=300, short=False)
def looping_rank(trial: Trial) -> None:
    process, _, rank = hanging(trial)
    told_by_signal(trial, "loop", rank)
    named(trial, process, rank, LATE_S, "computes")


@row(
    "R3",
    "a rank sleeps, waits for a lock, or for a socket, as a data loader may",
    trials=30,
    limit_s=300,
    short=False,
)
def sleeping_rank(trial: Trial) -> None:
    process, _, rank = hanging(trial)
    told_by_signal(trial, trial.random.choice(("asleep", "lock", "socket")), rank)
    named(trial, process, rank, PATIENT_S, "sleeps", "outside of every collective")


@row("R4", "a rank leaves out its collectives", trials=30, limit_s=300, short=False)
def skipping_rank(trial: Trial) -> None:
    process, _, rank = hanging(trial)
    told_by_signal(trial, "skip", rank)
    named(trial, process, rank, PATIENT_S, "ahead of the others")


@row("R5", "a rank writes to a full pipe", trials=30, limit_s=300, short=False)
def piping_rank(trial: Trial) -> None:
    process, _, rank = hanging(trial)
    told_by_signal(trial, "pipe", rank)
    named(trial, process, rank, LATE_S, "full pipe", "sleep (")


@row("R6", "the link between two nodes is cut", trials=20, limit_s=300, short=False)
def cut_link(trial: Trial) -> None:
    process, nodes, rank = hanging(trial)
    ends = sorted((trial.nodes[rank], trial.nodes[(rank + 1) % nodes]))
    faults.partition(trial.lab, *ends)
    error = ended(trial, process, LATE_S)
    assert (
        not error.get("host")
        and f"nothing arrives between {ends[0]} and {ends[1]} " in error["message"]
    ), error
    assert not accusing(trial.controller), said(trial.controller)


@row(
    "R7",
    "a rank is frozen by its control group",
    trials=30,
    limit_s=300,
    short=False,
    skip=_no_freezer,
)
def frozen_rank(trial: Trial) -> None:
    process, _, rank = hanging(trial)
    pid = trial.controller.rank_process(trial.nodes[rank]).pid
    node_groups.freeze(trial.lab, trial.nodes[rank], lambda: [pid])
    named(trial, process, rank, SOON_S, "is frozen")


@row(
    "R8",
    "a rank is killed, or its whole node is frozen",
    trials=20,
    limit_s=300,
    short=False,
    skip=_no_freezer,
)
def gone_rank(trial: Trial) -> None:
    process, _, rank = hanging(trial)
    victim = trial.nodes[rank]
    if trial.random.choice((True, False)):
        os.kill(trial.controller.rank_process(victim).pid, signal.SIGKILL)
        named(trial, process, rank, SOON_S, "ended with SIGKILL")
        return
    faults.freeze(trial.lab, victim)
    error = ended(trial, process, SOON_S)
    assert error["host"] == victim and error["kind"] == "node_lost", error


@row(
    "R9",
    "a run with pauses: checkpoints, evaluations, compilations, of one rank at a time",
    trials=20,
    limit_s=600,
    short=False,
)
def pausing_run(trial: Trial) -> None:
    """A program of others, which reports no progress, pauses up to half a minute; our own trainer
    for some seconds. With four ranks one of them pauses most of the time, so the run is ended after
    a while and not after a number of steps."""
    silent = trial.random.choice((True, False))
    pauses = "40 5 30" if silent else "25 2 8"
    given = f"export PYTHONPATH={INJECTED} INJECT_PAUSES='{pauses}'{' INJECT_SILENT=1' if silent else ''}\n"
    controller = trial.controller
    process = controller.start(
        "bench", *SMALL, *HANGS, "--nodes", "4", "--gpus", "1", *open_to_faults(trial, given)
    )
    until = time.monotonic() + PAUSING_S
    over = lambda: process.poll() is not None or time.monotonic() > until  # noqa: E731
    judge.wait_for(over, PAUSING_S + 60, "neither over nor ended")
    went_on = process.poll() is None and not any(
        event["event"] == "stopping" for event in controller.events()
    )
    assert went_on, (said(controller), controller.end(process, 30))
    assert not (silent and accusing(controller)), said(controller)
    steps = (controller.node_run("node1") / "logs" / "rank-0.out").read_text().count("orch step=")
    assert steps > 10, f"{steps} steps in {PAUSING_S:g} s: it did not train"
    process.send_signal(signal.SIGINT)
    controller.end(process, 60)
    trial.notes.append(
        f"{'silent' if silent else 'reporting'}; steps: {steps}; suspicions: {len(said(controller))}"
    )

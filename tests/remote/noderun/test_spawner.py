"""Supervisors that a spawner starts: they outlive their relay, and the spawner ends with the last
of them.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support import judge
from tests.support.judge import LIMIT_S
from tests.support.machine import RUN, SLEEP, Line, Machine, supervisors, wait_for_process


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def spawner(machine: Machine, job: str = "7", lease_s: float = 60.0) -> tuple[Line, int]:
    line = machine.call("spawn", job=job, lease_s=lease_s)
    pid = line.read_line()["pid"]
    assert name_of(pid) == "orch-spawner"
    return line, pid


def ended(line: Line) -> bool:
    return line.process.poll() is not None


def started_by(machine: Machine, job: str) -> tuple[Line, int]:
    """Start a run; return the line to its supervisor, and the supervisor's process."""
    files = machine.stage(RUN, SLEEP)
    line = machine.supervisor(RUN, job=job)
    machine.arm(line, RUN, files)
    line.wait_for("armed")
    line.order("go", at=None)
    line.wait_for("started")
    (pid,) = supervisors(machine.folder(RUN))
    return line, pid


def test_a_run_goes_on_without_its_relay_and_the_spawner_without_its_controller(
    machine: Machine,
) -> None:
    step, pid = spawner(machine)
    relay, supervisor = started_by(machine, "7")
    assert parent_of(supervisor) == pid
    relay.process.kill()
    relay.process.wait(LIMIT_S)
    assert step.process.stdin
    step.process.stdin.close()
    again = machine.supervisor(RUN, start=False)
    assert wait_for_process(RUN) and not ended(step)
    again.order("stop", reason="enough")
    again.wait_for("ended")
    again.order("bye")
    judge.wait_for(lambda: ended(step), 5, "the spawner owns nothing and stays")


def test_a_spawner_without_a_run_ends_with_its_controller(machine: Machine) -> None:
    step, _ = spawner(machine)
    assert step.process.stdin
    step.process.stdin.close()
    judge.wait_for(lambda: ended(step), 5, "the spawner stays without a controller")


def test_a_spawner_that_hears_nothing_for_its_lease_ends(machine: Machine) -> None:
    step, _ = spawner(machine, lease_s=0.6)
    for _ in range(4):
        step.send(b"\n")
        time.sleep(0.3)
    assert not ended(step)
    judge.wait_for(lambda: ended(step), 5, "the spawner stays although nobody renews its lease")


def test_the_next_controller_gets_a_spawner_of_its_own_and_the_first_keeps_its_run(
    machine: Machine,
) -> None:
    first, _ = spawner(machine)
    relay, supervisor = started_by(machine, "7")
    assert first.process.stdin
    first.process.stdin.close()
    _, second = spawner(machine)
    assert parent_of(supervisor) != second and not ended(first)
    relay.order("stop", reason="enough")
    relay.wait_for("ended")
    relay.order("bye")
    judge.wait_for(lambda: ended(first), 5, "the first spawner owns nothing and stays")
    (machine.folder(RUN) / "exit.json").unlink()
    relay, supervisor = started_by(machine, "7")
    assert parent_of(supervisor) == second
    relay.order("stop", reason="enough")
    relay.wait_for("ended")


def test_a_job_without_a_spawner_refuses_a_run_and_starts_nothing(machine: Machine) -> None:
    spawner(machine, "8")
    machine.stage(RUN, SLEEP)
    line = machine.call("line", run=RUN, start=True, wait_s=0.3, job="7")
    error = line.read_line()["error"]
    assert (
        error["message"]
        == f"no spawner of Slurm's job 7 answers on this node to user {os.getuid()}: Connection refused"
    )
    assert supervisors(machine.folder(RUN)) == []


@pytest.mark.parametrize(
    ("ends_in_s", "why"),
    [(None, ""), (3600, ""), (0, " at its time limit")],
    ids=["unknown", "cancelled", "over"],
)
def test_in_a_step_the_end_of_the_job_cancels_the_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, ends_in_s: int | None, why: str
) -> None:
    limit = {} if ends_in_s is None else {"SLURM_JOB_END_TIME": str(int(time.time()) + ends_in_s)}
    monkeypatch.setattr(
        machine,
        "environment",
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7", **limit},
    )
    step, _ = spawner(machine)
    relay, _ = started_by(machine, "7")
    rank = wait_for_process(RUN)
    environment = Path(f"/proc/{rank}/environ")
    judge.wait_for(lambda: bool(environment.read_bytes()), 5, "its program is not loaded")
    variables = environment.read_bytes()
    assert b"SLURM_JOB_ID=7" in variables and b"SLURM_PROCID" not in variables
    for process in (
        step.process,
        relay.process,
    ):  # Slurm signals no other process of a step, until SIGKILL
        os.kill(process.pid, signal.SIGTERM)
    record = relay.wait_for("ended")["record"]
    assert (record["state"], record["reason"]) == (
        "stopped",
        f"cancelled by Slurm, which ends the job{why}",
    )

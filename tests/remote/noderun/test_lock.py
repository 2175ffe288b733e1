"""One run at a time has a node, whatever the work directory and the user."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support import judge
from tests.support.machine import (
    NEEDS_ROOT,
    RUN,
    SLEEP,
    Line,
    Machine,
    bearing,
    supervisors,
    wait_for_process,
)


def test_a_second_run_is_refused_naming_the_owner_and_the_lock_dies_with_its_supervisor(
    machine: Machine,
) -> None:
    first = machine.start(
        f"{RUN}-a", SLEEP, owner={"user": "alice", "controller": "desk", "run_id": f"{RUN}-a"}
    )
    files = machine.stage(f"{RUN}-b", SLEEP)
    second = machine.supervisor(f"{RUN}-b")
    machine.arm(second, f"{RUN}-b", files)
    error = second.wait_for("error")
    owner = json.loads(error["owner"])
    assert error["kind"] == "node_busy" and (owner["user"], owner["run_id"]) == (
        "alice",
        f"{RUN}-a",
    )
    assert json.loads(machine.ask("status")["owner"])["user"] == "alice"
    judge.wait_for(
        lambda: not supervisors(machine.folder(f"{RUN}-b")), 3, "the refused supervisor stays"
    )

    (supervisor,) = supervisors(machine.folder(f"{RUN}-a"))
    os.kill(supervisor, signal.SIGKILL)
    third = machine.supervisor(f"{RUN}-b")
    machine.arm(third, f"{RUN}-b", files)
    third.wait_for("armed")
    third.close()
    # What the killed supervisor left running is ended by its marker.
    assert wait_for_process(f"{RUN}-a")
    assert machine.ask("stop", run=f"{RUN}-a", grace_s=0.2, reason="now") == {
        "stopped": [f"{RUN}-a"],
        "left": [],
    }
    assert bearing(f"{RUN}-a") == []
    first.close()


def test_of_two_runs_that_each_hold_one_of_two_nodes_the_earlier_one_gets_both(
    tmp_path: Path, machine: Machine
) -> None:
    one, other = machine, Machine(tmp_path / "other", name="node2")
    early, late = f"{RUN}-1", f"{RUN}-2"
    held = {}
    for run, node in ((early, one), (late, other)):
        files = node.stage(run, SLEEP)
        held[run] = node.supervisor(run)
        node.arm(held[run], run, files)
        held[run].wait_for("armed")
    second = {run: (node, node.stage(run, SLEEP)) for run, node in ((late, one), (early, other))}
    wanted = {run: node.supervisor(run) for run, (node, _) in second.items()}
    for run, (node, files) in second.items():
        node.arm(wanted[run], run, files)
        if run == late:
            assert wanted[late].wait_for("error")["kind"] == "node_busy"
    for line in (
        held[late],
        wanted[late],
    ):  # as a controller does that was refused, while the other waits
        line.close()
    wanted[early].wait_for("armed")
    for line in (held[early], wanted[early]):
        line.close()
    other.close()


def test_a_run_that_has_started_keeps_its_node_from_one_that_was_planned_before_it(
    machine: Machine,
) -> None:
    """It will not be given back, so the other run, although it is the earlier one, waits no longer
    than a later one.
    """
    early, late = f"{RUN}-1", f"{RUN}-2"
    holder = machine.start(late, SLEEP)
    files = machine.stage(early, SLEEP)
    line = machine.supervisor(early)
    machine.arm(line, early, files)
    refused = line.wait_for("error")
    assert refused["kind"] == "node_busy" and json.loads(refused["owner"])["state"] == "running"
    holder.order("stop", reason="now")
    holder.wait_for("ended")
    record = machine.folder(late) / "owner.json"
    judge.wait_for(
        lambda: json.loads(record.read_text())["state"].strip() == "ended",
        3,
        "the record does not change",
    )


def armed_beside(
    first: Machine, second: Machine, run: str = f"{RUN}-b"
) -> tuple[Line, dict[str, Any]]:
    """Start a run on the first, want another on the second; return the line of the one and what
    becomes of the other.
    """
    begun = first.start(
        f"{RUN}-a", SLEEP, owner={"user": "alice", "controller": "desk", "run_id": f"{RUN}-a"}
    )
    files = second.stage(run, SLEEP)
    line = second.supervisor(run)
    second.arm(line, run, files)
    return begun, line.wait_for("error")


def stop(line: Line) -> None:
    line.order("stop", reason="now")
    line.wait_for("ended")


def test_one_run_has_a_node_whatever_the_work_directory(tmp_path: Path, machine: Machine) -> None:
    other = Machine(tmp_path / "other", mark=str(machine.root), name="node2")
    _, error = armed_beside(machine, other)
    owner = json.loads(error["owner"])
    assert error["kind"] == "node_busy" and (owner["user"], owner["run_id"]) == (
        "alice",
        f"{RUN}-a",
    )
    assert json.loads(other.ask("status")["owner"]) == owner
    (supervisor,) = supervisors(machine.folder(f"{RUN}-a"))
    os.kill(supervisor, signal.SIGKILL)
    judge.wait_for(lambda: other.ask("status")["owner"] is None, 3, "the node stays held")
    stop(other.start(f"{RUN}-c", SLEEP))
    for pid in bearing(f"{RUN}-a"):
        os.kill(pid, signal.SIGKILL)
    other.close()


@NEEDS_ROOT
@pytest.mark.skipif(
    not Path("/usr/bin/python3").exists(), reason="needs an interpreter that everybody may start"
)
def test_one_run_has_a_node_whatever_the_user(machine: Machine, open_home: Path) -> None:
    other = Machine(
        open_home / "work", python="/usr/bin/python3", mark=str(machine.root), user=65534
    )
    line, error = armed_beside(machine, other)
    assert error["kind"] == "node_busy" and json.loads(error["owner"])["run_id"] == f"{RUN}-a"
    assert json.loads(other.ask("status")["owner"])["user"] == "alice"
    (supervisor,) = supervisors(machine.folder(f"{RUN}-a"))
    os.kill(supervisor, signal.SIGSTOP)
    try:
        assert (
            other.ask("status")["owner"]
            == f"process {supervisor} of user root, which does not answer"
        )
    finally:
        os.kill(supervisor, signal.SIGCONT)
    stop(line)
    other.close()


def test_one_machine_is_not_two_nodes_of_a_run(tmp_path: Path, machine: Machine) -> None:
    other = Machine(tmp_path / "other", mark=str(machine.root), name="node2")
    line, error = armed_beside(machine, other, f"{RUN}-a")
    assert (error["kind"], error["message"].split(":")[0]) == (
        "node_unfit",
        "two nodes of this run are the same machine",
    )
    stop(line)
    other.close()

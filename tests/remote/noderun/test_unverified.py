"""A run that lost its supervisor where no control group could be made: what may be left of it is
named and never signalled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import judge
from tests.support.judge import LIMIT_S
from tests.support.machine import RUN, SLEEP, Line, Machine, bearing, supervisors

SHED = """\
#!/bin/bash
env -i setsid sh -c 'sleep 7655 & echo $! > escaped; exit 0'
exec sleep 1000
"""


def kill_supervisor(machine: Machine, run: str = RUN, **origin: object) -> None:
    """Kill a run's supervisor; ``origin`` replaces what it recorded, before its processes are
    looked for.
    """
    path = machine.folder(run) / "origin.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | origin))
    (supervisor,) = supervisors(machine.folder(run))
    os.kill(supervisor, signal.SIGKILL)
    judge.wait_for(lambda: not supervisors(machine.folder(run)), 2, "the supervisor lives on")


@pytest.fixture
def daemon(machine: Machine) -> Iterator[int]:
    machine.start(RUN, SHED)
    escaped = machine.folder(RUN) / "escaped"
    judge.wait_for(
        lambda: escaped.exists() and escaped.read_text().strip(), 5, "no daemon was started"
    )
    pid = int(escaped.read_text())
    yield pid
    if Path(f"/proc/{pid}/comm").exists():
        os.kill(pid, signal.SIGKILL)


def stopped(machine: Machine, run: str = RUN) -> dict[str, Any]:
    return machine.ask("stop", run=run, grace_s=0.2, reason="now")


def suspects(answer: dict[str, Any]) -> set[int]:
    return {pid for pid, _ in answer.get("unverified", {}).get(RUN, [])}


def test_a_daemon_without_any_mark_is_named_until_it_has_ended(
    machine: Machine, daemon: int
) -> None:
    (machine.folder(RUN) / "group").unlink(missing_ok=True)
    kill_supervisor(machine, group="")
    for answer in (stopped(machine), machine.ask("left", run=RUN), machine.ask("status")):
        # Other programs of this user that begin meanwhile may be named as well.
        assert (
            list(answer["unverified"]) == [RUN] and [daemon, "sleep"] in answer["unverified"][RUN]
        ), answer
    assert bearing(RUN) == [] and Path(f"/proc/{daemon}").exists(), (
        "what may be a stranger's is not signalled"
    )
    assert "unverified" not in machine.ask("left", run="another")
    os.kill(daemon, signal.SIGKILL)
    judge.wait_for(lambda: not Path(f"/proc/{daemon}").exists(), 2, "the daemon lives on")
    answer = stopped(machine)
    assert (answer["stopped"], answer["left"]) == ([], []) and daemon not in suspects(answer)


def test_processes_of_others_are_not_taken_for_the_runs(machine: Machine) -> None:
    """What began before, what descends from a session of the user, and what carries another run's
    mark.
    """
    before = subprocess.Popen(["sleep", "1000"])
    machine.start(RUN, SLEEP)
    orphan = "import os, subprocess, sys; print(subprocess.Popen(['sleep', '1000'], stdout=2, env=dict(ORCH_RUN_ID='x')).pid)"
    marked = int(
        subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, check=True).stdout
    )
    after = subprocess.Popen(["sleep", "1000"])
    try:
        (machine.folder(RUN) / "group").unlink(missing_ok=True)
        kill_supervisor(machine, group="")
        answer = stopped(machine)
        assert (answer["stopped"], answer["left"]) == ([RUN], [])
        # Other programs of this user may begin meanwhile, and are not known to belong to nothing.
        assert not suspects(answer) & {before.pid, after.pid, marked}
    finally:
        for process in (before, after):
            process.kill()
            process.wait(LIMIT_S)
        os.kill(marked, signal.SIGKILL)


@pytest.mark.parametrize(
    "case", ["another boot", "a control group", "other process numbers", "never started"]
)
def test_what_is_known_without_looking_at_processes(
    machine: Machine, daemon: int, case: str
) -> None:
    (machine.folder(RUN) / "group").unlink(missing_ok=True)
    origin = {
        "another boot": {"group": "", "boot_id": "another"},
        "a control group": {"group": "/sys/fs/cgroup/gone"},
        "other process numbers": {"group": "", "pids": "pid:[1]"},
        "never started": {"group": ""},
    }[case]
    kill_supervisor(machine, **origin)
    if case == "never started":
        (machine.folder(RUN) / "logs" / "node.out").unlink()
    expected = {"unverified": {RUN: []}} if case == "other process numbers" else {}
    assert stopped(machine) == {"stopped": [RUN], "left": [], **expected}


def test_a_run_whose_supervisor_lives_or_that_has_ended_is_verified(machine: Machine) -> None:
    line: Line = machine.start(RUN, SLEEP)
    assert "unverified" not in machine.ask("left", run=RUN)
    line.order("stop", reason="now")
    line.wait_for("ended")
    line.order("bye")
    line.wait_for("closed")
    assert stopped(machine) == {"stopped": [], "left": []}

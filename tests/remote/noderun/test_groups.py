"""Control groups of runs, and the kernel's count of kills for memory."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest

from noderun import groups
from tests.support import judge
from tests.support.machine import (
    RUN,
    SLEEP,
    Machine,
    bearing,
    supervisors,
)

pytestmark = pytest.mark.timeout(60)


def test_a_group_that_is_removed_while_it_is_read_has_no_members(monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread
    group = groups.make_group(f"orch-test-{os.getpid()}")
    if not group:
        pytest.skip("no control groups may be made here")

    def removed_first(*asked: int) -> bytes:
        os.rmdir(group)
        return read(*asked)

    monkeypatch.setattr(os, "pread", removed_first)
    assert groups.members(group) == {} and not os.path.exists(group)


V1 = "tmpfs /cg tmpfs rw 0 0\ncgroup /cg/cpu cgroup rw,cpu 0 0\ncgroup /cg/memory cgroup rw,memory 0 0\n"
V2 = "proc /proc proc rw 0 0\ncgroup2 /cg cgroup2 rw,nsdelegate 0 0\n"
VMSTAT = "nr_free_pages 9\noom_kill 7\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"cgroup": "4:memory:/job\n0::/\n", "mounts": V1, "/cg/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n"},
            2,
        ),
        ({"cgroup": "0::/user/session\n", "mounts": V2, "/cg/user/session/memory.events": "low 0\noom 4\noom_kill 3\n"}, 3),
        ({"cgroup": "0::/\n", "mounts": V2, "/proc/vmstat": VMSTAT}, 7),
        ({"cgroup": "4:memory:/job\n", "mounts": V1, "/cg/memory/job/memory.oom_control": "old\n", "/proc/vmstat": VMSTAT}, 7),
        ({"cgroup": "", "mounts": ""}, 0),
    ],
    ids=["v1", "unified", "root-group", "old-kernel", "nothing"],
)
def test_kills_for_memory_are_read_where_the_kernel_counts_them(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    there = {path if path.startswith("/") else f"/proc/self/{path}": text for path, text in files.items()}

    def fake_open(path: str) -> io.StringIO:
        if path not in there:
            raise FileNotFoundError(path)
        return io.StringIO(there[path])

    monkeypatch.setattr(groups, "open", fake_open, raising=False)
    assert groups.oom_kills() == expected


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/pids/cgroup.procs", os.W_OK), reason="no control group may be made here")
@pytest.mark.parametrize("way", ["another run", "stop", "drop"])
def test_the_control_group_of_a_run_that_died_with_its_supervisor_does_not_stay(machine: Machine, way: str) -> None:
    line = machine.start(f"{RUN}-a", SLEEP)
    group = Path((machine.folder(f"{RUN}-a") / "group").read_text())
    (supervisor,) = supervisors(machine.folder(f"{RUN}-a"))
    os.kill(supervisor, signal.SIGKILL)
    line.close()
    if way == "another run":
        machine.stage(f"{RUN}-b", SLEEP)
        machine.supervisor(f"{RUN}-b").close()
        assert group.is_dir(), "a group with a process in it is not ours to remove"
    for pid in bearing(f"{RUN}-a"):
        os.kill(pid, signal.SIGKILL)
    judge.wait_for(lambda: not bearing(f"{RUN}-a"), 3, "the run does not die")
    assert group.is_dir()
    if way == "another run":
        last = machine.start(f"{RUN}-c", SLEEP)
        last.order("stop", reason="now")
        last.wait_for("ended")
    elif way == "stop":
        assert machine.ask("stop", run=f"{RUN}-a", grace_s=0.2, reason="now") == {"stopped": [], "left": []}
    else:
        assert machine.ask("drop", run=f"{RUN}-a", finished=False) == {"dropped": True}
    assert not group.exists()

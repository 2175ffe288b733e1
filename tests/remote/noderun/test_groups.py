"""Control groups of runs, and the kernel's count of kills for memory."""

from __future__ import annotations

import ast
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from noderun import containers, groups
from orchestrator.lab.cgroups import dissolve, parent_group
from tests.support import judge, node_groups
from tests.support.machine import (
    RUN,
    SLEEP,
    Machine,
    bearing,
    supervisors,
)


def test_a_group_that_is_removed_while_it_is_read_has_no_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = os.pread
    group = groups.make_group(f"orch-test-{os.getpid()}")
    if not group:
        pytest.skip("no control groups may be made here")

    def removed_first(*asked: int) -> bytes:
        os.rmdir(group)
        return read(*asked)

    monkeypatch.setattr(os, "pread", removed_first)
    assert groups.members(group) == {} and not os.path.exists(group)


V1 = """25 1 0:22 / /cg rw - tmpfs tmpfs rw
26 25 0:23 / /cg/cpu rw shared:9 - cgroup cgroup rw,cpu
27 25 0:24 / /cg/memory rw shared:9 - cgroup cgroup rw,memory
"""
V2 = """24 1 0:5 / /proc rw - proc proc rw
25 1 0:22 / /cg rw - cgroup2 cgroup2 rw,nsdelegate
"""
POD = "25 1 0:22 /kubepods/pod1 /cg/memory ro - cgroup cgroup rw,memory\n"
VMSTAT = "nr_free_pages 9\noom_kill 7\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "cgroup": "4:memory:/job\n0::/\n",
                "mountinfo": V1,
                "/cg/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n",
            },
            2,
        ),
        (
            {
                "cgroup": "0::/user/session\n",
                "mountinfo": V2,
                "/cg/user/session/memory.events": "low 0\noom 4\noom_kill 3\n",
            },
            3,
        ),
        (
            {
                "cgroup": "4:memory:/kubepods/pod1/main\n",
                "mountinfo": POD,
                "/cg/memory/main/memory.oom_control": "oom_kill 4\n",
            },
            4,
        ),
        ({"cgroup": "0::/\n", "mountinfo": V2, "/proc/vmstat": VMSTAT}, 7),
        (
            {
                "cgroup": "4:memory:/job\n",
                "mountinfo": V1,
                "/cg/memory/job/memory.oom_control": "old\n",
                "/proc/vmstat": VMSTAT,
            },
            7,
        ),
        ({"cgroup": "", "mountinfo": ""}, 0),
    ],
    ids=["v1", "unified", "pod", "root-group", "old-kernel", "nothing"],
)
def test_kills_for_memory_are_read_where_the_kernel_counts_them(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    there = {
        path if path.startswith("/") else f"/proc/self/{path}": text for path, text in files.items()
    }

    def fake_open(path: str) -> io.StringIO:
        if path not in there:
            raise FileNotFoundError(path)
        return io.StringIO(there[path])

    monkeypatch.setattr(groups, "open", fake_open, raising=False)
    assert groups.oom_kills() == expected


@pytest.mark.parametrize("is_unified", [False, True])
@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1073741824", 1 << 30), ("max", 1 << 40), ("9223372036854771712", 1 << 40)],
)
def test_memory_is_what_the_groups_around_a_run_leave_of_the_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_unified: bool, limit: str, expected: int
) -> None:
    folder = tmp_path / "slice" / "session"
    folder.mkdir(parents=True)
    if is_unified:
        (folder / "memory.max").write_text("max\n")
        (folder.parent / "memory.max").write_text(f"{limit}\n")
    elif limit != "max":
        (folder / "memory.stat").write_text(
            f"cache 4096\nhierarchical_memory_limit {limit}\ntotal_cache 4096\n"
        )
    monkeypatch.setattr(groups, "own_groups", lambda controller: [(str(folder), is_unified)])
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 28}.__getitem__)
    assert groups.usable_memory_bytes() == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [("150000 100000", 1.5), ("max 100000", None), ("", None)]
)
def test_processors_are_what_the_groups_of_the_unified_hierarchy_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, expected: float | None
) -> None:
    (tmp_path / "pod" / "main").mkdir(parents=True)
    (tmp_path / "pod" / "main" / "cpu.max").write_text(
        "800000 100000\n" if limit[:1] == "1" else ""
    )
    (tmp_path / "pod" / "cpu.max").write_text(f"{limit}\n")
    found = [(str(tmp_path / "pod" / "main"), True)]
    monkeypatch.setattr(groups, "own_groups", lambda controller: found)
    assert groups.usable_cpus() == expected


SEEN = """from noderun.groups import usable_cpus, usable_memory_bytes
from noderun.limits import limits, shared_memory_bytes
print([usable_cpus(), usable_memory_bytes(), shared_memory_bytes(), limits()["memlock"]])"""


@pytest.mark.skipif(
    bool(os.geteuid() or node_groups.obstacle("cpu") or node_groups.obstacle("memory")),
    reason="needs root and control groups",
)
@pytest.mark.parametrize("is_hidden", [False, True], ids=["whole hierarchy", "own group mounted"])
@pytest.mark.parametrize("may_lock", [False, True], ids=["no capability", "IPC_LOCK"])
def test_what_a_pod_is_given_is_read_from_its_own_groups_and_mounts(
    is_hidden: bool, may_lock: bool
) -> None:
    parents = {name: parent_group(name) for name in ("cpu", "memory")}
    folders = {name: path / f"orch-pod-{os.getpid()}" for name, (path, _) in parents.items()}
    if parents["cpu"][1] or parents["memory"][1]:
        pytest.skip("the groups of a test stand in the way in the unified hierarchy")
    values = {"cpu/cpu.cfs_quota_us": "150000", "memory/memory.limit_in_bytes": str(1 << 30)}
    try:
        for path in folders.values():
            path.mkdir()
        for name, value in values.items():
            controller, _, file = name.partition("/")
            (folders[controller] / file).write_text(value)
        lines = [f"echo $$ >{path}/cgroup.procs" for path in folders.values()]
        lines += ["mount -t tmpfs -o size=64m none /dev/shm"]
        for name, path in folders.items() if is_hidden else ():
            lines.append(f"mount --bind {path} /sys/fs/cgroup/{name}")
        bounds = [] if may_lock else ["setpriv", "--bounding-set=-ipc_lock"]
        lines.append('exec "$@"')
        argv = ["unshare", "--mount", "sh", "-ec", "\n".join(lines), "sh"]
        argv += ["prlimit", "--memlock=65536:65536", *bounds, sys.executable, "-c", SEEN]
        remote = str(Path(groups.__file__).parents[1])
        done = subprocess.run(
            argv, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": remote}
        )
    finally:
        for path in folders.values():
            if path.is_dir():
                dissolve(path)
    memlock = [None, None] if may_lock else [65536, 65536]
    assert ast.literal_eval(done.stdout.decode()) == [1.5, 1 << 30, 64 << 20, memlock]


@pytest.mark.skipif(
    not any(os.access(path, os.W_OK) for path, _ in groups.own_groups("pids")),
    reason="no control group may be made",
)
@pytest.mark.parametrize("way", ["another run", "stop", "drop"])
def test_the_control_group_of_a_run_that_died_with_its_supervisor_does_not_stay(
    machine: Machine, way: str
) -> None:
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
        assert machine.ask("stop", run=f"{RUN}-a", grace_s=0.2, reason="now") == {
            "stopped": [],
            "left": [],
        }
    else:
        assert machine.ask("drop", run=f"{RUN}-a", finished=False) == {"dropped": True}
    assert not group.exists()


def test_the_groups_of_a_container_are_found_by_its_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    number = "ab" * 32
    for name in (f"docker/{number}", f"libpod_parent/libpod-conmon-{number}", "other"):
        (tmp_path / "pids" / name).mkdir(parents=True)
    (tmp_path / "cpu,cpuacct" / "docker" / number).mkdir(parents=True)
    (tmp_path / "cpu,cpuacct" / "docker" / number / "cpuacct.usage").write_text("2500000000\n")
    mounts = "".join(
        f"cgroup {tmp_path}/{name} cgroup rw,{name} 0 0\n"
        for name in ("memory", "pids", "cpu,cpuacct")
    )
    monkeypatch.setattr(
        "builtins.open", lambda path, *_, **__: io.StringIO({"/proc/self/mounts": mounts}[path])
    )
    assert groups.find_groups(number) == [f"{tmp_path}/pids/docker/{number}"]
    (counting,) = groups.find_groups(number, ["cpuacct"])
    assert (
        groups.seconds_used(counting) == 2.5
        and groups.seconds_used(f"{tmp_path}/pids/other") is None
    )
    assert groups.find_groups("cd" * 32) == []


def test_the_unified_hierarchy_counts_processor_seconds_in_microseconds(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert groups.seconds_used(str(tmp_path)) == 1.5


def test_a_process_of_another_namespace_is_known_to_be_in_a_group_and_not_which(
    tmp_path: Path,
) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n")
    assert containers.has_unseen([str(tmp_path)]) and groups.members(str(tmp_path)) == {}
    (tmp_path / "cgroup.procs").write_text("10\n")
    assert not containers.has_unseen([str(tmp_path)]) and not containers.has_unseen([])

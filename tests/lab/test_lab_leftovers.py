"""What is left of a lab that has ended, in whatever way it ended: nothing."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.errors import ConfigError, OrchError, RunError
from orchestrator.lab import Lab
from tests.support import commands, judge
from tests.support.faultlab import MakeLab, Ssh

KINDS = [
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    ),
    "asyncssh",
]


@pytest.fixture(autouse=True)
def machine_unchanged() -> Iterator[None]:
    """Compare the machine's own mounts, interfaces and named namespaces before and after."""
    before = _machine()
    yield
    assert _machine() == before


def _machine() -> tuple[str, list[str], list[str]]:
    mounts = "\n".join(
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/lab" in line
    )
    named = Path("/run/netns")
    return (
        mounts,
        sorted(os.listdir("/sys/class/net")),
        sorted(os.listdir(named)) if named.exists() else [],
    )


def _living(marker: str) -> list[int]:
    """Return the processes that carry a lab's marker, by a search that is not the lab's own."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and f"ORCH_LAB={marker}".encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _nothing_is_left(lab: Lab) -> None:
    assert not lab.directory.exists()
    assert _living(lab.marker) == []
    assert all(node.pid == 0 for node in lab.nodes)
    # Not Path.glob, which fails where the lab of another test removes a control group at the same
    # time.
    assert not glob.glob(f"/sys/fs/cgroup/**/orch-lab-{lab.marker}-*", recursive=True)


@pytest.mark.parametrize("kind", KINDS)
def test_down_ends_everything_and_says_what(make_lab: MakeLab, ssh: Ssh, kind: str) -> None:
    lab = make_lab(kind=kind)
    ssh(lab, "node1", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
    outside = subprocess.Popen(
        labs.argv_inside(lab, ["sleep", "1000"]), env=os.environ | labs.environment(lab)
    )
    judge.wait_for(
        lambda: _arguments(outside.pid) == b"sleep\x001000\0", 5, "the program inside did not start"
    )
    assert len(_living(lab.marker)) >= 3
    ended = labs.down(lab.directory)
    assert ended[0] == "ended node[1-2]" and ended[-1] == f"removed {lab.directory}"
    # What runs inside a node of namespaces ends with it; elsewhere it is found and ended like the
    # one outside.
    sleeping = "1 process" if kind == "namespaces" else "2 processes"
    assert f"ended {sleeping} of sleep" in ended, ended
    outside.returncode = -signal.SIGKILL  # reaped by down, as a child of this very process
    _nothing_is_left(lab)
    assert labs.down(lab.directory) == []
    with pytest.raises(ConfigError, match="no lab is up in .*orch lab up"):
        labs.load(lab.directory)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_up_in_the_same_place_is_refused_and_harms_nothing(
    make_lab: MakeLab, ssh: Ssh, kind: str
) -> None:
    lab = make_lab(kind=kind, nodes=1)
    with pytest.raises(ConfigError, match="is already up in"):
        labs.up(lab.directory, nodes=1, kind=kind, gpus_per_node=0, say=print)
    assert ssh(lab, "node1", "true").returncode == 0


def test_a_folder_with_somebodys_files_is_neither_taken_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="expected an empty or new directory"):
        labs.up(tmp_path, kind="asyncssh", gpus_per_node=0, say=print)
    assert labs.down(tmp_path) == []
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("kind", "wish"), [("asyncssh", {"python": "no-such-python"}), ("spaceship", {})]
)
def test_a_wrong_wish_is_refused_before_anything_is_written(
    tmp_path: Path, kind: str, wish: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="expected"):
        labs.up(
            tmp_path / "lab",
            kind=kind,
            gpus_per_node=0,
            say=print,
            python=wish.get("python", sys.executable),
        )
    assert not (tmp_path / "lab").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_an_up_that_fails_midway_cleans_up_after_itself(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ip"):
        labs.up(tmp_path / "lab", nodes=2, kind="namespaces", mtu=-1, gpus_per_node=0, say=print)
    assert not (tmp_path / "lab").exists()
    assert not [pid for pid in _all_pids() if str(tmp_path).encode() in _arguments(pid)]


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    "moment", ["lab.json", "work/inventory/cluster.yaml", "holder.pid", "nodes/node3/pid", "ready"]
)
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_what_a_killed_up_leaves_is_found_and_ended(tmp_path: Path, moment: str) -> None:
    directory = tmp_path / "lab"
    code = "import pathlib, sys\nfrom orchestrator import lab\nlab.up(pathlib.Path(sys.argv[1]), gpus_per_node=0, say=print)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdout=subprocess.DEVNULL
    )
    try:
        judge.wait_for((directory / moment).exists, 30, f"no {moment}")
    finally:
        process.kill()
        process.wait()
        marker = (directory / "lab.json").read_text().split('"marker": "')[1].split('"')[0]
        try:
            if moment != "ready":
                with pytest.raises(OrchError):
                    labs.load(directory)
        finally:
            assert labs.down(directory)[-1] == f"removed {directory}"
    assert not directory.exists()
    assert _living(marker) == []


def test_an_up_that_was_killed_while_it_wrote_keeps_no_other_from_the_directory(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "lab"
    directory.mkdir()
    (directory / f".{'0' * 16}.part").write_text('{"schema"')
    lab = labs.up(directory, nodes=1, kind="asyncssh", gpus_per_node=0, say=print)
    try:
        assert not list(directory.glob(".*.part"))
    finally:
        labs.down(lab.directory)
    assert not directory.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_lab_that_died_is_recognised_and_replaced(make_lab: MakeLab, ssh: Ssh) -> None:
    lab = make_lab(nodes=1)
    os.kill(lab.holder, signal.SIGKILL)
    judge.wait_for(
        lambda: not lab.holder and not lab.nodes[0].pid,
        10,
        "the holder's end did not end the nodes",
    )
    with pytest.raises(ConfigError, match="died.*orch lab down"):
        labs.load(lab.directory)
    again = labs.up(lab.directory, nodes=1, gpus_per_node=0, say=print)
    assert ssh(again, "node1", "hostname").stdout == b"node1\n"


def test_down_removes_what_the_lab_made_and_nothing_else(make_lab: MakeLab) -> None:
    """Benches that were made inside the lab's directory are results, and stay."""
    lab = make_lab(kind="asyncssh", nodes=1)
    results = [
        lab.work / "runs" / "20260101-000000-abcd" / "bench.json",
        lab.directory / "runs" / "x" / "bench.json",
    ]
    for path in results:
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    last = labs.down(lab.directory)[-1]
    assert (
        last
        == f"{lab.directory} is kept, because it has files that do not belong to the lab: runs, work/runs"
    )
    assert sorted(path for path in lab.directory.rglob("*") if path.is_file()) == sorted(results)
    assert labs.down(lab.directory) == []


def test_a_lab_starts_again_next_to_benches_that_an_earlier_one_left_in_its_folder(
    make_lab: MakeLab,
) -> None:
    lab = make_lab(kind="asyncssh", nodes=1)
    (lab.work / "runs").mkdir()
    labs.down(lab.directory)
    again = labs.up(lab.directory, kind="asyncssh", nodes=1, gpus_per_node=0, say=print)
    assert again.inventory.exists() and (lab.work / "runs").is_dir()


def test_shell_and_exec_stay_in_the_project_of_the_caller(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    """And the name of the default inventory means the lab's, although the project has machines of
    its own under this name.
    """
    lab = make_lab(kind="asyncssh", nodes=1)
    project = tmp_path / "project"
    (project / "inventory").mkdir(parents=True)
    (project / "inventory" / "cluster.yaml").write_text(
        "schema: 1\nhosts:\n  real:\n    address: 192.0.2.1\n"
    )
    where = commands.orch(
        project, "lab", "shell", "--dir", str(lab.directory), environment={"SHELL": "/bin/pwd"}
    )
    assert (where.returncode, where.stdout) == (0, f"{project}\n"), where.stderr
    inside = (
        "lab",
        "exec",
        "--dir",
        str(lab.directory),
        "--",
        sys.executable,
        "-m",
        "orchestrator",
    )
    for given in ("inventory/cluster.yaml", "./inventory/cluster.yaml"):
        done = commands.orch(project, *inside, "bench", "resnet50", "--dry-run", "--hosts", given)
        assert (
            f"inventory: {lab.inventory} (the lab's, in place of {given}), 1 of 1 hosts"
            in done.stderr
        )

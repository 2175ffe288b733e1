"""The ends of processes as the kernel tells them, and a supervisor that relies on it instead of
looking all the time.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from noderun import exit_watch
from noderun.processes import read_start
from orchestrator.plan.payload import runner_source
from tests.support import judge
from tests.support.machine import RUN, Machine, rank, supervisors

HAS_PIDFD = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="this Python or kernel has no pidfd_open"
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@HAS_PIDFD
@pytest.mark.parametrize("is_named", [True, False])
def test_the_end_of_a_followed_process_is_told_once(
    child: subprocess.Popen[bytes], is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_named:  # as in Python before 3.9
        monkeypatch.delattr(os, "pidfd_open")
    followed = exit_watch.ExitWatch()
    processes = {child.pid: read_start(child.pid), os.getpid(): read_start(os.getpid())}
    assert followed.follow(processes) and followed.follow(processes) and len(followed.handles) == 2
    handle = followed.handles[child.pid]
    assert select.select(list(followed.handles.values()), [], [], 0)[0] == []
    child.kill()
    assert select.select(list(followed.handles.values()), [], [], 10)[0] == [handle]
    followed.take([handle])
    assert child.returncode is None, "it waits to be collected"
    assert not followed.follow(processes), (
        "its end is known: to follow it would tell it again at once"
    )
    assert followed.follow({os.getpid(): read_start(os.getpid())})
    assert followed.follow({}) and not followed.handles


@HAS_PIDFD
def test_another_process_with_the_number_of_one_that_has_ended_is_not_followed(
    child: subprocess.Popen[bytes],
) -> None:
    followed = exit_watch.ExitWatch()
    assert (
        not followed.follow({child.pid: (read_start(child.pid) or 0) - 1}) and not followed.handles
    )


def test_without_handles_of_the_kernel_no_end_is_promised(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_watch, "handle_of", lambda pid: None)
    assert not exit_watch.ExitWatch().follow({child.pid: read_start(child.pid)})


@HAS_PIDFD
@pytest.mark.parametrize("victim", ["rank", "wrapper", "launch script"])
def test_an_end_is_known_at_once_to_a_supervisor_that_hardly_ever_looks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    source = runner_source()
    patient = source.replace(b"LONG_POLL_S = 0.25", b"LONG_POLL_S = 99.0").replace(
        b"SETTLE_S = 2.0", b"SETTLE_S = 0.2"
    )
    assert len(patient) == len(source)
    monkeypatch.setattr("tests.support.machine.runner_source", lambda: patient)
    code = "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(1000)"
    line = machine.start(RUN, "#!/bin/bash\n" + rank(code) + "\nexit 3\n")
    (supervisor,) = supervisors(machine.folder(RUN))
    log = machine.folder(RUN) / "logs" / "rank-0.out"
    judge.wait_for(
        lambda: log.exists() and log.read_text().endswith("\n"), 10, "the rank does not begin"
    )
    judge.wait_for(lambda: _rests(supervisor), 10, "it goes on looking")
    wrapper, program = map(int, log.read_text().split())
    (launch,) = (
        int(word)
        for word in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    )
    os.kill({"rank": program, "wrapper": wrapper, "launch script": launch}[victim], signal.SIGKILL)
    record = line.wait_for("ended")["record"]
    expected = {
        "rank": ("rank_failed: rank 0", "SIGKILL"),
        "wrapper": ("rank_failed: rank 0", "SIGKILL"),
    }
    reason, name = expected.get(
        victim, ("rank_failed: its launch script ended with SIGKILL", "SIGTERM")
    )
    assert record["reason"].startswith(reason) and record["ranks"][0]["signal"] == name


def _rests(process: int) -> bool:
    """Return True if a process has not run in half a second."""
    path = Path(f"/proc/{process}/status")
    before = path.read_text().split("voluntary_ctxt_switches")
    select.select([], [], [], 0.5)
    return path.read_text().split("voluntary_ctxt_switches")[1:] == before[1:]

"""Other programs, run to their end within limits."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.procs import (
    TooMuchOutput,
    run_program,
    signal_group,
    snapshot,
    start_program,
)
from tests.support.judge import wait_for

SHELL = ("/bin/sh", "-c")


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Path]:
    """The file with the number of a process that a program starts; it is ended with the test."""
    path = tmp_path / "child"
    yield path
    if path.exists() and (process := snapshot().get(int(path.read_text()))):
        subprocess.run(["kill", "-9", str(process.pid)], check=False)


def test_a_program_gets_its_input_and_gives_its_status_and_outputs() -> None:
    done = run_program([*SHELL, "cat; echo words >&2; exit 3"], timeout_s=100, data=b"x" * 100_000)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"x" * 100_000, b"words\n")
    with pytest.raises(FileNotFoundError):
        run_program(["/no/such/program"], timeout_s=100)


def test_what_a_program_has_started_ends_with_its_time_limit(child: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_program([*SHELL, f"sleep 600 & echo $! >{child}; wait"], timeout_s=2)
    wait_for(lambda: int(child.read_text()) not in snapshot(), 60, "the child is left")


def test_a_program_that_prints_without_end_is_killed() -> None:
    with pytest.raises(TooMuchOutput):
        run_program(["yes"], timeout_s=100)


def test_a_daemon_that_keeps_the_output_open_is_not_waited_for(child: Path) -> None:
    done = run_program([*SHELL, f"sleep 600 & echo $! >{child}; echo all"], timeout_s=100)
    assert (done.returncode, done.stdout) == (0, b"all\n")
    assert int(child.read_text()) in snapshot()


def test_a_group_whose_leader_has_ended_gets_the_signal_until_it_is_reaped(child: Path) -> None:
    leader = subprocess.Popen(
        [*SHELL, f"sleep 600 & echo $! >{child}"], stdout=subprocess.PIPE, start_new_session=True
    )
    wait_for(lambda: leader.pid not in snapshot(), 60, "the leader has not ended")
    assert int(child.read_text()) in snapshot()
    signal_group(leader, signal.SIGKILL)
    wait_for(lambda: int(child.read_text()) not in snapshot(), 60, "the child is left")
    os.waitpid(leader.pid, 0)  # as another thread does, which has not said so yet
    signal_group(leader, signal.SIGKILL)
    leader.returncode = 0
    leader.communicate()


def test_a_program_is_not_lost_to_a_signal_while_it_is_started(tmp_path: Path) -> None:
    """The signal is there as soon as the program runs, before its start is known here."""
    seen: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes]) -> None:
        seen.append(process)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.2)

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_program(["sleep", "600"], interrupt)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen[0].wait(60) == -signal.SIGKILL


def test_a_program_that_cannot_be_started_is_told() -> None:
    with pytest.raises(FileNotFoundError):
        start_program(["/nothing"])

"""Ownership of a bench or a group of benches: a lock that the kernel releases when its holder dies,
in a file that says who holds it.

At most one controller at a time executes the runs of a bench; others may read, collect, and ask it
to stop.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import DataError, RunError
from orchestrator.files import failures
from orchestrator.procs import start_ticks
from orchestrator.record.bench_groups import BenchGroup
from orchestrator.record.project import owner
from orchestrator.record.rundir import BenchDir
from orchestrator.record.state_file import read_json

_FILE = "owner.lock"
_TRIES, _BETWEEN_S = 5, 0.02


@dataclass(frozen=True, slots=True)
class Holder:
    """The controller that runs a bench: ``process`` is its process id on ``controller``, ``ticks``
    its start in clock ticks.
    """

    user: str
    controller: str
    process: int
    ticks: int
    since: str

    def __str__(self) -> str:
        """Return user, machine, process id and time in words."""
        return f"{self.user}@{self.controller}, process {self.process}, since {self.since}"

    def signal(self, number: int) -> bool:
        """Signal the process if it is still the same one, on this machine. Return False if it is
        elsewhere or gone.
        """
        if self.controller != socket.gethostname() or start_ticks(self.process) != self.ticks:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.process, number)
            return True
        return False


class Ownership:
    """A held bench. Survives a fork: the lock is held until every process that has it has exited or
    released it.
    """

    def __init__(self, handle: int, path: Path) -> None:
        self._handle = handle
        self._path = path

    def sign(self) -> None:
        """Write this process into the record. A child that continues the bench must call it again."""
        record = json.dumps({**owner(), "ticks": start_ticks(os.getpid())}).encode() + b"\n"
        with failures(self._path, needed=len(record)):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, record, 0)

    def release(self) -> None:
        """Release the lock in this process."""
        os.close(self._handle)


def take(bench: BenchDir | BenchGroup) -> Ownership:
    """Take a bench or a group for this process. Raises RunError run_in_use naming the controller
    that holds it.
    """
    path = bench.path / _FILE
    with failures(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not _lock(handle):
        os.close(handle)
        who = _read(path)
        raise RunError(
            f"another controller is running this {bench.noun}: {who or 'its record cannot be read'}",
            kind="run_in_use",
            where=str(bench.path),
            hint="orch attach shows it; orch cancel stops it",
        )
    ownership = Ownership(handle, path)
    try:
        ownership.sign()
    except BaseException:
        ownership.release()
        raise
    return ownership


def _lock(handle: int) -> bool:
    """Lock a file for this process alone. Return False if another has it for longer than `holder`
    does, which only asks.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(_BETWEEN_S)
    return False


@contextmanager
def hold(bench: BenchDir | BenchGroup) -> Iterator[Ownership]:
    """Hold a bench or a group during a ``with`` block."""
    ownership = take(bench)
    try:
        yield ownership
    finally:
        ownership.release()


def holder(bench: BenchDir | BenchGroup) -> Holder | None:
    """Return the controller that runs a bench or a group now, None if there is none."""
    path = bench.path / _FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read(path) or Holder("somebody", "unknown", 0, 0, "unknown")
    finally:
        os.close(handle)
    return None


def _read(path: Path) -> Holder | None:
    try:
        value = read_json(path)
        numbers = int(value["process"]), int(value["ticks"])
        return Holder(str(value["user"]), str(value["controller"]), *numbers, str(value["since"]))
    except (DataError, ValueError, KeyError, TypeError):
        return None

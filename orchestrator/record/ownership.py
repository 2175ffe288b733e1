"""Who conducts a bench now: a lock that the system releases when its holder dies, with a readable record beside it.

At any moment at most one controller executes the runs of a bench; others may look, collect, and ask it to stop.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.procs import stat
from orchestrator.record.project import owner
from orchestrator.record.rundir import BenchDir

__all__ = ["Holder", "Ownership", "holder", "owned"]

_FILE = "owner.lock"


@dataclass(frozen=True, slots=True)
class Holder:
    """The controller that conducts a bench; ``process`` is its process id on ``controller``, ``ticks`` when that began."""

    user: str
    controller: str
    process: int
    ticks: int
    since: str

    def __str__(self) -> str:
        """Say who it is."""
        return f"{self.user}@{self.controller}, process {self.process}, since {self.since}"

    def signal(self, number: int) -> bool:
        """Send it a signal if it is that very process on this machine. False where it is elsewhere or gone."""
        if self.controller != socket.gethostname() or _ticks(self.process) != self.ticks:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.process, number)
            return True
        return False


class Ownership:
    """A held bench. Survives a fork: the lock is held until every process that has it is gone or has released it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def sign(self) -> None:
        """Write this process into the record; to be done again by a child that goes on with the bench."""
        record = json.dumps({**owner(), "ticks": _ticks(os.getpid())}).encode() + b"\n"
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, record, 0)

    def release(self) -> None:
        """Let go in this process."""
        os.close(self._handle)


def take(bench: BenchDir) -> Ownership:
    """Take a bench for this process. Raises RunError run_in_use naming the controller that has it."""
    path = bench.path / _FILE
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        who = _read(path)
        raise RunError(
            f"another controller conducts this bench: {who or 'its record cannot be read'}",
            kind="run_in_use",
            where=str(bench.path),
            hint="orch attach shows it; orch cancel stops it",
        ) from None
    taken = Ownership(handle)
    taken.sign()
    return taken


@contextmanager
def owned(bench: BenchDir) -> Iterator[Ownership]:
    """Hold a bench for the length of a block."""
    taken = take(bench)
    try:
        yield taken
    finally:
        taken.release()


def holder(bench: BenchDir) -> Holder | None:
    """Return who conducts a bench now, None where nobody does."""
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
        value = json.loads(path.read_bytes()[:4096])
        numbers = int(value["process"]), int(value["ticks"])
        return Holder(str(value["user"]), str(value["controller"]), *numbers, str(value["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ticks(pid: int) -> int:
    one = stat(pid)
    return one.start_ticks if one else 0

"""Whether this process may open as many files and start as many threads as the hosts of a command need: asked beforehand.

Where a limit is met in the middle of a run, whatever happens to be done then fails, and the run with it. So a command that
would meet one is refused with the figure that it needs.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.nodes.fanout import WIDTH
from orchestrator.procs import own_groups

__all__ = ["disk_room", "make_room"]

# A host takes a socket and a few locks for long, and the pipes of `ssh -G` for a moment; the rest is the program itself.
_FILES_PER_HOST, _FILES = 8, 32
# A thread of the protocol each; and for each call at a time its own thread, and perhaps `ssh -G`.
_TASKS_PER_HOST, _TASKS_PER_CALL, _TASKS = 1, 2, 6
_FEW = 10_000
# Whole blocks of a disk: four small rendered files and four logs that may be empty; and a little for the journal.
_PLAN_BYTES_PER_NODE, _PLAN_BYTES = 64 << 10, 1 << 20


def disk_room(folder: Path, runs: int, hosts: int) -> None:
    """Raise ConfigError where the disk of ``folder`` has no room for the plan: rendered files and records, without logs."""
    needed = _PLAN_BYTES + runs * hosts * _PLAN_BYTES_PER_NODE
    there = next(path for path in (folder, *folder.parents) if path.exists())
    system = os.statvfs(there)
    if (free := system.f_bavail * system.f_frsize) < needed:
        message = f"the plan of {runs} runs on up to {hosts} hosts needs {needed >> 20} MiB, {free >> 20} MiB are free"
        raise ConfigError(message, where=str(there), hint="free some space, or set ORCH_PROJECT to another disk")


def make_room(hosts: int) -> None:
    """Raise the soft limit of open files where that helps. Raises ConfigError where so many hosts cannot be served."""
    files = hosts * _FILES_PER_HOST + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        most = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < files:
            message = f"{hosts} hosts need up to {files} open files, this process may have {most}"
            raise ConfigError(message, where="limits", hint=f"ulimit -n {files}, or fewer hosts at a time")
    tasks = hosts * _TASKS_PER_HOST + min(hosts, WIDTH) * _TASKS_PER_CALL + _TASKS
    for what, room in _task_rooms():
        if room < tasks:
            message = f"{hosts} hosts need up to {tasks} further threads, {what} leaves {max(0, room)}"
            raise ConfigError(message, where="limits", hint="raise it, or fewer hosts at a time")


def _task_rooms() -> Iterator[tuple[str, int]]:
    """Yield each limit on threads that is low enough to matter, in words, and how many more it lets this process start."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() and 0 <= soft < _FEW:  # it does not bind root
        yield f"the limit of {soft} processes of this user (ulimit -u)", soft - _tasks_of(os.getuid())
    around = ((each, top) for here, top, _ in own_groups("pids") for each in (here, *here.parents))
    for group in (each for each, top in around if each.is_relative_to(top)):
        try:
            most, now = ((group / name).read_text(encoding="ascii").strip() for name in ("pids.max", "pids.current"))
        except OSError:
            continue
        if most.isdecimal():
            yield f"the limit of {most} tasks of the control group {group}", int(most) - int(now)


def _tasks_of(user: int) -> int:
    """Return how many threads a user's processes have."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == user:
                    count += int((entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[17])
            except (OSError, IndexError, ValueError):
                continue
    return count

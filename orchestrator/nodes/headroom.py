"""Check in advance whether this process may open as many files and start as many threads as a
command's hosts need.

A limit reached in the middle of a run would fail the run. So a command that would exceed one is
refused with the number it needs.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.nodes.fanout import WIDTH
from orchestrator.plural import plural
from orchestrator.procs import own_groups

# Each host needs a socket and a few locks permanently, and the pipes of `ssh -G` briefly; the rest
# is the program itself.
_FILES_PER_HOST, _FILES = 8, 32
# One protocol thread per host; per concurrent call one thread and possibly `ssh -G`.
_TASKS_PER_HOST, _TASKS_PER_CALL, _TASKS = 1, 2, 6
# With a local program for each connection: its streams; itself, and the threads that read what it
# and a command print.
_FILES_PER_PROGRAM, _TASKS_PER_PROGRAM = 6, 4
_FEW = 10_000
# Whole disk blocks for four small rendered files and four possibly empty logs; and a little for the
# journal.
_PLAN_BYTES_PER_NODE, _PLAN_BYTES = 64 << 10, 1 << 20


def disk_room(folder: Path, runs: int, hosts: int) -> None:
    """Raise ConfigError if the disk of ``folder`` has no space for the plan: rendered files and
    records, without logs.
    """
    needed = _PLAN_BYTES + runs * hosts * _PLAN_BYTES_PER_NODE
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    system = os.statvfs(existing)
    free = system.f_bavail * system.f_frsize
    if free < needed:
        plan = f"the plan of {plural(runs, 'run')} on up to {plural(hosts, 'host')}"
        message = f"{plan} needs {needed >> 20} MiB, but only {free >> 20} MiB are free"
        raise ConfigError(
            message,
            where=str(existing),
            hint="free some space, or set ORCH_PROJECT to another disk",
        )


def make_room(hosts: int, by_program: int = 0) -> None:
    """Raise the soft limit of open files if needed. Raises ConfigError if the limits are too low
    for that many hosts.

    ``by_program`` of them are reached through a local program each, such as ssh.
    """
    files = hosts * _FILES_PER_HOST + by_program * _FILES_PER_PROGRAM + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        most = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < files:
            message = f"reaching {plural(hosts, 'host')} needs up to {files} open files, but this process may open only {most}"
            raise ConfigError(
                message, where="limits", hint=f"ulimit -n {files}, or use fewer hosts at a time"
            )
    tasks = (
        hosts * _TASKS_PER_HOST
        + by_program * _TASKS_PER_PROGRAM
        + min(hosts, WIDTH) * _TASKS_PER_CALL
        + _TASKS
    )
    for limit, available in _available_tasks():
        if available < tasks:
            needed = f"reaching {plural(hosts, 'host')} needs up to {tasks} further threads"
            message = f"{needed}, but {limit} leaves only {max(0, available)}"
            raise ConfigError(
                message, where="limits", hint="raise this limit, or use fewer hosts at a time"
            )


def _available_tasks() -> Iterator[tuple[str, int]]:
    """Yield each limit on threads that is low enough to matter, in words, and how many more threads
    it allows.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() and 0 <= soft < _FEW:  # it does not apply to root
        yield (
            f"the limit of {soft} processes of this user (ulimit -u)",
            soft - _tasks_of(os.getuid()),
        )
    groups = ((group, top) for own, top, _ in own_groups("pids") for group in (own, *own.parents))
    for group in (group for group, top in groups if group.is_relative_to(top)):
        try:
            most, now = (
                (group / name).read_text(encoding="ascii").strip()
                for name in ("pids.max", "pids.current")
            )
        except OSError:
            continue
        if most.isdecimal():
            yield f"the limit of {most} tasks of the control group {group}", int(most) - int(now)


def _tasks_of(user: int) -> int:
    """Return the number of threads of a user's processes."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == user:
                    count += int(
                        (entry / "stat")
                        .read_text(encoding="utf-8", errors="replace")
                        .rpartition(")")[2]
                        .split()[17]
                    )
            except (OSError, IndexError, ValueError):
                continue
    return count

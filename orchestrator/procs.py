"""Processes as /proc shows them: who lives, who began when and in which control group, and how they are ended for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import RunError

__all__ = [
    "Stat",
    "ancestors",
    "descendants",
    "end_all",
    "held_namespaces",
    "live_pid",
    "own_groups",
    "record_pid",
    "snapshot",
    "stat",
]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stat:
    """One line of ``/proc/PID/stat``; ``start_ticks`` tells two processes of one number apart."""

    pid: int
    parent: int
    state: str
    start_ticks: int
    name: str


def stat(pid: int) -> Stat | None:
    """Return what the kernel says of a process, None when it is gone. A defunct process has state ``Z``."""
    try:
        head, _, tail = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()
    return Stat(pid, int(fields[1]), fields[0], int(fields[19]), head.partition("(")[2])


def snapshot() -> dict[int, Stat]:
    """Return every process of this machine that is not defunct."""
    found = (stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {one.pid: one for one in found if one is not None and one.state not in "ZX"}


def environ(pid: int) -> frozenset[bytes]:
    """Return the ``NAME=value`` entries a process was started with; empty where it may not be read."""
    try:
        return frozenset((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()


def cmdline(pid: int) -> bytes:
    """Return the NUL-separated arguments of a process, or the title it gave itself; empty where it is gone."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def namespace(pid: int, which: str) -> str:
    """Return the identity of a process's namespace, e.g. ``net:[4026532]``; empty where it may not be read."""
    try:
        return str((_PROC / str(pid) / "ns" / which).readlink())
    except OSError:
        return ""


@contextlib.contextmanager
def held_namespaces(pids: Iterable[int], which: str) -> Iterator[frozenset[str]]:
    """Yield the identities of these processes' namespaces, which mean the same ones until the block is left.

    Once nobody uses a namespace the kernel gives its number to the next one that is made, maybe somebody else's; so whoever
    ends processes by it holds it open meanwhile.
    """
    opened: list[int] = []
    try:
        for pid in pids:
            with contextlib.suppress(OSError):
                opened.append(os.open(_PROC / str(pid) / "ns" / which, os.O_RDONLY))
        yield frozenset(str((_PROC / "self/fd" / str(fd)).readlink()) for fd in opened)
    finally:
        for fd in opened:
            os.close(fd)


def own_groups(controller: str) -> Iterator[tuple[Path, Path, bool]]:
    """Yield (directory, top of its hierarchy, whether that is the unified one) of the groups that count for a controller here.

    Nothing where the kernel has no control groups.
    """
    try:
        mounts = [line.split(" ") for line in (_PROC / "self/mounts").read_text(encoding="utf-8").splitlines()]
        groups = [line.split(":", 2) for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return
    for _, target, kind, options, *_ in mounts:
        for _, names, group in groups:
            unified = kind == "cgroup2" and not names
            if unified or (kind == "cgroup" and controller in names.split(",") and controller in options.split(",")):
                yield Path(target, group.lstrip("/")), Path(target), unified


def record_pid(path: Path, pid: int) -> None:
    """Write a process id with its start time."""
    one = stat(pid)
    temporary = path.with_suffix(".part")
    temporary.write_text(f"{pid} {one.start_ticks if one else 0}\n", encoding="ascii")
    temporary.replace(path)


def live_pid(path: Path) -> int:
    """Return the process id recorded in a file if that very process is alive, else 0."""
    try:
        pid, ticks = map(int, path.read_text(encoding="ascii").split())
    except (FileNotFoundError, ValueError):
        return 0
    one = stat(pid)
    return pid if one and one.start_ticks == ticks and one.state not in "ZX" else 0


def ancestors(pid: int, processes: Mapping[int, Stat]) -> set[int]:
    """Return a process and all its parents."""
    found: set[int] = set()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].parent
    return found


def descendants(pids: Iterable[int], processes: Mapping[int, Stat]) -> set[int]:
    """Return these processes and all their children's children."""
    found = {pid for pid in pids if pid in processes}
    while more := {one.pid for one in processes.values() if one.parent in found} - found:
        found |= more
    return found


def end_all(members: Callable[[], Mapping[int, Stat]], *, timeout_s: float = 10.0) -> dict[int, Stat]:
    """Kill what ``members`` finds until it finds nothing and all it ever found is gone; return that, by process id.

    The processes are stopped before they are killed, so that none of them forks a child that the listing has missed.
    One that is on its way out shows no environment and no namespaces, by which ``members`` would know it, while the kernel
    may still be ending a whole process namespace on its behalf: so each is waited for by its number and start time.
    Raises RunError when some do not end in time (a process waiting for a dead disk or driver cannot be killed).
    """
    ended: dict[int, Stat] = {}
    deadline = time.monotonic() + timeout_s
    while found := {**_alive(ended), **members()}:
        if time.monotonic() > deadline:
            left = ", ".join(f"{one.name} (pid {pid})" for pid, one in found.items())
            raise RunError(f"still alive {timeout_s:g} s after SIGKILL: {left}", kind="node_busy")
        ended |= found
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in {**found, **members()}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.002)
    for pid in ended:
        with contextlib.suppress(ChildProcessError):  # not a child of this process: its own parent reaps it
            os.waitpid(pid, os.WNOHANG)
    return ended


def _alive(known: Mapping[int, Stat]) -> dict[int, Stat]:
    """Return those of these very processes that have not ended."""
    now = ((one, stat(pid)) for pid, one in known.items())
    return {one.pid: one for one, new in now if new and new.start_ticks == one.start_ticks and new.state not in "ZX"}

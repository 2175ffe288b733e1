"""Processes as /proc shows them: which are alive, when they started, their control groups, and how
to end them reliably; other programs, run to their end within limits.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, AnyStr

from orchestrator.errors import RunError

_PROC = Path("/proc")
_LOOK_S = 0.05
_START_S = 1.0
_MOST_OUTPUT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Stat:
    """One line of ``/proc/PID/stat``; ``start_ticks`` distinguishes two processes that had the same
    process id.
    """

    pid: int
    parent: int
    state: str
    start_ticks: int
    name: str


def stat(pid: int) -> Stat | None:
    """Return the kernel's record of a process, None if it has ended. A defunct process has state
    ``Z``.
    """
    try:
        head, _, tail = (
            (_PROC / str(pid) / "stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()
    return Stat(pid, int(fields[1]), fields[0], int(fields[19]), head.partition("(")[2])


def snapshot() -> dict[int, Stat]:
    """Return every process of this machine that is not defunct."""
    stats = (stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {
        process.pid: process
        for process in stats
        if process is not None and process.state not in "ZX"
    }


def environ(pid: int) -> frozenset[bytes]:
    """Return the ``NAME=value`` entries with which a process was started; empty if they cannot be
    read.
    """
    try:
        return frozenset((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()


def cmdline(pid: int) -> bytes:
    """Return the NUL-separated arguments of a process, or the title it gave itself; empty if it has
    ended.
    """
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def namespace(pid: int, which: str) -> str:
    """Return the identity of a process's namespace, e.g. ``net:[4026532]``; empty if it cannot be
    read.
    """
    try:
        return str((_PROC / str(pid) / "ns" / which).readlink())
    except OSError:
        return ""


@contextlib.contextmanager
def hold_namespaces(pids: Iterable[int], which: str) -> Iterator[frozenset[str]]:
    """Yield the identities of these processes' namespaces, which stay valid until the block ends.

    When a namespace is no longer used, the kernel reuses its number for the next one, which may be
    unrelated. Code that ends processes by namespace therefore keeps it open meanwhile.
    """
    opened = []
    try:
        for pid in pids:
            with contextlib.suppress(OSError):
                opened.append(os.open(_PROC / str(pid) / "ns" / which, os.O_RDONLY))
        yield frozenset(str((_PROC / "self/fd" / str(fd)).readlink()) for fd in opened)
    finally:
        for fd in opened:
            os.close(fd)


def own_groups(controller: str) -> Iterator[tuple[Path, Path, bool]]:
    """Yield this process's control groups for a controller: (directory, top of the hierarchy,
    whether it is the unified one).

    Yields nothing if the kernel has no control groups.
    """
    try:
        mounts = [
            line.split(" ")
            for line in (_PROC / "self/mounts").read_text(encoding="utf-8").splitlines()
        ]
        groups = [
            line.split(":", 2)
            for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()
        ]
    except OSError:
        return
    for _, target, kind, options, *_ in mounts:
        for _, names, group in groups:
            unified = kind == "cgroup2" and not names
            if unified or (
                kind == "cgroup"
                and controller in names.split(",")
                and controller in options.split(",")
            ):
                yield Path(target, group.lstrip("/")), Path(target), unified


def record_pid(path: Path, pid: int) -> None:
    """Write a process id with its start time."""
    temporary = path.with_suffix(".part")
    temporary.write_text(f"{pid} {start_ticks(pid)}\n", encoding="ascii")
    temporary.replace(path)


def live_pid(path: Path) -> int:
    """Return the process id recorded in a file if the same process is still alive, else 0."""
    try:
        pid, ticks = map(int, path.read_text(encoding="ascii").split())
    except (FileNotFoundError, ValueError):
        return 0
    return pid if is_same_process(pid, ticks) else 0


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, 0 if there is none; with the id
    it names one process.
    """
    process = stat(pid)
    return process.start_ticks if process else 0


def is_same_process(pid: int, ticks: int) -> bool:
    """Return True if the process that had this id and start time is still alive."""
    process = stat(pid)
    return process is not None and process.start_ticks == ticks and process.state not in "ZX"


def ancestors(pid: int, processes: Mapping[int, Stat]) -> set[int]:
    """Return a process and all its ancestors."""
    lineage = set()
    while pid in processes and pid not in lineage:
        lineage.add(pid)
        pid = processes[pid].parent
    return lineage


def descendants(pids: Iterable[int], processes: Mapping[int, Stat]) -> set[int]:
    """Return these processes and all their descendants."""
    members = {pid for pid in pids if pid in processes}
    while (
        children := {process.pid for process in processes.values() if process.parent in members}
        - members
    ):
        members |= children
    return members


def end_all(
    members: Callable[[], Mapping[int, Stat]], *, timeout_s: float = 60.0
) -> dict[int, Stat]:
    """Kill the processes that ``members`` lists, until it lists none and all of them have ended;
    return them by process id.

    The processes are stopped before they are killed, so that none forks a child that the list does
    not have. A process that is exiting no longer shows the environment and namespaces by which
    ``members`` recognises it, although the kernel may still be ending a whole process namespace for
    it; so each one is awaited by its process id and start time. Raises RunError if some do not end
    in time (a process that waits for a dead disk or driver cannot be killed).
    """
    ended: dict[int, Stat] = {}
    deadline = time.monotonic() + timeout_s
    while alive := {**_alive(ended), **members()}:
        if time.monotonic() > deadline:
            remaining = ", ".join(f"{process.name} (pid {pid})" for pid, process in alive.items())
            raise RunError(
                f"still alive {timeout_s:g} s after SIGKILL: {remaining}", kind="node_busy"
            )
        ended |= alive
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in {**alive, **members()}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.002)
    for pid in ended:
        with contextlib.suppress(
            ChildProcessError
        ):  # not a child of this process: its own parent reaps it
            os.waitpid(pid, os.WNOHANG)
    return ended


def _alive(processes: Mapping[int, Stat]) -> dict[int, Stat]:
    """Return the processes that have not ended; a reused process id does not count."""
    pairs = ((old, stat(pid)) for pid, old in processes.items())
    return {
        old.pid: old
        for old, new in pairs
        if new and new.start_ticks == old.start_ticks and new.state not in "ZX"
    }


def signal_group(process: subprocess.Popen[AnyStr], number: int) -> None:
    """Signal a child's process group, unless the child is reaped.

    The kernel may have given the number of a reaped child to another group. Another thread may reap
    the child at any moment, and its group may be gone then.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def start_program(
    argv: Sequence[str],
    register: Callable[[subprocess.Popen[bytes]], object] = lambda process: None,
    **settings: Any,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, with these settings of `subprocess.Popen`.

    A thread starts it and calls ``register``: the exception that a signal raises in the main thread
    would lose a program that runs and is not yet returned. One that is lost is killed. Raises
    OSError or ValueError if it cannot be started.
    """
    started: list[subprocess.Popen[bytes]] = []
    errors: list[BaseException] = []
    over = threading.Event()  # a join that is interrupted takes the thread for ended (Python 3.11)

    def start() -> None:
        try:
            process = subprocess.Popen(argv, bufsize=0, start_new_session=True, **settings)
            register(process)
            started.append(process)
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=start, daemon=True, name=f"start {argv[0]}")
    try:
        thread.start()
        over.wait()
        if errors:
            raise errors[0]
        return started[0]
    except BaseException:
        over.wait(_START_S)
        for process in started:
            signal_group(process, signal.SIGKILL)
        raise


class TooMuchOutput(Exception):
    """A program has printed more than `run_program` takes."""


def run_program(
    argv: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    data: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, in a session of its own, with ``data`` as its standard input; return
    its exit status and what it printed until then. A daemon that keeps its output open is not
    waited for.

    Raises OSError if it cannot be started, TimeoutExpired, and TooMuchOutput after 16 MiB; then all
    processes of its session are killed.
    """
    from tempfile import TemporaryFile

    with TemporaryFile() as given:
        given.write(data)
        given.seek(0)
        pipe = subprocess.PIPE
        process = start_program(argv, stdin=given, stdout=pipe, stderr=pipe, env=environment)
    assert process.stdout and process.stderr
    with process.stdout as stdout, process.stderr as stderr:
        try:
            outputs = _outputs_of(process.pid, stdout.fileno(), stderr.fileno(), timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(argv, timeout_s) from None
            raise
        finally:
            code = process.wait()
    return subprocess.CompletedProcess(argv, code, *outputs)


def _outputs_of(pid: int, stdout: int, stderr: int, timeout_s: float) -> list[bytes]:
    """Return the output of a child when it ends, and leave it unreaped.

    No other process group can take its number until it is reaped.
    """
    deadline = time.monotonic() + timeout_s
    outputs = {stdout: bytearray(), stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for handle in outputs:
            selector.register(handle, selectors.EVENT_READ)
        while True:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            is_over = os.waitid(os.P_PID, pid, flags) is not None
            ready = selector.select(0 if is_over else _LOOK_S)
            if is_over and not ready:
                return list(map(bytes, outputs.values()))
            for key, _ in ready:
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fd)
                outputs[key.fd] += piece
            if sum(map(len, outputs.values())) > _MOST_OUTPUT_BYTES:
                raise TooMuchOutput
            if time.monotonic() > deadline and not is_over:
                raise TimeoutError

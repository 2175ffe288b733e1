"""What one rank did while it was watched, from what its node saw: it is stopped, it waits for others, it sleeps, it computes.

Whether a rank waits in a collective is known from the flight recorder, from the phase that it reports, or from its stacks, in
this order. Where none of them tells, neither processor time nor a place in the kernel decides it: a rank may spin while it
waits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.record.hang_report import Collective, RankSeen

__all__ = ["ANY_TIME", "Activity", "activity", "listed", "main_stack"]

ANY_TIME = ("start", "compile", "checkpoint", "evaluate", "end")
"""Phases of which a rank says that they may take any time."""
_BUSY_SHARE = 0.05
_READING_BYTES = 1 << 12
_WRITING = ("pipe_write", "anon_pipe_write")
# Functions whose frame shows that a thread is in a collective: of torch.distributed, of our simulated ring, of mpi4py.
_IN_COLLECTIVE = re.compile(
    r"\b(all_reduce|all_gather\w*|reduce_scatter\w*|barrier|broadcast\w*|all_to_all\w*|_exchange|Allreduce|Barrier)\b"
)
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line \d+ in (?P<faulthandler>\S+)|^\s+(?P<spy>\S+) \([^)]*:\d+\)$')


@dataclass(frozen=True, slots=True)
class Activity:
    """``kind``: stopped, traced, frozen, unread (it writes into a full pipe whose readers are stopped), pipe (into any other
    that is full), waits, worker (it does not wait for others, and one of its processes is stopped), storage, input (it sleeps
    until its samples are there), computes, reads, asleep, pauses (in a phase of any length), or unknown. ``words`` continue the
    name of the rank. ``is_known``: whether the rank is known to be outside of every collective. ``collective`` is the one that
    it waits in, if that is recorded."""

    kind: str
    words: str
    is_known: bool = False
    collective: Collective | None = None


def activity(seen: RankSeen) -> Activity:
    """Return what a rank did."""
    step = _step(seen)
    if seen.frozen:
        return Activity("frozen", f"is frozen{step} (by its control group)")
    if seen.state == seen.was == "T":
        return Activity("stopped", f"stopped{step} (state T)")
    if seen.state == seen.was == "t":
        return Activity("traced", f"is held{step} by a debugger (state t)")
    waits = _waits(seen)
    phase = seen.progress.phase if seen.progress else ""
    if waits is None and phase in ANY_TIME:
        return Activity("pauses", f"is in {phase}{step}")
    is_known = seen.collectives is not None or phase in ("input", "compute")
    if pipe := _pipe(seen, waits, is_known):
        return pipe
    if waits is not None:
        return waits
    if worker := next((child for child in seen.children if child.state == "T"), None):
        return Activity("worker", f"has a stopped process{step}: {worker.name}, {worker.pid} (state T)", is_known)
    kind, words = _doing(seen, {"input": " for its samples", "compute": ""}.get(phase, ""))
    where = " outside of every collective" if is_known else ""
    return Activity(kind if is_known else "unknown", f"{words}{step}{where}{_innermost(seen)}", is_known)


def _pipe(seen: RankSeen, waits: Activity | None, is_known: bool) -> Activity | None:
    """Return the activity of a rank that a full pipe blocks, None if none does: a pipe that takes bytes is read, if slowly."""
    main = seen.threads[0] if seen.threads else None
    is_main = main is not None and (main.call in ("write", "writev") or main.channel in _WRITING)
    if seen.pipe is None or seen.io_bytes or not (is_main or (is_known and waits is None)):
        return None
    is_unread = bool(seen.readers) and all(reader.state == "T" for reader in seen.readers)
    words = f"waits{_step(seen)} to write into a full pipe{_read_by(seen)}"
    return Activity("unread" if is_unread else "pipe", words, is_known=True)


def _doing(seen: RankSeen, of: str) -> tuple[str, str]:
    share = (seen.cpu_s + seen.children_cpu_s) / seen.window_s if seen.window_s else 0.0
    if seen.state == seen.was == "D":
        return "storage", f"waits{of} in the kernel (state D, {seen.channel or 'unknown'})"
    if share < _BUSY_SHARE and (reader := next((child for child in seen.children if child.state == "D"), None)):
        return "storage", f"waits{of}: its process {reader.name}, {reader.pid} waits in the kernel (state D)"
    if share >= _BUSY_SHARE or "R" in (seen.state, seen.was):
        return "computes", f"computes ({seen.cpu_s + seen.children_cpu_s:.2f} s in {seen.window_s:.2f} s)"
    if seen.io_bytes > _READING_BYTES:
        return "reads", f"reads or writes ({seen.io_bytes} bytes in {seen.window_s:.2f} s)"
    where = f" in {seen.call}" if seen.call else ""
    return ("input", f"waits{of}, asleep{where}") if of else ("asleep", f"sleeps{where}")


def _waits(seen: RankSeen) -> Activity | None:
    """Return the activity of a rank that waits in a collective, None if it does not or nothing tells."""
    if seen.collectives is not None:
        pending = next((entry for entry in seen.collectives if not entry.over), None)
        return None if pending is None else Activity("waits", f"waits in {_name(pending)}", collective=pending)
    if seen.progress and seen.progress.phase == "collective":
        return Activity("waits", f"waits in a collective of step {seen.progress.step}")
    if seen.progress and seen.progress.phase in ("input", "compute"):
        return None
    call = next((name for name in _frames(seen)[:6] if _IN_COLLECTIVE.search(name)), "")
    return Activity("waits", f"waits in {call}") if call else None


def _name(collective: Collective) -> str:
    """Return the name of a collective and its number, as ``all-reduce 119``."""
    return f"{collective.name.rpartition(':')[2].replace('_', '-') or 'a collective'} {collective.number}"


def _step(seen: RankSeen) -> str:
    return f" in step {seen.progress.step}" if seen.progress and seen.progress.step > 0 else ""


def _read_by(seen: RankSeen) -> str:
    if not seen.readers:
        return ", which no process on this node was seen to read"
    return (
        ", which " + listed([f"{reader.name} ({reader.pid}, state {reader.state})" for reader in seen.readers]) + " should read"
    )


def _frames(seen: RankSeen) -> list[str]:
    """Return the functions of the main thread, innermost first. faulthandler lists it last, py-spy first."""
    threads: list[list[str]] = [[]]
    for line in seen.python:
        if line.startswith(("Thread ", "Current thread ")):
            threads.append([])
        elif match := _FRAME.search(line):
            threads[-1].append(match["faulthandler"] or match["spy"])
    named = [names for names in threads if names]
    if not named:
        return []
    return named[0] if _is_of_py_spy(seen) else named[-1]


def main_stack(seen: RankSeen) -> tuple[str, ...]:
    """Return the main thread's stack, innermost first: the last that faulthandler writes, the first that py-spy does."""
    starts = [number for number, line in enumerate(seen.python) if line.startswith(("Thread ", "Current thread "))]
    if not starts:
        return seen.python
    if _is_of_py_spy(seen):
        return seen.python[starts[0] + 1 : starts[1] if len(starts) > 1 else None]
    return seen.python[starts[-1] + 1 :]


def _is_of_py_spy(seen: RankSeen) -> bool:
    """Whether py-spy wrote the stacks, which names threads and begins with the main one."""
    return "MainThread" in "".join(seen.python[:4])


def _innermost(seen: RankSeen) -> str:
    names = _frames(seen)
    return f", in {names[0]}" if names else ""


def listed(words: list[str]) -> str:
    """Return words as a list in a sentence.

    >>> listed(["0", "1", "3"])
    '0, 1 and 3'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)

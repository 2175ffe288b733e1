"""The activity of one rank while it was watched, from its node's observations: it is stopped, it
waits for others, it sleeps, it computes.

The flight recorder, its stacks, or the phase that it reports, in this order, show whether a rank
waits in a collective. If they do not tell, neither processor time nor a place in the kernel decides
it: a rank may spin while it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.features.hang.node_report import Collective, RankSeen
from orchestrator.features.hang.waits import (
    BACKWARD,
    calls_of,
    is_a_loop,
    is_for_itself,
    is_inside_for_itself,
    waits_for_others,
)
from orchestrator.plural import join_words

ANY_TIME = ("start", "compile", "checkpoint", "evaluate", "end")
"""Phases of which a rank says that they may take any time."""
_BUSY_SHARE = 0.05
_READING_BYTES = 1 << 12
_FILE_LOCKS = ("flock", "fcntl")
_WRITING = ("pipe_write", "anon_pipe_write")


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of a rank.

    ``kind``: stopped, traced, frozen, unread (it writes into a full pipe whose readers are
    stopped), pipe (into any other full pipe), waits, worker (it does not wait for others, and one
    of its processes is stopped), storage, input (it sleeps until its samples are there), computes,
    reads, asleep, pauses (in a phase of any length), or unknown. ``words`` continue the name of the
    rank. ``is_known``: whether the rank is known to be outside of every collective. ``collective``
    is the recorded collective in which it waits. ``place`` distinguishes its place from where
    others wait.
    """

    kind: str
    words: str
    is_known: bool = False
    collective: Collective | None = None
    place: str = ""


def activity(seen: RankSeen, telling: frozenset[str] = frozenset()) -> Activity:
    """Return the activity of a rank.

    ``telling``: the phases that show that a rank is outside of every collective.
    """
    step = _step(seen)
    if seen.frozen:
        return Activity("frozen", f"is frozen{step} (by its control group)")
    if seen.state == seen.was == "T":
        return Activity("stopped", f"stopped{step} (state T)")
    if seen.state == seen.was == "t":
        return Activity("traced", f"is held{step} by a debugger (state t)")
    waits = _waits(seen)
    phase = seen.progress.phase if seen.progress and seen.progress.has_begun else ""
    # A checkpoint or an evaluation may wait in a loop or at a store of its own: only a collective
    # on record contradicts it.
    if phase in ANY_TIME and (waits is None or waits.collective is None):
        return Activity("pauses", f"is in {phase}{step}")
    is_known = _is_outside(seen, phase, telling)
    if pipe := _pipe(seen, waits, is_known):
        return pipe
    if waits is not None:
        return waits
    # Any other rank may hold it, also on another node that shares the disk.
    if seen.call in _FILE_LOCKS:
        return Activity("unknown", f"waits for the lock of a file{step}{_innermost(seen)}")
    worker = next((child for child in seen.children if child.state == "T"), None)
    if worker:
        return Activity(
            "worker",
            f"has a stopped process{step}: {worker.name}, {worker.pid} (state T)",
            is_known,
        )
    kind, words = _doing(
        seen, {"input": " for its samples", "compute": ""}.get(phase, "") if is_known else ""
    )
    where = " outside of every collective" if is_known else ""
    return Activity(
        kind if is_known else "unknown", f"{words}{step}{where}{_innermost(seen)}", is_known
    )


def phases_that_tell(seen: Sequence[RankSeen]) -> frozenset[str]:
    """Return the phases in which a rank of this run is outside of every collective.

    A program that marks one phase in a step, or none for its collectives, waits in the same phase
    in which it computes.
    """
    marks = [one.progress for one in seen if one.progress and one.progress.has_begun]
    marked = frozenset(progress.phase for progress in marks).union(
        *(progress.marked or () for progress in marks)
    )
    if "collective" in marked:
        return frozenset({"compute", "input"})
    return frozenset({"input"} if marked & {"compute", "step"} else ())


def _is_outside(seen: RankSeen, phase: str, telling: frozenset[str]) -> bool:
    """Return True if it is known that a rank that is not seen to wait is outside of every
    collective.
    """
    if seen.collectives is not None or phase in telling:
        return True
    # Its answers come from a thread that needs the interpreter, which a call of C in the main
    # thread does not give up.
    if seen.is_unanswered and calls_of(seen):
        return True
    return is_for_itself(seen, computes=_computes(seen))


def _pipe(seen: RankSeen, waits: Activity | None, is_known: bool) -> Activity | None:
    """Return the activity of a rank that a full pipe blocks, None if none does: a pipe that takes
    bytes is read, if slowly.
    """
    main = seen.threads[0] if seen.threads else None
    is_main = main is not None and (main.call in ("write", "writev") or main.channel in _WRITING)
    if seen.pipe is None or seen.io_bytes or not (is_main or (is_known and waits is None)):
        return None
    is_unread = bool(seen.readers) and all(reader.state == "T" for reader in seen.readers)
    words = f"waits{_step(seen)} to write into a full pipe{_read_by(seen)}"
    return Activity("unread" if is_unread else "pipe", words, is_known=True)


def _doing(seen: RankSeen, of: str) -> tuple[str, str]:
    share = _share(seen)
    if seen.state == seen.was == "D":
        return "storage", f"waits{of} in the kernel (state D, {seen.channel or 'unknown'})"
    if share < _BUSY_SHARE and (
        reader := next((child for child in seen.children if child.state == "D"), None)
    ):
        return (
            "storage",
            f"waits{of}: its process {reader.name}, {reader.pid} waits in the kernel (state D)",
        )
    if _computes(seen):
        return (
            "computes",
            f"computes ({seen.cpu_s + seen.children_cpu_s:.2f} s in {seen.window_s:.2f} s)",
        )
    if seen.io_bytes > _READING_BYTES:
        return "reads", f"reads or writes ({seen.io_bytes} bytes in {seen.window_s:.2f} s)"
    where = f" in {seen.call}" if seen.call else ""
    if of:
        return ("input", f"waits{of}, asleep{where}")
    return ("asleep", f"sleeps{where}")


def _share(seen: RankSeen) -> float:
    """Return the processors that a rank and what it has started used."""
    if not seen.window_s:
        return 0.0
    return (seen.cpu_s + seen.children_cpu_s) / seen.window_s


def _computes(seen: RankSeen) -> bool:
    return _share(seen) >= _BUSY_SHARE or "R" in (seen.state, seen.was)


def _waits(seen: RankSeen) -> Activity | None:
    """Return the activity of a rank that waits for others, None if it does not or nothing tells."""
    if pending := seen.pending:
        return Activity(
            "waits",
            f"waits in {_name(pending)}",
            collective=pending,
            place=f"{pending.group}/{pending.name}",
        )
    is_held = seen.is_unanswered and bool(
        calls_of(seen)
    )  # it may have left the phase that it marked last
    marked = (
        seen.collectives is None
        and not is_held
        and seen.progress
        and seen.progress.phase == "collective"
    )
    # The recorder holds collectives alone: no wait at a store, no monitored barrier.
    place = waits_for_others(seen)
    if place and not (marked and is_a_loop(place)):
        if place == BACKWARD and _computes(seen) and not seen.uses_device:
            return None
        if is_inside_for_itself(seen, computes=_computes(seen)):
            return None
        return Activity("waits", f"waits in {place}", place=place)
    if marked and seen.progress:
        return Activity(
            "waits", f"waits in a collective of step {seen.progress.step}", place="collective"
        )
    return None


def _name(collective: Collective) -> str:
    """Return the name of a collective and its number, as ``all-reduce 119``."""
    return f"{collective.name.rpartition(':')[2].replace('_', '-') or 'a collective'} {collective.number}"


def _step(seen: RankSeen) -> str:
    if seen.progress and seen.progress.step > 0:
        return f" in step {seen.progress.step}"
    return ""


def _read_by(seen: RankSeen) -> str:
    if not seen.readers:
        return ", which no process on this node was seen to read"
    return (
        ", which "
        + join_words(
            [f"{reader.name} ({reader.pid}, state {reader.state})" for reader in seen.readers]
        )
        + " should read"
    )


def _innermost(seen: RankSeen) -> str:
    calls = calls_of(seen)
    return f", in {calls[0].name}" if calls else ""

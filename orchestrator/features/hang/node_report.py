"""The report of a node on a run that did not go on, ``hang.json``: the process of each rank, its
progress, its stacks.

The node runner writes it (``remote/noderun/examine.py``). This module is its only reader, for
collected files and for reports over a connection. What a node sends is not trusted: wrong types
become empty values, and nothing is longer than its bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from orchestrator.documents import Invalid, Reader, document_field

_READER = Reader(lenient=True, most_text=200, most_rows=256)
_MOST_S = 1e9
_PHASES = ("input", "compute", "collective", "step")
_DECLARES = 1 << 7
"""Bits of the phases that a rank has ever marked, in order, and the one by which it promises to
mark every long one.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """A rank's own report: the step that has begun, its phase, the number of marks so
    far, and for how many seconds it has made none; 0 if that is not known. ``marked``: the
    phases of a step that it has ever marked, None if it does not say. ``declares``: it marks
    every phase that may take long."""

    step: int = 0
    phase: str = ""
    marks: int = 0
    silent_s: float = 0.0
    marked: frozenset[str] | None = None
    declares: bool = False

    @property
    def has_begun(self) -> bool:
        """True if the program itself has marked anything: loading the module for that makes one
        mark.
        """
        return self.step > 0 or self.marks > 1


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread: its state as in ``ps``, where in the kernel it waits, its system call, what the
    descriptor of that call is, and the processor seconds that it used while it was watched."""

    name: str = ""
    state: str = ""
    channel: str = field(default="", metadata=document_field(key="wchan"))
    call: str = ""
    of: str = ""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process that a rank has started, for example a worker of its data loader."""

    pid: int = 0
    name: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """An open TCP connection of a rank: bytes not yet acknowledged, bytes not yet read,
    retransmissions without an answer.
    """

    local: str
    local_port: int
    remote: str
    remote_port: int
    unacknowledged: int
    unread: int
    retransmits: int


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective in the flight recorder of a rank: its process group, number in it and name, the
    sizes of what it gives and gets, the types of what it gives; ``over`` if done.
    """

    group: str = ""
    number: int = 0
    name: str = ""
    sizes: str = ""
    over: bool = False
    outputs: str = ""
    types: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A Python call that a thread is in: its function and file, of the innermost ones the source
    line (``code``). ``polls``: the line stands in a short loop that waits for a condition."""

    name: str = ""
    file: str = ""
    code: str = ""
    polls: bool = False


@dataclass(frozen=True, slots=True)
class RankSeen:
    """One rank, watched for ``window_s`` seconds.

    ``state`` and ``was`` are the states of its process at the end and at the begin. ``cpu_s`` are
    processor seconds of the rank, ``children_cpu_s`` of what it started. ``pipe`` is the full pipe
    that it writes to, ``readers`` those who may read it. ``python`` are the lines of its stacks,
    ``calls`` the calls of its main thread, innermost first, ``beside`` of its other threads.
    ``collectives`` is None where nothing records them; ``earlier`` are those before.
    ``is_unanswered``: it was asked for them, and did not answer. ``uses_device``: it has a GPU
    open.
    """

    rank: int
    pid: int = 0
    state: str = ""
    was: str = ""
    channel: str = field(default="", metadata=document_field(key="wchan"))
    call: str = ""
    of: str = ""
    window_s: float = 0.0
    cpu_s: float = 0.0
    children_cpu_s: float = 0.0
    io_bytes: int = 0
    frozen: bool = False
    progress: Progress | None = None
    threads: tuple[Thread, ...] = ()
    children: tuple[Process, ...] = ()
    connections: tuple[Connection, ...] = ()
    pipe: str | None = None
    readers: tuple[Process, ...] = ()
    python: tuple[str, ...] = ()
    collectives: tuple[Collective, ...] | None = None
    earlier: tuple[Collective, ...] = ()
    calls: tuple[Call, ...] = ()
    beside: tuple[tuple[Call, ...], ...] = ()
    is_unanswered: bool = field(default=False, metadata=document_field(key="unanswered"))
    uses_device: bool = field(default=False, metadata=document_field(key="device"))

    @property
    def pending(self) -> Collective | None:
        """The collective in which it waits, as its recorder says; None without one on record."""
        return next((entry for entry in self.collectives or () if not entry.over), None)


@dataclass(frozen=True, slots=True)
class HangReport:
    """The report of one node: its ranks in order, the numbers of those that had ended well, and the
    stopped processes that started ranks."""

    ranks: tuple[RankSeen, ...] = ()
    ended: tuple[int, ...] = ()
    stopped: tuple[Process, ...] = ()

    @classmethod
    def of(cls, value: Any) -> HangReport:
        """Return the report that a node sent; an entry that makes no sense is left out."""
        try:
            report = _READER.read(_Report, value)
        except Invalid:
            return cls()
        ranks = {}
        for row in report.ranks:
            with suppress(Invalid):
                seen = _rank(row, report.mono)
                ranks[seen.rank] = seen
        return cls(
            tuple(ranks[number] for number in sorted(ranks)),
            tuple(sorted({number for number in report.ended if number >= 0})),
            tuple(Process(pid, name, "T") for pid, name in report.stopped),
        )


_Row = tuple[str, int, str, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Report:
    """A report as the node sends it; ``mono`` is the time of the node's monotonic clock in seconds."""

    mono: float = 0.0
    ranks: tuple[Mapping[str, Any], ...] = ()
    ended: tuple[int, ...] = ()
    stopped: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Pipe:
    pipe: str = ""
    readers: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Marks:
    """The progress that a rank has written: at ``t`` seconds of the node's clock, and with a
    bit for each phase that it marks."""

    step: int = 0
    phase: str = ""
    marks: int = 0
    t: float = 0.0
    marked: int | None = None


def _rank(row: Mapping[str, Any], now: float) -> RankSeen:
    """Return the observations of a rank. Raises Invalid without its number."""
    pipe, progress = row.get("blocked_pipe"), row.get("progress")
    blocked = _READER.read(_Pipe, pipe if isinstance(pipe, dict) else {})
    known: dict[str, Any] = {
        "connections": _connections(row.get("connections")),
        "pipe": blocked.pipe if pipe is not None else None,
        "readers": tuple(Process(*reader) for reader in blocked.readers),
        "collectives": row.get("collectives") or None,
    }
    if progress is not None:
        known["progress"] = _progress(progress if isinstance(progress, dict) else {}, now)
    seen = _READER.read(RankSeen, {**row, **known})
    if seen.rank < 0:
        raise Invalid(f"expected a rank, got {seen.rank}", "rank")
    return seen


def _progress(row: Mapping[str, Any], now: float) -> Progress:
    marks = _READER.read(_Marks, row)
    is_timed = 0 < marks.t <= now < _MOST_S
    bits = marks.marked
    marked = None
    if bits is not None:
        marked = frozenset(phase for bit, phase in enumerate(_PHASES) if bits >> bit & 1)
    return Progress(
        marks.step,
        marks.phase,
        marks.marks,
        now - marks.t if is_timed else 0.0,
        marked,
        bool((bits or 0) & _DECLARES),
    )


def _connections(value: Any) -> tuple[Connection, ...]:
    try:
        return tuple(Connection(*row) for row in _READER.read(tuple[_Row, ...], value))
    except Invalid:
        return ()

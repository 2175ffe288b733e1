"""What a node saw of its ranks while a run did not go on, ``hang.json``: the process of each rank,
its progress, its stacks.

The node runner writes it (``remote/noderun/examine.py``). This module is its only reader, for
collected files and for reports over a connection. What a node sends is not trusted: wrong types
become empty values, and nothing is longer than its bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Call",
    "Collective",
    "Connection",
    "HangReport",
    "Process",
    "Progress",
    "RankSeen",
    "Thread",
]

_MOST_RANKS = 256
_MOST_ROWS = 128
_MOST_TEXT = 200
_PHASES = ("input", "compute", "collective", "step")
_DECLARES = 1 << 7
"""Bits of the phases that a rank has ever marked, in order, and the one by which it promises to
mark every long one.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a rank reports of itself: the step that has begun, its phase, the number of marks so
    far, and for how many seconds it has made none; 0 if that is not known. ``marked``: of the
    phases of a step those that it has ever marked, None if it does not say. ``declares``: it marks
    every phase that may take long."""

    step: int
    phase: str
    marks: int
    silent_s: float = 0.0
    marked: frozenset[str] | None = None
    declares: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether the program itself has marked anything: one mark comes about when it loads the
        module for that.
        """
        return self.step > 0 or self.marks > 1


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread: its state as in ``ps``, where in the kernel it waits, its system call, what the
    descriptor of that call is, and the processor seconds that it used while it was watched."""

    name: str
    state: str
    channel: str
    call: str
    of: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Process:
    """A process that a rank has started, for example a worker of its data loader."""

    pid: int
    name: str
    state: str


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
    """A collective in the flight recorder of a rank: its process group, number in it, name and
    sizes; ``over`` if done.
    """

    group: str
    number: int
    name: str
    sizes: str
    over: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A Python call that a thread is in: its function and file, of the innermost ones the source
    line (``code``). ``polls``: the line stands in a short loop that waits for a condition."""

    name: str
    file: str = ""
    code: str = ""
    polls: bool = False


@dataclass(frozen=True, slots=True)
class RankSeen:
    """What one rank did while it was watched for ``window_s`` seconds.

    ``state`` and ``was`` are the states of its process at the end and at the begin. ``cpu_s`` are processor seconds of the
    rank, ``children_cpu_s`` of what it started. ``pipe`` is the full pipe that it writes to,
    ``readers`` those who may read it. ``python`` are the lines of its stacks, ``calls`` those of
    its main thread, innermost first, ``beside`` of its other threads. ``collectives`` is None where
    nothing records them; ``earlier`` are those before. ``is_unanswered``: it was asked for them,
    and did not answer. ``uses_device``: it has a GPU open.
    """

    rank: int
    pid: int
    state: str
    was: str
    channel: str
    call: str
    of: str
    window_s: float
    cpu_s: float
    children_cpu_s: float
    io_bytes: int
    frozen: bool
    progress: Progress | None
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
    is_unanswered: bool = False
    uses_device: bool = False


@dataclass(frozen=True, slots=True)
class HangReport:
    """What one node saw: its ranks in order, the numbers of those that had ended well, and the
    stopped processes that started ranks."""

    ranks: tuple[RankSeen, ...] = ()
    ended: tuple[int, ...] = ()
    stopped: tuple[Process, ...] = ()

    @classmethod
    def of(cls, value: Any) -> HangReport:
        """Return the report that a node sent; an entry that makes no sense is left out."""
        rows = _list(_dict(value).get("ranks"), _MOST_RANKS)
        now = _seconds(_dict(value), "mono")
        ranks = {seen.rank: seen for row in rows if (seen := _rank(row, now)) is not None}
        ended = (
            number
            for number in _list(_dict(value).get("ended"), _MOST_RANKS)
            if type(number) is int and number >= 0
        )
        stopped = tuple(
            _process({"pid": pid, "name": name, "state": "T"})
            for pid, name in _pairs(_dict(value).get("stopped"))
        )
        return cls(
            tuple(ranks[number] for number in sorted(ranks)), tuple(sorted(set(ended))), stopped
        )


def _rank(value: Any, now: float) -> RankSeen | None:
    row = _dict(value)
    if type(row.get("rank")) is not int or row["rank"] < 0:
        return None
    progress, pipe = row.get("progress"), row.get("blocked_pipe")
    collectives = row.get("collectives")
    return RankSeen(
        rank=row["rank"],
        pid=_whole(row, "pid"),
        state=_text(row, "state"),
        was=_text(row, "was"),
        channel=_text(row, "wchan"),
        call=_text(row, "call"),
        of=_text(row, "of"),
        window_s=_seconds(row, "window_s"),
        cpu_s=_seconds(row, "cpu_s"),
        children_cpu_s=_seconds(row, "children_cpu_s"),
        io_bytes=_whole(row, "io_bytes"),
        frozen=row.get("frozen") is True,
        progress=_progress(_dict(progress), now) if progress is not None else None,
        threads=tuple(map(_thread, _list(row.get("threads"), _MOST_ROWS))),
        children=tuple(_process(_dict(child)) for child in _list(row.get("children"), _MOST_ROWS)),
        connections=tuple(
            connection
            for item in _list(row.get("connections"), _MOST_ROWS)
            if (connection := _connection(item)) is not None
        ),
        pipe=_text(_dict(pipe), "pipe") if pipe is not None else None,
        readers=tuple(_reader(item) for item in _list(_dict(pipe).get("readers"), 8)),
        python=tuple(
            line[:_MOST_TEXT] for line in _list(row.get("python"), 200) if isinstance(line, str)
        ),
        collectives=tuple(map(_collective, _list(collectives, _MOST_ROWS))) or None,
        earlier=tuple(map(_collective, _list(row.get("earlier"), _MOST_ROWS))),
        calls=_calls(row.get("calls")),
        beside=tuple(_calls(thread) for thread in _list(row.get("beside"), _MOST_ROWS)),
        is_unanswered=row.get("unanswered") is True,
        uses_device=row.get("device") is True,
    )


def _progress(row: Mapping[str, Any], now: float) -> Progress:
    silent_s = max(0.0, now - (_seconds(row, "t") or now))
    bits = row.get("marked")
    marked = (
        frozenset(phase for bit, phase in enumerate(_PHASES) if bits >> bit & 1)
        if type(bits) is int
        else None
    )
    declares = type(bits) is int and bool(bits & _DECLARES)
    return Progress(
        _whole(row, "step"), _text(row, "phase"), _whole(row, "marks"), silent_s, marked, declares
    )


def _calls(value: Any) -> tuple[Call, ...]:
    rows = map(_dict, _list(value, _MOST_ROWS))
    return tuple(
        Call(_text(row, "name"), _text(row, "file"), _text(row, "code"), row.get("polls") is True)
        for row in rows
    )


def _pairs(value: Any) -> list[list[Any]]:
    return [pair for pair in _list(value, _MOST_ROWS) if isinstance(pair, list) and len(pair) == 2]


def _thread(value: Any) -> Thread:
    row = _dict(value)
    name, state, channel, call, of = (
        _text(row, key) for key in ("name", "state", "wchan", "call", "of")
    )
    return Thread(name, state, channel, call, of, _seconds(row, "cpu_s"))


def _process(row: Mapping[str, Any]) -> Process:
    return Process(_whole(row, "pid"), _text(row, "name"), _text(row, "state"))


def _reader(value: Any) -> Process:
    items = [*_list(value, 3), None, None, None]
    return _process(dict(zip(("pid", "name", "state"), items, strict=False)))


def _connection(value: Any) -> Connection | None:
    items = _list(value, 7)
    types = (str, int, str, int, int, int, int)
    if len(items) != 7 or any(
        type(item) is not kind for item, kind in zip(items, types, strict=True)
    ):
        return None
    return Connection(*items)


def _collective(value: Any) -> Collective:
    row = _dict(value)
    return Collective(
        _text(row, "group"),
        _whole(row, "number"),
        _text(row, "name"),
        _text(row, "sizes"),
        row.get("over") is True,
    )


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any, most: int) -> list[Any]:
    return value[:most] if isinstance(value, list) else []


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _whole(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    return value if type(value) is int else 0


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value: Any = row.get(key)
    return float(value) if type(value) in (int, float) and abs(value) < 1e9 else 0.0

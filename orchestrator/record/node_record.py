"""The exit record of a node, ``exit.json``: how its part of a run ended, with a record of each
rank.

The node runner writes it. This module is its only reader, for collected files and for records
received over a connection. Times are seconds of the node's own monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any, Literal

from orchestrator.documents import (
    Invalid,
    Reader,
    check_schema,
    document_field,
    read,
    read_leniently,
    short,
)
from orchestrator.errors import DataError
from orchestrator.record.rundir import RunDir

SCHEMA = 1
"""Of ``exit.json``. 1: first version."""
STATES = ("finished", "failed", "stopped")
_CPUS = r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?){0,999}"
_OWN_KINDS = (
    "rank_failed",
    "lease_expired",
    "run_timeout",
    "output_limit",
    "storage_full",
    "node_unfit",
)
"""Kinds of errors for which a node stops a run by itself; its reason then begins with the kind."""
_READER = Reader(null_is_missing=True)


@dataclass(frozen=True, slots=True)
class LogFile:
    """Size and digest of a log on its node."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bound:
    """The CPUs that a rank was bound to by ``binding``, as the kernel lists them: ``0-3,8``."""

    binding: Literal["numa", "cores"]
    cpus: str

    def __post_init__(self) -> None:
        if not re.fullmatch(_CPUS, self.cpus, re.ASCII):
            raise ValueError(f"expected a list of CPUs, got {short(self.cpus)}")

    @property
    def cpu_set(self) -> frozenset[int]:
        """The CPUs as numbers."""
        bounds = [part.split("-") for part in self.cpus.split(",")]
        return frozenset(cpu for ends in bounds for cpu in range(int(ends[0]), int(ends[-1]) + 1))


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The end of one rank, recorded by its wrapper: the ``signal`` that ended it, or its ``code``.
    ``ended_mono_s`` is None if the end was not observed. ``slowed_us``: time in µs for which the
    GPU's clocks were lowered, by nvidia-smi counter.
    ``bound``: the CPUs that it was bound to, None for no binding."""

    rank: int
    code: int | None
    signal: str | None
    note: str = ""
    started_mono_s: float | None = None
    ended_mono_s: float | None = None
    slowed_us: Mapping[str, int] = field(
        default_factory=dict,
        metadata=document_field(by=partial(read_leniently, dict[str, int]), annotates=True),
    )
    bound: Bound | None = field(default=None, metadata=document_field(annotates=True))

    @classmethod
    def of(cls, value: Any) -> RankRecord:
        """Return the record of a rank as its node wrote it. Raises ValueError naming the expected
        value.
        """
        return _READER.read(cls, value)

    @property
    def how(self) -> str:
        """The way it ended: a signal, or its exit code."""
        return self.signal or f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Processors:
    """The use of a node's processors from the start of a run to its end: their ``count``, the
    seconds for which they were busy, and for which with this run. ``switches``: the machine's count
    of context switches at the start and at the end, in which nodes that are one machine overlap."""

    count: int
    busy_s: float
    own_s: float
    switches: tuple[int, int]


def _growth(value: Any) -> dict[str, tuple[tuple[float, int], ...]]:
    """Return the times at which each log had grown, from the sizes of all logs at each time."""
    growth: dict[str, list[tuple[float, int]]] = {}
    for seconds, sizes in read(tuple[tuple[float, Mapping[str, int]], ...], value):
        for name, size in sizes.items():
            marks = growth.setdefault(name, [])
            if not marks or size > marks[-1][1]:
                marks.append((float(seconds), size))
    return {name: tuple(marks) for name, marks in growth.items()}


def _losses(value: Any) -> dict[str, int]:
    """Return counts by name, without zeros."""
    counts = read(dict[str, int], value)
    return {name: count for name, count in counts.items() if count > 0}


@dataclass(frozen=True, slots=True)
class Meter:
    """A node's own measurements of a run.

    ``growth`` has for each log with samples the times (seconds of the node's monotonic clock) when
    it had grown, with its bytes then. ``sent_bytes``: bytes that the node sent over its networks,
    None if not reported. ``links_lost`` counts link losses by network interface, without zeros.
    """

    growth: Mapping[str, tuple[tuple[float, int], ...]] = field(
        default_factory=dict, metadata=document_field(by=_growth)
    )
    processors: Processors | None = None
    sent_bytes: int | None = None
    links_lost: Mapping[str, int] = field(default_factory=dict, metadata=document_field(by=_losses))


def _log_files(value: Any) -> dict[str, LogFile]:
    files = {}
    for name, entry in read(dict[str, Any], value).items():
        try:
            files[name] = read(LogFile, entry)
        except Invalid as error:
            raise Invalid("expected bytes and sha256", name) from error
    return files


_processes = partial(read_leniently, tuple[tuple[int, str], ...])


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """The end of a run on one node: ``finished``, ``failed`` or ``stopped``; ``reason`` says why it
    was stopped, else it is empty. ``oom_kills`` counts the processes that the kernel's OOM killer
    ended during the run. ``files`` are its logs by name. ``left_over`` has (process id, name) of
    what the launch script left running when it ended well; that was ended.
    ``stuck`` has those that no signal ended, and that are still there."""

    run_id: str
    node_rank: int
    state: Literal["finished", "failed", "stopped"]
    code: int | None
    signal: str | None
    reason: str = ""
    started_mono_s: float | None = None
    stopped_mono_s: float | None = None
    ended_mono_s: float | None = None
    oom_kills: int = 0
    ranks: tuple[RankRecord, ...] = field(default=(), metadata=document_field(required=True))
    files: Mapping[str, LogFile] = field(
        default_factory=dict, metadata=document_field(by=_log_files, required=True)
    )
    left_over: tuple[tuple[int, str], ...] = field(
        default=(), metadata=document_field(by=_processes, annotates=True)
    )
    stuck: tuple[tuple[int, str], ...] = field(
        default=(), metadata=document_field(by=_processes, annotates=True)
    )
    meter: Meter = field(default_factory=Meter, metadata=document_field(annotates=True))

    @property
    def took_s(self) -> float | None:
        """The seconds that the node's part of the run lasted; None if they are not known."""
        if self.started_mono_s is None or self.ended_mono_s is None:
            return None
        return self.ended_mono_s - self.started_mono_s

    @classmethod
    def of(cls, value: Any) -> ExitRecord:
        """Return an exit record as a node wrote it. Raises ValueError naming the expected value."""
        written = read(dict[str, Any], value)
        check_schema(written, SCHEMA)
        state, code, signal = (written.get(key) for key in ("state", "code", "signal"))
        is_end = state in STATES and type(code) in (int, NoneType)
        if not is_end or not isinstance(signal, str | None):
            got = f"state {short(state)}, code {short(code)}, signal {short(signal)}"
            raise ValueError(f"expected state 'finished' with code 0, got {got}")
        return _READER.read(cls, {**written, "run_id": written.get("run_id") or ""})

    @property
    def how(self) -> str:
        """The way its launch script ended: a signal, or its exit code."""
        return self.signal or f"exit code {self.code}"

    def ended_by(self, signal: str) -> list[int]:
        """Return the ranks that a signal ended."""
        return [rank.rank for rank in self.ranks if rank.signal == signal]

    def memory_kills(self, rank: int | None) -> int:
        """Return ``oom_kills`` if the OOM killer may have ended this rank (None: any rank, or the
        launch script), else 0.
        """
        entries = [entry for entry in self.ranks if rank in (None, entry.rank)]
        signals = [entry.signal for entry in entries] + ([self.signal] if rank is None else [])
        return self.oom_kills if not entries or "SIGKILL" in signals else 0


def cause_of(reason: str) -> tuple[str, str]:
    """Return the kind and the text of the error behind a node's reason to stop; a reason from
    elsewhere is an interruption.

    >>> cause_of("run_timeout: longer than 60 s")
    ('run_timeout', 'longer than 60 s')
    >>> cause_of("cancelled with orch cancel by me@desk: 12")
    ('interrupted', 'cancelled with orch cancel by me@desk: 12')
    """
    kind, _, text = reason.partition(": ")
    if kind in _OWN_KINDS:
        return (kind, text)
    return ("interrupted", reason)


def exit_record(run: RunDir, host: str) -> ExitRecord | None:
    """Return the exit record of ``host``; None if none was collected.

    Raises DataError (result_invalid) for a record that is invalid, too large, or not a regular
    file.
    """
    content = run.exit_content(host)
    if content is None:
        return None
    try:
        return ExitRecord.of(content)
    except ValueError as error:
        raise DataError(
            str(error), kind="result_invalid", host=host, where="exit.json", phase="summarize"
        ) from error

"""The exit record of a node, ``exit.json``: how its part of a run ended, with a record of each
rank.

The node runner writes it. This module is its only reader, for collected files and for records
received over a connection. Times are seconds of the node's own monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import DataError
from orchestrator.record.rundir import RunDir

__all__ = [
    "STATES",
    "Bound",
    "ExitRecord",
    "LogFile",
    "Meter",
    "Processors",
    "RankRecord",
    "cause_of",
    "exit_record",
    "short",
]

SCHEMA = 1
"""Of ``exit.json``. 1: first version."""
STATES = ("finished", "failed", "stopped")
_CPUS = r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?){0,999}"
_OWN_KINDS = ("rank_failed", "lease_expired", "run_timeout", "output_limit", "storage_full")
"""Kinds of errors for which a node stops a run by itself; its reason then begins with the kind."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """Size and digest of a log on its node."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bound:
    """The CPUs that a rank was bound to by ``binding``, as the kernel lists them: ``0-3,8``."""

    rank: int
    binding: str
    cpus: str

    @property
    def cpu_set(self) -> frozenset[int]:
        """The CPUs as numbers."""
        bounds = [part.split("-") for part in self.cpus.split(",")]
        return frozenset(cpu for ends in bounds for cpu in range(int(ends[0]), int(ends[-1]) + 1))

    @classmethod
    def of(cls, rank: int, value: Any) -> Bound | None:
        """Return what the wrapper of a rank wrote; None if it bound nothing, or wrote nothing
        valid.
        """
        if not isinstance(value, dict):
            return None
        binding, cpus = value.get("binding"), value.get("cpus")
        is_valid = (
            binding in ("numa", "cores")
            and isinstance(cpus, str)
            and re.fullmatch(_CPUS, cpus, re.ASCII)
        )
        return cls(rank, str(binding), str(cpus)) if is_valid else None


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
    slowed_us: Mapping[str, int] = field(default_factory=dict)
    bound: Bound | None = None

    @classmethod
    def of(cls, value: Any) -> RankRecord:
        """Return the record of a rank as its node wrote it. Raises ValueError naming the expected
        value.
        """
        if not isinstance(value, dict):
            raise ValueError("ranks: expected a list of objects")
        slowed = value.get("slowed_us")
        return cls(
            _whole(value, "rank"),
            _whole_or_none(value, "code"),
            _text_or_none(value, "signal"),
            _text_or_none(value, "note") or "",
            _seconds(value, "started_mono_s"),
            _seconds(value, "ended_mono_s"),
            # The driver's counters only annotate a number, so invalid ones are dropped.
            {name: time for name, time in slowed.items() if type(time) is int}
            if isinstance(slowed, dict)
            else {},
            Bound.of(_whole(value, "rank"), value.get("bound")),
        )

    @property
    def how(self) -> str:
        """What ended it: a signal, or its exit code."""
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


@dataclass(frozen=True, slots=True)
class Meter:
    """What a node measured of a run. ``growth``: by log with samples, when it was seen to have
    grown, in seconds of the node's monotonic clock, and its bytes then. ``sent_bytes``: what the
    node sent over its networks, None if it did not say.
    ``links_lost``: by network interface, how often it lost its link, without zeros."""

    growth: Mapping[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    processors: Processors | None = None
    sent_bytes: int | None = None
    links_lost: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any) -> Meter:
        """Return what the node wrote; nothing if it is invalid, or if the node runner is older."""
        try:
            growth: dict[str, list[tuple[float, int]]] = {}
            for seconds, sizes in value["growth"]:
                for name, size in sizes.items():
                    if not growth.get(name) or size > growth[name][-1][1]:
                        growth.setdefault(name, []).append((float(seconds), int(size)))
            load = value.get("processors")
            processors = None
            if load is not None:
                first, last = map(int, load["switches"])
                processors = Processors(
                    int(load["count"]), float(load["busy_s"]), float(load["own_s"]), (first, last)
                )
            sent = value.get("sent_bytes")
            marks = {name: tuple(times) for name, times in growth.items()}
            lost = {
                str(name): int(count)
                for name, count in value.get("links_lost", {}).items()
                if int(count) > 0
            }
            return cls(marks, processors, None if sent is None else int(sent), lost)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            return cls()


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """The end of a run on one node: ``finished``, ``failed`` or ``stopped``; ``reason`` says why it
    was stopped, else it is empty. ``oom_kills`` counts the processes that the kernel's OOM killer
    ended during the run. ``files`` are its logs by name. ``left_over`` has (process id, name) of
    what the launch script left running when it ended well; that was ended.
    ``stuck`` has those that no signal ended, and that are still there."""

    run_id: str
    node_rank: int
    state: str
    code: int | None
    signal: str | None
    reason: str = ""
    started_mono_s: float | None = None
    stopped_mono_s: float | None = None
    ended_mono_s: float | None = None
    oom_kills: int = 0
    ranks: tuple[RankRecord, ...] = ()
    files: Mapping[str, LogFile] = field(default_factory=dict)
    left_over: tuple[tuple[int, str], ...] = ()
    stuck: tuple[tuple[int, str], ...] = ()
    meter: Meter = field(default_factory=Meter)

    @classmethod
    def of(cls, value: Any) -> ExitRecord:
        """Return an exit record as a node wrote it. Raises ValueError naming the expected value."""
        if not isinstance(value, dict):
            raise ValueError("expected an object")
        if not _is_whole(value.get("schema")) or value["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, got {short(value.get('schema'))}")
        state, code, signal = value.get("state"), value.get("code"), value.get("signal")
        if (
            state not in STATES
            or not (code is None or _is_whole(code))
            or not isinstance(signal, (str, type(None)))
        ):
            got = f"state {short(state)}, code {short(code)}, signal {short(signal)}"
            raise ValueError(f"expected state 'finished' with code 0, got {got}")
        ranks, files = value.get("ranks"), value.get("files")
        if not isinstance(ranks, list):
            raise ValueError("ranks: expected a list of objects")
        if not isinstance(files, dict):
            raise ValueError(f"files: expected an object, got {short(files)}")
        return cls(
            run_id=_text_or_none(value, "run_id") or "",
            node_rank=_whole(value, "node_rank"),
            state=state,
            code=code,
            signal=signal,
            reason=_text_or_none(value, "reason") or "",
            started_mono_s=_seconds(value, "started_mono_s"),
            stopped_mono_s=_seconds(value, "stopped_mono_s"),
            ended_mono_s=_seconds(value, "ended_mono_s"),
            oom_kills=_whole_or_none(value, "oom_kills") or 0,
            ranks=tuple(map(RankRecord.of, ranks)),
            files={name: _log_file(name, entry) for name, entry in files.items()},
            left_over=_processes(value.get("left_over")),
            stuck=_processes(value.get("stuck")),
            meter=Meter.of(value.get("meter")),
        )

    @property
    def how(self) -> str:
        """What ended its launch script: a signal, or its exit code."""
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
    return (kind, text) if kind in _OWN_KINDS else ("interrupted", reason)


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


def short(value: Any) -> str:
    """Return a value's representation for a message, in at most 120 characters."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def _log_file(name: str, entry: Any) -> LogFile:
    if (
        not isinstance(entry, dict)
        or not _is_whole(entry.get("bytes"))
        or not isinstance(entry.get("sha256"), str)
    ):
        raise ValueError(f"files.{name}: expected bytes and sha256")
    return LogFile(entry["bytes"], entry["sha256"])


def _processes(value: Any) -> tuple[tuple[int, str], ...]:
    """Return a list of process ids and names, which only annotates the record, without invalid
    entries.
    """
    rows = value if isinstance(value, list) else []
    pairs = [row for row in rows if isinstance(row, list) and len(row) == 2]
    return tuple((pid, name) for pid, name in pairs if _is_whole(pid) and isinstance(name, str))


def _is_whole(value: Any) -> bool:
    """Return True for an int that is not a bool: in Python, JSON's ``false`` equals 0 and ``true``
    1.
    """
    return type(value) is int


def _whole(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    if type(value) is not int:
        raise ValueError(f"{key}: expected a whole number, got {short(value)}")
    return value


def _whole_or_none(record: Mapping[str, Any], key: str) -> int | None:
    return None if record.get(key) is None else _whole(record, key)


def _text_or_none(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key}: expected text, got {short(value)}")
    return value


def _seconds(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    if value is not None and type(value) not in (int, float):
        raise ValueError(f"{key}: expected seconds, got {short(value)}")
    return value

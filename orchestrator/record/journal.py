"""The journal of a bench, ``events.jsonl``: the actions of its controllers, one line per event,
durable once written.

`Event` names the events and `FIELDS` lists their fields. This module is the only writer and reader
of the file.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.files import failures, sync_directory, write_all
from orchestrator.record.sealed import is_broken, seal_record, unseal_record
from orchestrator.record.state_file import json_bytes, read_bytes, state_error
from orchestrator.strictjson import strict_json

_MOST_BYTES = 1 << 30


class Event:
    """The names of the events of a bench and of its runs."""

    BEGUN = "begun"
    PREFLIGHT = "preflight"
    DECIDED = "decided"
    OVER = "over"
    PLANNED = "planned"
    BORROWED = "borrowed"
    STAGED = "staged"
    ARMED = "armed"
    STARTED = "started"
    TAKEN_OVER = "taken_over"
    LINE_LOST = "line_lost"
    REATTACHED = "reattached"
    STALLED = "stalled"
    RESUMED = "resumed"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    COLLECTED = "collected"
    NOT_COLLECTED = "not_collected"
    LEFT_OUT = "left_out"
    SUPERSEDED = "superseded"
    REPLACED = "replaced"
    REREAD = "reread"
    PRUNED = "pruned"


ENDS = (Event.FINISHED, Event.FAILED, Event.LOST, Event.INTERRUPTED)
"""The events that end a run."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    # of a bench: a controller took it, its nodes passed preflight, it was decided how to continue,
    # the controller ended
    Event.BEGUN: ("argv",),
    Event.PREFLIGHT: ("hosts",),
    Event.DECIDED: ("reason", "blocks", "widest", "used_s", "runs"),
    Event.OVER: ("code", "errors"),
    # a spare took the place of a host that was lost
    Event.REPLACED: ("host", "by", "reason"),
    # of a run, in order of time
    Event.PLANNED: ("run", "port"),
    Event.BORROWED: ("run", "origin"),
    Event.STAGED: ("run",),
    Event.ARMED: ("run",),
    Event.STARTED: ("run", "skew_s", "bound_s", "hosts"),
    Event.TAKEN_OVER: ("run",),
    Event.LINE_LOST: ("run", "host", "error"),
    Event.REATTACHED: ("run", "host"),
    Event.STALLED: ("run", "words"),
    Event.RESUMED: ("run", "silent_s"),
    Event.STOPPING: ("run", "reason"),
    **dict.fromkeys(ENDS, ("run", "error")),
    Event.COLLECTED: ("run",),
    Event.NOT_COLLECTED: ("run", "host", "error"),
    Event.LEFT_OUT: ("run", "host", "names"),
    Event.SUPERSEDED: ("run", "by"),
    Event.REREAD: ("run", "framework", "digest"),
    # by a command without a controller: the files of a run were removed from these hosts
    Event.PRUNED: ("run", "hosts"),
}
"""The fields that each event may have in addition to its name and time."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of the journal.

    ``at`` is the controller's wall clock in seconds, None if it is not a number. ``run`` is the id
    of its run, empty for an event of the bench. ``fields`` are those in `FIELDS`, or all fields of
    an event that a later version added.
    """

    event: str
    at: float | None
    run: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Entry:
        """Return the event of a parsed line."""
        at, run = content.get("at"), content.get("run")
        is_time = isinstance(at, (int, float)) and not isinstance(at, bool) and math.isfinite(at)
        event = str(content["event"])
        names = FIELDS.get(event, tuple(content))
        fields = {
            name: content[name]
            for name in names
            if name in content and name not in ("event", "at", "run")
        }
        return cls(event, float(at) if is_time and at is not None else None, str(run or ""), fields)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of a controller that began; empty if it is not recorded."""
        words = self.fields.get("argv")
        if not isinstance(words, list):
            return ()
        return tuple(map(str, words))

    @property
    def errors(self) -> tuple[Mapping[str, Any], ...]:
        """The errors of a bench that is over, each in the form of `OrchError.as_dict`."""
        errors = self.fields.get("errors")
        if not isinstance(errors, list):
            return ()
        return tuple(error for error in errors if isinstance(error, dict))

    @property
    def code(self) -> int:
        """The exit status of a bench that is over."""
        code = self.fields.get("code")
        return code if type(code) is int else 1


class Journal:
    """The events of one bench. Several threads and processes may write at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def write(self, event: str, /, **fields: Any) -> None:
        """Append one event and make it durable. ``at`` is the controller's wall clock, for readers;
        pass it to override.

        Raises ValueError for an event or a field that is not in `FIELDS`.
        """
        if event not in FIELDS:
            raise ValueError(f"expected an event of the journal, got {event!r}")
        unknown = [name for name in fields if name not in ("at", *FIELDS[event])]
        if unknown:
            raise ValueError(
                f"event {event}: expected {', '.join(FIELDS[event])}, got {', '.join(unknown)}"
            )
        line = json_bytes(
            seal_record({"event": event, "at": round(time.time(), 6)} | fields), indent=None
        )
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._lock, failures(self.path, needed=len(line)):
            file = os.open(self.path, flags, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                os.fchmod(file, 0o600)
                whole = _whole_lines(file)
                if whole < os.fstat(file).st_size:
                    os.ftruncate(
                        file, whole
                    )  # a torn line was never acknowledged, and would corrupt the next one
                try:
                    write_all(file, line)
                    os.fsync(file)
                except OSError:
                    os.ftruncate(file, whole)
                    raise
            finally:
                os.close(file)
            if not whole:
                sync_directory(self.path.parent)

    def read(self) -> list[Entry]:
        """Return the events in order, without a torn last line. Other damage raises DataError
        naming file and offset.
        """
        try:
            data = read_bytes(self.path, _MOST_BYTES)
        except FileNotFoundError:
            return []
        entries, offset = [], 0
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            content = strict_json(line, f"{self.path}: line at byte {offset}", "state_damaged")
            if not isinstance(content, dict) or not isinstance(content.get("event"), str):
                raise state_error(self.path, f"byte {offset}: expected an event")
            if is_broken(content):
                raise state_error(
                    self.path, f"byte {offset}: the event does not match its own seal"
                )
            entries.append(Entry.of(unseal_record(content)))
            offset += len(line)
        return entries


def list_runs(entries: Iterable[Entry]) -> frozenset[str]:
    """Return the ids of all runs that were ever planned or borrowed on disk."""
    return frozenset(
        entry.run for entry in entries if entry.event in (Event.PLANNED, Event.BORROWED)
    )


def list_pruned_hosts(entries: Iterable[Entry]) -> dict[str, set[str]]:
    """Return the hosts from which each run has been removed, by run id."""
    hosts: dict[str, set[str]] = {}
    for entry in entries:
        names = entry.fields.get("hosts")
        if entry.event == Event.PRUNED and isinstance(names, list):
            hosts.setdefault(entry.run, set()).update(map(str, names))
    return hosts


def last_controller(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the events of the last controller of a bench; if it ended normally, the last event
    says how.
    """
    begun = [index for index, entry in enumerate(entries) if entry.event == Event.BEGUN]
    if not begun:
        return []
    return [entry for entry in entries[begun[-1] :] if entry.event != Event.PRUNED]


def _whole_lines(file: int) -> int:
    """Return how many bytes of ``file`` are complete lines."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def suspicion(entries: Sequence[Entry]) -> str:
    """Return why a run is suspected to hang now; empty if it is not."""
    words = ""
    for entry in entries:
        if entry.event == Event.STALLED:
            words = str(entry.fields.get("words", ""))
        elif entry.event in (Event.RESUMED, Event.STOPPING, Event.OVER, *ENDS):
            words = ""
    return words

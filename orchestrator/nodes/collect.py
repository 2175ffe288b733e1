"""Logs come home: as bytes, resumed where a transfer stopped, checked against the node's own digests, never overwritten.

Local names are built here from an allow-list; what a node says never names a file of ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from orchestrator.errors import DataError, RunError, TransportError
from orchestrator.files import failures
from orchestrator.nodes.node import Node
from orchestrator.record import RunDir
from orchestrator.record.manifest import Clean, RecordedOutcome, read_manifest, write_outcome
from orchestrator.record.node_record import ExitRecord, exit_record
from orchestrator.strictjson import strict_json

__all__ = ["Collected", "collect_host", "is_complete", "left_behind", "settle"]

_MAX_FILES = 4096
# Above the limit at which a node stops a run for its output: a log that tripped it is seen up to a second late.
_MAX_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Collected:
    """What one host's logs of one run amount to now. ``complete``: the exit record is here and every digest agrees.

    ``odd`` are names in the log folder that are no logs, and were neither opened nor sent: links, pipes, devices.
    """

    host: str
    new_bytes: int
    files: int
    complete: bool
    note: str = ""
    odd: tuple[str, ...] = ()


def collect_host(
    node: Node, run: RunDir, *, timeout_s: float = 60.0, moved: Callable[[int], None] = lambda count: None
) -> Collected:
    """Bring one host's logs of a run home; ``moved`` is told of each number of bytes that has come. Safe to repeat.

    Raises TransportError transfer_corrupt after one failed retry.
    """
    host = node.host.name
    for attempt in (1, 2):
        collected = _collect_once(node, run, timeout_s, moved)
        wrong = _mismatches(run, host)
        if not wrong:
            return replace(collected, complete=exit_record(run, host) is not None)
        if attempt == 1:
            for name in wrong:
                path = run.log_path(host, name)
                if path.exists():
                    # The bytes that came first are evidence too; they stay beside the fresh copy.
                    path.rename(path.with_name(f"{name}.refused"))
    raise TransportError(
        f"collected logs differ from the node's own digests: {', '.join(wrong)}",
        kind="transfer_corrupt",
        host=host,
        run_id=run.run_id,
        phase="collect",
        hint="the disk of the node or of this machine alters bytes, or somebody writes to these files",
    )


class _Logs:
    """The logs of a host as they come in. The one that is written to stays open: it comes in many pieces."""

    def __init__(self, run: RunDir, host: str, moved: Callable[[int], None]) -> None:
        self._run = run
        self._host = host
        self._moved = moved
        self._path = Path()
        self._file: IO[bytes] | None = None
        self.received = 0

    def at(self, name: str, offset: int) -> Callable[[memoryview], None]:
        """Return what writes to a log from an offset on. Raises DataError where that would leave a hole."""
        path = self._run.log_path(self._host, name)
        if path != self._path:
            self.close()
        with failures(path):
            if self._file is None:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                self._file, self._path = os.fdopen(handle, "wb", 0), path
            self._file.seek(offset)
            size = os.fstat(self._file.fileno()).st_size
        if size < offset:
            raise DataError(f"expected {offset} bytes here already", kind="state_damaged", where=str(path))
        return self._write

    def _write(self, data: memoryview) -> None:
        assert self._file
        with failures(self._path, needed=len(data)):
            rest = data
            while rest:
                rest = rest[self._file.write(rest) :]
        self.received += len(data)
        self._moved(len(data))

    def close(self) -> None:
        """Let go of the log. Raises DataError where there is no room after all for what was written."""
        if self._file:
            file, self._file = self._file, None
            with failures(self._path):
                file.close()


def _collect_once(node: Node, run: RunDir, timeout_s: float, moved: Callable[[int], None]) -> Collected:
    """Bring what is new; whether it is whole is the caller's to say, who compares the digests."""
    host = node.host.name
    have = {path.name: path.stat().st_size for path in run.logs(host)}
    with closing(_Logs(run, host, moved)) as logs:
        wanted = node.fetch(run.run_id, have, logs.at, timeout_s=timeout_s, max_bytes=_MAX_BYTES, max_files=_MAX_FILES)
        for name, size in wanted.sizes.items() if wanted else ():
            if size == 0 and name not in have:
                logs.at(name, 0)
    if wanted is None:
        return Collected(host, 0, len(have), False, "not on the node any more" if have else "nothing there")
    if wanted.exit_record:
        run.write_log(host, "exit.json", wanted.exit_record)
    note = f"{wanted.left_out} files beyond the first {_MAX_FILES} were left out" if wanted.left_out else ""
    if wanted.alive and not wanted.exit_record:
        note = "still running there"
    if wanted.odd:
        note = "; ".join([*([note] if note else []), f"no logs, and left there: {', '.join(map(repr, wanted.odd))}"])
    return Collected(host, logs.received, len(wanted.sizes), False, note, wanted.odd)


def is_complete(run: RunDir, host: str) -> bool:
    """Tell whether a host's exit record of a run is here, can be read, and every log agrees with it."""
    try:
        return exit_record(run, host) is not None and not _mismatches(run, host)
    except DataError:
        return False


def _mismatches(run: RunDir, host: str) -> list[str]:
    """Return the logs whose size or digest is not what the node's exit record says. None without a record."""
    import hashlib

    record = exit_record(run, host)
    wrong = []
    for name, expected in record.files.items() if record else ():
        path = run.log_path(host, name)
        if not path.is_file():
            wrong.append(name)
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
        if digest.hexdigest() != expected.sha256:
            wrong.append(name)
    return wrong


def settle(run: RunDir, hosts: Sequence[str]) -> None:
    """Write the outcome of a run whose controller did not live to do so, once every node's record of it can be read."""
    manifest = read_manifest(run)
    try:
        records = {host: record for host in hosts if (record := exit_record(run, host))}
    except DataError:
        return
    if manifest.outcome is not None or len(records) < len(hosts):
        return
    bad = [(host, record) for host, record in records.items() if record.state != "finished"]
    error = None
    if bad:
        host, record = min(bad, key=lambda item: item[1].state != "failed")
        kind, _, text = record.reason.partition(": ")
        error = RunError(text or f"it ended with code {record.code}", kind=kind or "rank_failed", host=host)
    clean = {host: Clean(checked=False) for host in hosts}
    write_outcome(run, RecordedOutcome("failed" if bad else "finished", error, clean))


@dataclass(frozen=True, slots=True)
class Left:
    """What a node still has of a run: its exit record, whether its keeper lives, whether anything of it was ever started."""

    record: ExitRecord | None
    alive: bool
    started: bool
    boot_id: str


def left_behind(node: Node, run_id: str, *, timeout_s: float) -> Left | None:
    """Return what a run left on a node; None where the node knows nothing of it. Raises RunError for a record that is none."""
    # Offsets beyond any file: only the record is wanted.
    wanted = node.fetch(run_id, {}, lambda *_: lambda data: None, timeout_s=timeout_s, max_bytes=0, max_files=0)
    if wanted is None:
        return None
    try:
        record = ExitRecord.of(strict_json(wanted.exit_record, "exit.json")) if wanted.exit_record else None
    except ValueError as error:
        message = f"expected an exit record: {error}"
        raise RunError(message, kind="result_invalid", host=node.host.name, run_id=run_id) from error
    return Left(record, wanted.alive, bool(wanted.sizes), wanted.boot_id)

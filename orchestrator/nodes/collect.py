"""Collect logs: as bytes, resumed where a transfer stopped, verified against the node's own
digests, never overwritten.

Local names are checked against an allow-list; a node cannot choose any other name for a local file.
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
from orchestrator.inventory.secrets import hide_spans
from orchestrator.nodes.node import Node
from orchestrator.plan import Limits
from orchestrator.record import RunDir
from orchestrator.record.evidence import mark_secrets
from orchestrator.record.manifest import Clean, RecordedOutcome, read_manifest, write_outcome
from orchestrator.record.node_record import ExitRecord, cause_of, exit_record
from orchestrator.strictjson import strict_json

_MAX_FILES = 4096
_MAX_BYTES = Limits().output_bytes
RESTARTED = "the node has restarted since (another boot id), and nothing of the run is left on it"
_SAMPLES_BYTES = 4 << 20
"""What a node's samples may have beside the logs."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The collected logs of one host and one run. ``complete``: the exit record is collected and
    every digest matches.

    ``absent``: the node does not have the run; ``lives``: it still runs there. ``odd`` are names in
    the log folder that are not logs and were neither opened nor sent: links, pipes, devices.
    """

    host: str
    new_bytes: int
    files: int
    complete: bool
    note: str = ""
    odd: tuple[str, ...] = ()
    absent: bool = False
    lives: bool = False


def collect_host(
    node: Node,
    run: RunDir,
    *,
    max_bytes: int = _MAX_BYTES,
    timeout_s: float = 60.0,
    moved: Callable[[int], None] = lambda _: None,
) -> Collected:
    """Collect one host's logs of a run, ``max_bytes`` at most, the limit at which a node stops a
    run for its output.

    ``moved`` is called with each number of bytes received. Safe to repeat. Raises TransportError
    transfer_corrupt after one failed retry, and RunError result_invalid if the node sends anything
    else than pieces of logs within these limits.
    """
    host = node.host.name
    for attempt in (1, 2):
        collected = _collect_once(node, run, timeout_s, max_bytes, moved)
        wrong = _mismatches(run, host)
        if not wrong:
            return replace(collected, complete=exit_record(run, host) is not None)
        if attempt == 1:
            for name in wrong:
                path = run.log_path(host, name)
                if path.exists():
                    # The bytes received first are evidence too; they stay next to the new copy.
                    path.rename(path.with_name(f"{name}.refused"))
    raise TransportError(
        f"collected logs differ from the node's own digests: {', '.join(wrong)}",
        kind="transfer_corrupt",
        host=host,
        run_id=run.run_id,
        phase="collect",
        hint="the disk of the node or of this machine alters bytes, or another process writes to these files",
    )


class _Logs:
    """The logs of a host as they arrive. The current log stays open, because it arrives in many
    pieces.
    """

    def __init__(self, run: RunDir, host: str, moved: Callable[[int], None]) -> None:
        self._run = run
        self._host = host
        self._moved = moved
        self._path = Path()
        self._file: IO[bytes] | None = None
        self.received = 0

    def at(self, name: str, offset: int) -> Callable[[memoryview], None]:
        """Return a function that writes to a log from an offset on. Raises DataError if that would
        leave a hole.
        """
        path = self._run.log_path(self._host, name)
        if path != self._path:
            self.close()
        with failures(path):
            if self._file is None:
                handle = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
                )
                self._file, self._path = os.fdopen(handle, "wb", 0), path
            self._file.seek(offset)
            size = os.fstat(self._file.fileno()).st_size
        if size < offset:
            raise DataError(
                f"expected a file of at least {offset} bytes, got {size}",
                kind="state_damaged",
                where=str(path),
            )
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
        """Close the log. Raises DataError if there is no space for what was written."""
        if self._file:
            file, self._file = self._file, None
            with failures(self._path):
                file.close()


def _collect_once(
    node: Node, run: RunDir, timeout_s: float, max_bytes: int, moved: Callable[[int], None]
) -> Collected:
    """Collect new bytes. The caller compares the digests and decides whether the logs are complete."""
    host = node.host.name
    have = {path.name: path.stat().st_size for path in run.logs(host)}
    try:
        with closing(_Logs(run, host, moved)) as logs:
            room = max_bytes + _SAMPLES_BYTES
            fetched = node.fetch(
                run.run_id, have, logs.at, timeout_s=timeout_s, max_bytes=room, max_files=_MAX_FILES
            )
            for name, size in fetched.sizes.items() if fetched else ():
                if size == 0 and name not in have:
                    logs.at(name, 0)
    except BaseException:
        mark_secrets(run, host, node.redaction)  # in what arrived before the error
        raise
    if fetched is None:
        return Collected(
            host,
            0,
            len(have),
            False,
            "no longer on the node" if have else "not on the node",
            absent=True,
        )
    mark_secrets(run, host, node.redaction, fetched.exit_record)
    if fetched.exit_record:  # last of all, because a run with all its exit records is read
        run.write_log(host, "exit.json", fetched.exit_record)
    note = ""
    if fetched.left_out:
        note = f"{fetched.left_out} files beyond the limit of {_MAX_FILES} were left out"
    lives = fetched.alive and not fetched.exit_record
    if not fetched.exit_record:
        note = "without an exit record: its supervisor is gone"
        if fetched.alive:
            note = "still running on the node"
        elif has_restarted(run, host, fetched.boot_id):
            note = f"without an exit record: {RESTARTED}"
    if fetched.odd:
        note = "; ".join(
            [
                *([note] if note else []),
                f"left on the node, because they are not logs: {', '.join(map(repr, fetched.odd))}",
            ]
        )
    return Collected(host, logs.received, len(fetched.sizes), False, note, fetched.odd, lives=lives)


def has_restarted(run: RunDir, host: str, boot_id: str) -> bool:
    """Return True if a node with this boot id has restarted since the run was planned."""
    before = read_manifest(run).facts.get(host, {}).get("boot_id", "")
    return "" not in (before, boot_id) and before != boot_id


def is_complete(run: RunDir, host: str) -> bool:
    """Return True if a host's exit record of a run is collected and readable, and every log matches
    it.
    """
    try:
        return exit_record(run, host) is not None and not _mismatches(run, host)
    except DataError:
        return False


def _mismatches(run: RunDir, host: str) -> list[str]:
    """Return the logs whose digest differs from the node's exit record; an empty list without a
    record.
    """
    import hashlib

    record = exit_record(run, host)
    wrong = []
    for name, expected in record.files.items() if record else ():
        path = run.log_path(host, name)
        if not path.is_file():
            wrong.append(name)
            continue
        with path.open("rb") as file:
            digest = (
                hashlib.file_digest(file, "sha256")
                if hasattr(hashlib, "file_digest")
                else hashlib.sha256(file.read())
            )
        if digest.hexdigest() != expected.sha256:
            wrong.append(name)
    return wrong


def settle(run: RunDir, hosts: Sequence[str]) -> None:
    """Record the outcome of a run whose controller died before it could, once every node's exit
    record is readable.
    """
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
        kind, text = (
            cause_of(record.reason)
            if record.reason
            else ("rank_failed", f"it ended with {record.how}")
        )
        error = RunError(text, kind=kind, host=host)
    clean = {host: Clean(checked=False) for host in hosts}
    write_outcome(run, RecordedOutcome("failed" if bad else "finished", error, clean))


@dataclass(frozen=True, slots=True)
class Left:
    """The state that a run left on a node: its exit record, whether its supervisor is alive,
    whether the run was ever started.
    """

    record: ExitRecord | None
    alive: bool
    started: bool
    boot_id: str


def left_behind(node: Node, run_id: str, *, timeout_s: float) -> Left | None:
    """Return the state that a run left on a node; None if the node does not have the run.

    Raises RunError for an invalid record.
    """
    # No files are requested, only the record.
    fetched = node.fetch(
        run_id, {}, lambda *_: lambda data: None, timeout_s=timeout_s, max_bytes=0, max_files=0
    )
    if fetched is None:
        return None
    try:
        data = hide_spans(
            fetched.exit_record, node.redaction.spans(fetched.exit_record, words=False)
        )
        record = ExitRecord.of(strict_json(data, "exit.json")) if data else None
    except ValueError as error:
        message = f"expected an exit record: {error}"
        raise RunError(
            message, kind="result_invalid", host=node.host.name, run_id=run_id
        ) from error
    return Left(record, fetched.alive, bool(fetched.sizes), fetched.boot_id)

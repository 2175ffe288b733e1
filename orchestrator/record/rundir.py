"""The files of a bench and of its runs: atomic, private, checked when read. The layout is drawn in ``docs/structure.md``.

Names are for people and are never parsed; what a run *is* stands in its manifest. Everything is written whole or not at all
and survives a power cut once the call returns. What came from a node is named by us, from an allow-list.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from orchestrator.errors import DataError
from orchestrator.files import PROJECT_HINT, failures, make_folder, sync_directory, write_all, write_atomic
from orchestrator.record.sealed import is_broken, sealed, unsealed
from orchestrator.strictjson import strict_json

__all__ = [
    "SCHEMA",
    "BenchDir",
    "RunDir",
    "check_name",
    "latest",
    "map_bytes",
    "read_bytes",
    "read_json",
]

SCHEMA = 1
"""1: first version."""
_MAX_NAME_BYTES = 128
EXIT_RECORD = "exit.json"
_MAX_STATE_BYTES = 64 * 1024 * 1024
_MAX_EXIT_RECORD_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class BenchDir:
    """All runs of one command: ``bench.json``, ``events.jsonl`` and a folder per run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    @classmethod
    def create(cls, root: Path, bench: Mapping[str, Any]) -> BenchDir:
        """Make the folder of a new bench under ``root``, named by its ``bench_id``.

        Raises ConfigError (unsafe_path) where it exists already or ``root`` cannot be used, DataError (storage_full).
        """
        name = check_name(str(bench["bench_id"]), str(root))
        path = root / name
        make_folder(root, PROJECT_HINT)
        with failures(path, hint=PROJECT_HINT):
            path.mkdir(mode=0o700)
            path.chmod(0o700)
            sync_directory(root)
        write_atomic(path / "bench.json", _json_bytes(sealed({"schema": SCHEMA, **bench})))
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> BenchDir:
        """Return the bench in an existing folder. Raises DataError (state_damaged) where it is none or unreadable."""
        bench = cls(path)
        bench.bench()
        return bench

    def bench(self) -> dict[str, Any]:
        """Return the content of ``bench.json``."""
        return _record(self.path / "bench.json")

    def update_bench(self, **fields: Any) -> None:
        """Replace some fields of ``bench.json``."""
        with self._lock:
            write_atomic(self.path / "bench.json", _json_bytes(sealed(self.bench() | fields)))

    def run(self, run_id: str) -> RunDir:
        """Return the folder of one run; it is made by the first thing written into it."""
        return RunDir(self.path / check_name(run_id, str(self.path)))

    def runs(self, *, superseded: bool = False) -> list[RunDir]:
        """Return the runs in execution order, without those of which nothing has been written yet.

        One that is lost is among them: the journal knows of it, and its manifest cannot be read. ``superseded``: with those
        that are still there, first, in whose place another attempt was made.
        """
        record = self.bench()
        names, replaced = record.get("runs", []), record.get("superseded", {})
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _damaged(self.path / "bench.json", "runs: expected a list of run ids")
        if not isinstance(replaced, dict):
            raise _damaged(self.path / "bench.json", "superseded: expected an object")
        old = [run for run in map(self.run, replaced if superseded else ()) if _is_written(run.path)]
        runs = {run: _is_written(run.path) for run in map(self.run, names)}
        begun = self.begun() if not all(runs.values()) else frozenset()
        return [*old, *(run for run, written in runs.items() if written or run.run_id in begun)]

    def begun(self) -> frozenset[str]:
        """Return the names of the runs that were written at some time, by the journal."""
        return frozenset(str(event.get("run")) for event in self.events() if event["event"] in ("planned", "borrowed"))

    def event(self, name: str, /, **fields: Any) -> None:
        """Append one event and make it durable. ``at`` is the controller's wall clock, for people; give it to override."""
        line = _json_bytes(sealed({"event": name, "at": round(time.time(), 6)} | fields), indent=None)
        path = self.path / "events.jsonl"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._lock, failures(path, needed=len(line)):
            file = os.open(path, flags, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                os.fchmod(file, 0o600)
                whole = _whole_lines(file)
                if whole < os.fstat(file).st_size:
                    os.ftruncate(file, whole)  # a torn line was never acknowledged, and must not swallow the next one
                try:
                    write_all(file, line)
                    os.fsync(file)
                except OSError:
                    os.ftruncate(file, whole)
                    raise
            finally:
                os.close(file)
            if not whole:
                sync_directory(self.path)

    def events(self) -> list[dict[str, Any]]:
        """Return the events in order. A torn last line is left out; damage elsewhere is DataError naming file and offset."""
        path = self.path / "events.jsonl"
        try:
            data = read_bytes(path, 1 << 30)
        except FileNotFoundError:
            return []
        events, offset = [], 0
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            event = strict_json(line, f"{path}: line at byte {offset}", "state_damaged")
            if not isinstance(event, dict) or not isinstance(event.get("event"), str):
                raise _damaged(path, f"byte {offset}: expected an event")
            if is_broken(event):
                raise _damaged(path, f"byte {offset}: the event does not agree with its own seal")
            events.append(unsealed(event))
            offset += len(line)
        return events


class RunDir:
    """One run: ``manifest.json``, ``rendered/<host>/``, ``logs/<host>/``, ``results/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self._lock = threading.Lock()

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write what the run was; ``schema`` is added."""
        self._write(("manifest.json",), _json_bytes(sealed({"schema": SCHEMA, **manifest})))

    def manifest(self) -> dict[str, Any]:
        """Return the manifest. Raises DataError (state_damaged) naming file and offset."""
        return _record(self.path / "manifest.json")

    def update_manifest(self, **fields: Any) -> None:
        """Replace some fields of the manifest."""
        with self._lock:
            self.write_manifest(self.manifest() | fields)

    def write_rendered(self, host: str, path: str, data: bytes, mode: int = 0o600) -> None:
        """Keep what is sent to ``host`` as ``path`` (relative, every part from the allow-list)."""
        self._write(("rendered", host, *path.split("/")), data, mode)

    def rendered_path(self, host: str) -> Path:
        """Return the folder of what was sent to ``host``."""
        return self.path / "rendered" / check_name(host, str(self.path))

    def log_path(self, host: str, name: str) -> Path:
        """Return where a file from ``host`` is kept; its folder is made. Raises DataError for a name not allowed."""
        parts = ("logs", *(check_name(part, f"{self.path}: logs") for part in (host, name)))
        with failures(self.path):
            _make_folders(self.path, parts[:-1])
        return self.path.joinpath(*parts)

    def logs(self, host: str) -> list[Path]:
        """Return the logs that came from ``host`` so far, regular files only, without the exit record."""
        folder = self.path / "logs" / check_name(host, str(self.path))
        if not folder.is_dir():
            return []
        return sorted(path for path in folder.iterdir() if stat.S_ISREG(path.lstat().st_mode) and path.name != EXIT_RECORD)

    def write_log(self, host: str, name: str, data: bytes) -> None:
        """Keep a whole file from ``host``."""
        self._write(("logs", host, name), data)

    def exit_record(self, host: str) -> dict[str, Any] | None:
        """Return how the run ended on ``host``, by that node's own record; None where none came home.

        Raises DataError (result_invalid) for a record that is no JSON object, is huge, or is no regular file.
        """
        path = self.path / "logs" / check_name(host, str(self.path)) / EXIT_RECORD
        if not os.path.lexists(path):
            return None
        record = read_json(path, _MAX_EXIT_RECORD_BYTES, "result_invalid")
        if not isinstance(record, dict):
            raise DataError("expected an object", kind="result_invalid", where=str(path), host=host)
        return record

    def write_result(self, name: str, result: Mapping[str, Any]) -> None:
        """Keep something derived as ``results/<name>``; it may be deleted and made again. What is there already stays."""
        data = _json_bytes(result)
        with suppress(OSError):
            if read_bytes(self.path / "results" / check_name(name, str(self.path)), len(data)) == data:
                return
        self._write(("results", name), data)

    def _write(self, parts: tuple[str, ...], data: bytes, mode: int = 0o600) -> None:
        for part in parts:
            check_name(part, str(self.path))
        with failures(self.path):
            _make_folders(self.path, parts[:-1])
        write_atomic(self.path.joinpath(*parts), data, mode)


def latest(root: Path) -> Path | None:
    """Return the bench made last under ``root``, by its own record and then by name; None where there is none.

    A folder without ``bench.json`` is no bench. Raises DataError (state_damaged) for one that cannot be read, since it may be
    the one that is meant.
    """
    if not root.is_dir():
        return None
    found = [path for path in root.iterdir() if (path / "bench.json").is_file() and not path.is_symlink()]
    # A bench that was refused before its first run left nothing to read; it is the latest only where there is no other.
    return max(found, key=lambda path: (any(path.glob("*/manifest.json")), *_created(path), path.name), default=None)


def _created(path: Path) -> tuple[float, str]:
    created = _record(path / "bench.json").get("created")
    return (float(created), "") if isinstance(created, (int, float)) else (0.0, str(created or ""))


def check_name(name: str, where: str) -> str:
    """Return ``name`` if it may be one part of a path of ours. Raises DataError (result_invalid) otherwise."""
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_BYTES:
        raise DataError(
            f"expected a name of letters, digits, '.', '_' and '-', not starting with '.' or '-', got {name[:80]!r}",
            kind="result_invalid",
            where=where,
        )
    return name


def read_json(path: Path, limit: int = _MAX_STATE_BYTES, kind: str = "state_damaged") -> Any:
    """Return the JSON in a regular file of at most ``limit`` bytes. Raises DataError of ``kind`` naming file and offset."""
    try:
        data = read_bytes(path, limit)
    except FileNotFoundError as error:
        raise DataError("expected a file, found none", kind=kind, where=str(path)) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", kind=kind, where=str(path)) from error
    return strict_json(data, str(path), kind)


def _is_written(folder: Path) -> bool:
    """Whether anything was written there. A hidden file is a write that had no end."""
    return folder.is_dir() and any(path.name[0] != "." for path in folder.iterdir())


def _record(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise _damaged(path, f"expected an object, got {type(value).__name__}")
    schema = value.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise _damaged(path, f"schema: expected a whole number ≥ 1, got {schema!r}")
    if schema > SCHEMA:
        raise _damaged(path, f"expected schema {SCHEMA} or older, got {schema}", "a newer orch wrote it; read it with that one")
    if is_broken(value):
        raise _damaged(path, "its values do not agree with its own seal", "a byte of it has changed since it was written")
    return unsealed(value)


def _damaged(path: Path, message: str, hint: str = "") -> DataError:
    return DataError(message, kind="state_damaged", where=str(path), hint=hint)


def _json_bytes(value: Mapping[str, Any], indent: int | None = 1) -> bytes:
    """Return JSON without NaN; ASCII only, so that no text of a node reaches a terminal by way of ``cat``."""
    return json.dumps(value, indent=indent, allow_nan=False).encode() + b"\n"


def read_bytes(path: Path, limit: int) -> bytes:
    """Return a regular file's bytes, following no link and waiting for no other end of a pipe. Raises OSError."""
    data = map_bytes(path, limit, above=limit)
    assert isinstance(data, bytes)
    return data


def map_bytes(path: Path, limit: int, *, above: int) -> bytes | mmap:
    """Return a regular file's bytes as `read_bytes` does, those of more than ``above`` mapped instead of read."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, at most {limit} are read")
        return mmap(file, 0, access=ACCESS_READ) if status.st_size > above else stream.read(status.st_size)


def _whole_lines(file: int) -> int:
    """Return how many bytes of ``file`` are complete lines."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65536)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _make_folders(base: Path, parts: tuple[str, ...]) -> None:
    """Make ``base`` and the folders below it, 0700 whatever the umask. A link where a folder should be is refused."""
    for path in (base, *(base.joinpath(*parts[: i + 1]) for i in range(len(parts)))):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(path)) from None
        else:
            path.chmod(0o700)
            sync_directory(path.parent)

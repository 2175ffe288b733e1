"""The files of a bench and of its runs: atomic, private, checked when read. ``docs/structure.md``
shows the layout.

Names are for readers and are never parsed; the manifest defines a run. Every file is written
completely or not at all, and survives a power cut once the call returns. Names of files from nodes
are checked against an allow-list.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import DataError
from orchestrator.files import PROJECT_HINT, failures, make_folder, sync_directory, write_atomic
from orchestrator.inventory import in_order
from orchestrator.inventory.secrets import Spans, hide_spans
from orchestrator.record.bench_record import BenchRecord
from orchestrator.record.journal import Entry, Journal, list_runs
from orchestrator.record.state_file import (
    check_name,
    json_bytes,
    read_bytes,
    read_json,
    read_state,
    state_bytes,
    state_error,
    write_state,
)

EXIT_RECORD = "exit.json"
PROGRESS_LOG = "progress.log"
"""The file in a bench's folder with the progress lines that were shown while it ran."""
_MAX_EXIT_RECORD_BYTES = 16 * 1024 * 1024


class BenchDir:
    """All runs of one command: ``bench.json``, ``events.jsonl`` and a folder per run."""

    noun = "bench"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal(path / "events.jsonl")
        self._lock = threading.Lock()

    @classmethod
    def create(cls, root: Path, bench: Mapping[str, Any]) -> BenchDir:
        """Create the folder of a new bench under ``root``, named by its ``bench_id``. ``bench`` is
        `BenchRecord.as_dict`.

        Raises ConfigError (unsafe_path) if it exists already or ``root`` is unusable, and DataError
        (storage_full).
        """
        name = check_name(str(bench["bench_id"]), str(root))
        path = root / name
        make_folder(root, PROJECT_HINT, is_input=True)
        with failures(path, hint=PROJECT_HINT, is_input=True):
            path.mkdir(mode=0o700)
            path.chmod(0o700)
            sync_directory(root)
        write_state(path / "bench.json", bench)
        return cls(path)

    @classmethod
    def open(cls, path: Path, runs: Path | None = None) -> BenchDir:
        """Return the bench in an existing folder. Raises DataError (state_damaged) if it is not a
        bench or unreadable; the hint names `orch rm` only for a record that was read, of a bench
        in ``runs``, the project's folder of benches.
        """
        bench = cls(path)
        try:
            bench.record()
        except DataError as error:
            was_read = not isinstance(error.__cause__, OSError)
            if was_read and runs and path.resolve().parent == runs.resolve():
                error.hint = error.hint or f"restore the file, or orch rm {path.name}"
            raise
        return bench

    def record(self) -> BenchRecord:
        """Return the content of ``bench.json``. Raises DataError (state_damaged) naming the file,
        and the offset or field.
        """
        path = self.path / "bench.json"
        return BenchRecord.of(read_state(path), str(path))

    def change(self, change: Callable[[BenchRecord], BenchRecord]) -> BenchRecord:
        """Update ``bench.json`` with the record that ``change`` returns, and return it. Unchanged
        fields are not touched.
        """
        path = self.path / "bench.json"
        with self._lock:
            content = read_state(path)
            before = BenchRecord.of(content, str(path))
            after = change(before)
            write_state(path, content | after.changes(before))
        return after

    def run(self, run_id: str) -> RunDir:
        """Return the folder of one run. The first write into it creates it."""
        return RunDir(self.path / check_name(run_id, str(self.path)))

    def runs(self, *, superseded: bool = False) -> list[RunDir]:
        """Return the runs in execution order, without those that have no files yet.

        A run whose files were lost is included, because the journal names it; its manifest cannot
        be read. ``superseded``: also include, first, the runs with files that no table counts:
        those that were replaced by another attempt, and extra runs.
        """
        record = self.record()
        uncounted = [*record.superseded, *record.extra_run_cells] if superseded else []
        old = [run for run in map(self.run, uncounted) if _is_written(run.path)]
        runs = {run: _is_written(run.path) for run in map(self.run, record.runs)}
        begun = list_runs(self.journal.read()) if not all(runs.values()) else frozenset()
        return [*old, *(run for run, written in runs.items() if written or run.run_id in begun)]

    def event(self, name: str, /, **fields: Any) -> None:
        """Append one event to the journal, as `Journal.write` does."""
        self.journal.write(name, **fields)

    def events(self) -> list[Entry]:
        """Return the events of the journal, as `Journal.read` does."""
        return self.journal.read()


class RunDir:
    """One run: ``manifest.json``, ``rendered/<host>/``, ``logs/<host>/``, ``hidden/<host>.json``,
    ``results/``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self._lock = threading.Lock()

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest; ``schema`` is added. `orchestrator.record.manifest` defines its
        content.
        """
        self._write(("manifest.json",), state_bytes(manifest))

    def manifest_content(self) -> dict[str, Any]:
        """Return the manifest as it was written. Raises DataError (state_damaged) naming file and
        offset.
        """
        return read_state(self.path / "manifest.json")

    def update_manifest(self, **fields: Any) -> None:
        """Replace some fields of the manifest."""
        with self._lock:
            self.write_manifest(self.manifest_content() | fields)

    def write_rendered(self, host: str, path: str, data: bytes, mode: int = 0o600) -> None:
        """Store a file sent to ``host`` as ``path`` (relative, every part from the allow-list)."""
        self._write(("rendered", host, *path.split("/")), data, mode)

    def rendered_path(self, host: str) -> Path:
        """Return the folder of the files sent to ``host``."""
        return self.path / "rendered" / check_name(host, str(self.path))

    def log_path(self, host: str, name: str) -> Path:
        """Return the path for a file from ``host``, and create its folder. Raises DataError for a
        name that is not allowed.
        """
        parts = ("logs", *(check_name(part, f"{self.path}: logs") for part in (host, name)))
        with failures(self.path):
            _make_folders(self.path, parts[:-1])
        return self.path.joinpath(*parts)

    def logs(self, host: str) -> list[Path]:
        """Return the logs collected from ``host`` so far: regular files only, without the exit
        record; rank-2.out comes before rank-10.out.
        """
        folder = self.path / "logs" / check_name(host, str(self.path))
        if not folder.is_dir():
            return []
        names = in_order(
            path.name
            for path in folder.iterdir()
            if stat.S_ISREG(path.lstat().st_mode) and path.name != EXIT_RECORD
        )
        return [folder / name for name in names]

    def write_log(self, host: str, name: str, data: bytes) -> None:
        """Store a complete file from ``host``."""
        self._write(("logs", host, name), data)

    def exit_content(self, host: str) -> dict[str, Any] | None:
        """Return ``exit.json`` of ``host`` as that node wrote it, for `node_record`; None if it was
        not collected.

        Raises DataError (result_invalid) for a record that is not a JSON object, too large, or not
        a regular file.
        """
        path = self.path / "logs" / check_name(host, str(self.path)) / EXIT_RECORD
        if not os.path.lexists(path):
            return None
        places = self.secret_places(host).get(EXIT_RECORD, ())
        record = read_json(
            path, _MAX_EXIT_RECORD_BYTES, "result_invalid", lambda data: hide_spans(data, places)
        )
        if not isinstance(record, dict):
            raise DataError("expected an object", kind="result_invalid", where=str(path), host=host)
        return record

    def secret_places(self, host: str) -> dict[str, Spans]:
        """Return the places of secret values in the collected files of ``host``, by name.

        A file without any is left out. Raises DataError (state_damaged).
        """
        path = self.path / "hidden" / f"{check_name(host, str(self.path))}.json"
        if not os.path.lexists(path):
            return {}
        files = read_state(path).get("files")
        if not isinstance(files, dict) or not all(map(_are_spans, files.values())):
            raise state_error(path, "expected the places of secrets in files, by name")
        return {name: [(start, stop) for start, stop in places] for name, places in files.items()}

    def write_secret_places(self, host: str, places: Mapping[str, Spans]) -> None:
        """Store where the collected files of ``host`` hold secret values; the values themselves are
        in no file but these.
        """
        self._write(
            ("hidden", f"{host}.json"),
            state_bytes({"files": {name: list(spans) for name, spans in places.items()}}),
        )

    def write_result(self, name: str, result: Mapping[str, Any]) -> None:
        """Store a derived result as ``results/<name>``, unless the file has this content. It may be
        deleted and made again.
        """
        data = json_bytes(result)
        with suppress(OSError):
            if (
                read_bytes(self.path / "results" / check_name(name, str(self.path)), len(data))
                == data
            ):
                return
        self._write(("results", name), data)

    def _write(self, parts: tuple[str, ...], data: bytes, mode: int = 0o600) -> None:
        for part in parts:
            check_name(part, str(self.path))
        with failures(self.path):
            _make_folders(self.path, parts[:-1])
        write_atomic(self.path.joinpath(*parts), data, mode)


def latest(root: Path) -> Path | None:
    """Return the newest bench under ``root``, by its record and then by name; None if there is
    none.

    A folder without ``bench.json`` is not a bench. Raises DataError (state_damaged) for an
    unreadable bench, because it may be the newest.
    """
    if not root.is_dir():
        return None
    folders = [
        path for path in root.iterdir() if (path / "bench.json").is_file() and not path.is_symlink()
    ]
    # A bench that ended before its first run has no results; it is the latest only if there is no
    # other.
    return max(
        folders,
        key=lambda path: (
            any(path.glob("*/manifest.json")),
            BenchDir(path).record().created_order,
            path.name,
        ),
        default=None,
    )


def bench_folders(root: Path) -> list[Path]:
    """Return the folders of the benches in ``root``, the newest name first."""
    return [path.parent for path in sorted(root.glob("*/bench.json"), reverse=True)]


def benches(root: Path, damaged: dict[str, DataError] | None = None) -> Iterator[BenchDir]:
    """Yield the benches in ``root``, the newest name first. A damaged one is skipped; ``damaged``
    then has its fault by its name.
    """
    for folder in bench_folders(root):
        try:
            bench = BenchDir.open(folder, root)
        except DataError as error:
            if damaged is not None:
                damaged[folder.name] = error
            continue
        yield bench


def _are_spans(value: Any) -> bool:
    """Return True for a list of pairs of offsets, in order and without overlaps."""
    if not isinstance(value, list) or not all(
        isinstance(span, list) and len(span) == 2 for span in value
    ):
        return False
    offsets = [offset for span in value for offset in span]
    return all(type(offset) is int and offset >= 0 for offset in offsets) and offsets == sorted(
        offsets
    )


def _is_written(folder: Path) -> bool:
    """Return True if the folder has a finished file. A hidden file is an unfinished write."""
    return folder.is_dir() and any(path.name[0] != "." for path in folder.iterdir())


def _make_folders(base: Path, parts: tuple[str, ...]) -> None:
    """Create ``base`` and the folders below it, mode 0700 for any umask. Raises NotADirectoryError
    for a link.
    """
    for path in (base, *(base.joinpath(*parts[: i + 1]) for i in range(len(parts)))):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(path)) from None
        else:
            path.chmod(0o700)
            sync_directory(path.parent)

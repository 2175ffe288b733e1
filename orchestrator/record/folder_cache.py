"""Facts of folders of a project, kept in one deletable file and taken from it until a file of the
folder changes.

Reading ten thousand logs again takes half a minute; checking their sizes and times takes a moment.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.files import write_atomic
from orchestrator.record.sealed import is_broken, seal_record
from orchestrator.record.state_file import read_json
from orchestrator.version import __version__

_SCHEMA = 6
_NO_EVIDENCE = {"results", "report.html", "owner.lock", "progress.log"}
"""Names of derived files and of files that are no evidence."""


def read_folders(
    cache: Path, folders: Sequence[Path], read: Callable[[Path], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return by name what ``read`` says of folders, from ``cache`` where no file of one has
    changed.
    """
    cached = _read_cache(cache)
    entries: dict[str, dict[str, Any]] = {}
    for folder in folders:
        mark = evidence_mark(folder)
        entry = cached.get(folder.name)
        entries[folder.name] = (
            entry if entry and entry["mark"] == mark else {"mark": mark, **read(folder)}
        )
    if entries != cached:
        with suppress(OrchError, OSError):  # the cache only saves time
            cache.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomic(
                cache,
                json.dumps(
                    seal_record({"schema": _SCHEMA, "orch": __version__, "benches": entries})
                ).encode(),
            )
    return entries


def evidence_mark(folder: Path) -> str:
    """Return a digest of the names, sizes and modification times of all evidence in a folder."""
    lines = sorted(
        f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in _files(str(folder))
    )
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except OrchError:
        return {}
    intact = isinstance(record, dict) and not is_broken(record) and "seal" in record
    return (
        record["benches"]
        if intact and (record["schema"], record["orch"]) == (_SCHEMA, __version__)
        else {}
    )


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _NO_EVIDENCE:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry.path, entry.stat(follow_symlinks=False)

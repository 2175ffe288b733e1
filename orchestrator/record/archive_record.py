"""The record of an archive: digests of its files (``SHA256SUMS``), and results that orch computed
from them (``archive.json``).

The SHA-256 of the first is the seal. It has the digest of the second, so both are proven by a seal
without the files.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import DataError
from orchestrator.record.sealed_tar import TarReader
from orchestrator.record.state_file import check_name, state_error
from orchestrator.strictjson import strict_json
from orchestrator.version import __version__

SCHEMA = 2
"""Of archive.json. 1: first version. 2: what `orch history` and a store show of the archive, as
``history``.
"""
SUMS, RECORD = "SHA256SUMS", "archive.json"
MAX_OWN_BYTES = 64 << 20
_LINE = re.compile(r"([0-9a-f]{64})  ([!-~]+)\n")
_COMPUTED = ("tables", "history")
_PIECE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an archive, from its first bytes.

    It has the number of files, the version of orch that sealed it, and its part of `orch history`,
    empty if another version sealed it.
    """

    files: int
    orch: str
    history: Mapping[str, Any]
    tables: Mapping[str, Any]


def head_of(read: Callable[[int, int], bytes], size: int, seal: str, where: str) -> Head:
    """Return the head of an archive of ``size`` bytes, proven by its seal.

    ``read`` returns a number of bytes from an offset on; only the beginning of the archive is read.
    Raises DataError.
    """
    tar = TarReader(io.BufferedReader(_Ranges(read, size), _PIECE_BYTES), where, size)
    root, _, first = tar.first_name().partition("/")
    if first != SUMS:
        raise state_error(where, "expected an archive sealed by orch, found another file")
    sums = tar.small(f"{check_name(root, where)}/{SUMS}", MAX_OWN_BYTES)
    digests = digests_of(sums, where, seal)
    own = tar.small(f"{root}/{RECORD}", MAX_OWN_BYTES)
    actual = hashlib.sha256(own).hexdigest()
    if actual != digests[RECORD]:
        raise state_error(
            f"{where}: {RECORD}", f"expected SHA-256 {digests[RECORD]} as sealed, found {actual}"
        )
    record = record_of(own, f"{where}: {RECORD}")
    return Head(len(digests), record["orch"], record.get("history", {}), record["tables"])


class _Ranges(io.RawIOBase):
    """A file that is read in ranges."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._ranged = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = b""
        if self._at < self._size:
            data = self._ranged(self._at, min(len(buffer), self._size - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def root_of(bench_id: str, where: str) -> str:
    """Return the folder in an archive of a bench. The name of the first file must fit into a header
    without an extension.
    """
    return check_name(bench_id, f"{where}: bench.json: bench_id")[:80]


def digests_of(sums: bytes, where: str, quoted: str) -> dict[str, str]:
    """Return the digest of each name. Raises DataError for another seal than quoted, and for names
    that `seal` never writes.
    """
    actual = hashlib.sha256(sums).hexdigest()
    if quoted and actual != quoted:
        raise state_error(
            where,
            f"expected the seal {quoted}, found {actual}",
            "this is not the archive that was quoted",
        )
    text = sums.decode("ascii", "replace")
    digests = {line[2]: line[1] for line in _LINE.finditer(text)}
    if "".join(f"{digest}  {name}\n" for name, digest in digests.items()) != text:
        raise state_error(
            f"{where}: {SUMS}", "expected one line for each file: its digest, two spaces, its name"
        )
    for name in digests:
        for part in name.split("/"):
            check_name(part, f"{where}: {SUMS}")
    folders = {str(folder) for name in digests for folder in Path(name).parents}
    if list(digests) != [RECORD, *sorted(digests.keys() - {RECORD})] or folders & {SUMS, *digests}:
        raise state_error(
            f"{where}: {SUMS}", f"expected {RECORD} and then the files in order of name"
        )
    return digests


def record_of(data: bytes, where: str) -> Mapping[str, Any]:
    """Return the content of ``archive.json``. Raises DataError."""
    record = strict_json(data, where, "state_damaged")
    if not isinstance(record, dict) or record.get("schema") not in range(1, SCHEMA + 1):
        raise state_error(
            where,
            f"expected an object of schema {SCHEMA} or older",
            "a newer orch may have sealed it",
        )
    if not isinstance(record.get("orch"), str) or not isinstance(record.get("tables"), dict):
        raise state_error(where, "expected the version of orch, and tables")
    if record["schema"] > 1 and not isinstance(record.get("history"), dict):
        raise state_error(where, "expected what orch history shows of the archive")
    return record


def difference(
    record: Mapping[str, Any], computed: Mapping[str, Any], where: str
) -> DataError | None:
    """Return the first difference between an archive's record and the results of its logs, None
    without one.

    The last digits of numbers may differ, because they depend on library versions. The error has a
    hint if another version of orch sealed the archive.
    """
    keys = [key for key in _COMPUTED if key in record]
    expected = dict(_leaves({key: record[key] for key in keys}))
    actual = dict(_leaves({key: computed[key] for key in keys}))
    for place in {**expected, **actual}:
        old, new = expected.get(place, "nothing"), actual.get(place, "nothing")
        close = (
            isinstance(old, float)
            and isinstance(new, float)
            and math.isclose(old, new, rel_tol=1e-9)
        )
        if not close and (type(old) is not type(new) or old != new):
            hint = _sealed_by(record, computed)
            return state_error(
                f"{where}: {place}", f"expected {old!r} as sealed, the logs give {new!r}", hint
            )
    return None


def _sealed_by(record: Mapping[str, Any], computed: Mapping[str, Any]) -> str:
    """Return advice if another version of orch sealed the archive; empty if it was this version."""
    sealed, current = (
        (record["orch"], record["tables"].get("schema")),
        (__version__, computed["tables"]["schema"]),
    )
    if sealed == current:
        return ""
    versions = f"sealed by orch {sealed[0]} (tables of schema {sealed[1]!r}), this is {current[0]} (schema {current[1]})"
    return f"{versions}: verify it with that version. all files are as sealed; orch summarize recomputes the unpacked archive"


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    if not items:
        yield place, value
    for key, inner in items:
        yield from _leaves(inner, f"{place}.{key}" if place else str(key))

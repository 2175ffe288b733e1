"""Seal a bench or an acceptance into one file, and verify that an archive is unchanged.

    <id>/SHA256SUMS     the digest of every other file, as ``sha256sum --check`` reads them; its own SHA-256 is the seal
    <id>/archive.json   the version of orch, and what it computed: the tables of a bench, the certificate of an acceptance
    <id>/…              the files of the bench or acceptance, except derived and temporary ones

The file is a tar with exactly one possible encoding (`sealed_tar`). It is not compressed, because two libraries compress
differently, and because an uncompressed file cannot be a decompression bomb. Unpacked by any program, it is a normal bench or
acceptance."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Any, BinaryIO

from orchestrator import __version__
from orchestrator.errors import ConfigError, DataError, RunError
from orchestrator.files import failures
from orchestrator.record.acceptance import CERTIFICATE, AcceptanceDir
from orchestrator.record.ownership import holder
from orchestrator.record.rundir import BenchDir
from orchestrator.record.sealed_tar import MAX_FILE_BYTES, PIECE_BYTES, TarReader, append, end, size_of
from orchestrator.record.state_file import check_name, read_bytes
from orchestrator.strictjson import strict_json

__all__ = ["RECORD", "SUMS", "Archive", "Tables", "seal", "verify"]

SCHEMA = 1
"""Of archive.json. 1: first version."""
SUMS, RECORD = "SHA256SUMS", "archive.json"
_PASSING = {"owner.lock", "report.html", SUMS, RECORD}
_OF_ACCEPTANCE = {"owner.lock", SUMS, RECORD, *(f"{CERTIFICATE}.{kind}" for kind in ("json", "html", "tar", "tar.sig"))}
_MAX_OWN_BYTES = 64 << 20
_LINE = re.compile(r"([0-9a-f]{64})  ([!-~]+)\n")

Sealable = BenchDir | AcceptanceDir
Tables = Callable[[Any], Mapping[str, Any]]
"""A function that computes the tables of a bench, or the certificate of an acceptance, as JSON values, only from its files."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A sealed bench or acceptance: its seal, number of files, the version of orch that sealed it, number of runs, and its
    tables or certificate."""

    bench_id: str
    seal: str
    files: int
    orch: str
    runs: int
    tables: Mapping[str, Any]


def seal(bench: Sealable, target: Path, tables: Tables) -> Archive:
    """Write the archive of a bench or acceptance as ``target``. The same bench gives the same bytes; nothing is overwritten.

    Raises RunError (run_in_use) while a controller runs the bench, DataError for a file that does not belong to a bench, and
    ConfigError if ``target`` cannot be written.
    """
    where = str(bench.path)
    names = _sealable(bench, target, where)
    record = {"schema": SCHEMA, "orch": __version__, "tables": _computed(bench.path, tables)}
    own = json.dumps(record, indent=1, allow_nan=False).encode() + b"\n"
    measured = {name: _measured(bench.path / name) for name in names}
    digests = {RECORD: hashlib.sha256(own).hexdigest()} | {name: digest for name, (_, digest) in measured.items()}
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode()
    root = _root(_id(bench), where)
    sizes = {SUMS: len(sums), RECORD: len(own)} | {name: size for name, (size, _) in measured.items()}
    with _appearing(target, size_of({f"{root}/{name}": size for name, size in sizes.items()})) as out:
        for name, data in ((SUMS, sums), (RECORD, own)):
            append(out, f"{root}/{name}", len(data), [data])
        for name, (size, digest) in measured.items():
            again = hashlib.sha256()
            append(out, f"{root}/{name}", size, _pieces(bench.path / name, again.update))
            if again.hexdigest() != digest:
                raise _damaged(
                    f"{where}: {name}",
                    "expected an unchanged file, it was written to meanwhile",
                    "repeat when nothing writes to the bench",
                )
        out.write(end(out.tell()))
    return _archive(bench, sums, record)


def _benches(folder: Sealable) -> list[BenchDir]:
    """Return the bench, or those of the stages of an acceptance."""
    if isinstance(folder, BenchDir):
        return [folder]
    return [folder.bench(attempt.bench_id) for attempt in folder.record().attempts]


def _id(folder: Sealable) -> str:
    return folder.record().bench_id if isinstance(folder, BenchDir) else folder.record().acceptance_id


def _opened(path: Path) -> Sealable:
    acceptance = AcceptanceDir(path)
    return acceptance if acceptance.is_one else BenchDir.open(path)


def _sealable(bench: Sealable, target: Path, where: str) -> list[str]:
    """Return the names of the files to seal. Raises if the bench is in use, incomplete, or contains ``target``."""
    benches = _benches(bench)
    if who := next(filter(None, map(holder, [bench, *benches])), None):
        hint = "wait until it has finished, or stop it with orch cancel"
        what = "bench" if isinstance(bench, BenchDir) else "acceptance"
        raise RunError(f"a controller is running this {what}: {who}", kind="run_in_use", where=where, hint=hint)
    is_own = isinstance(bench, AcceptanceDir) and target.resolve() == bench.path.resolve() / f"{CERTIFICATE}.tar"
    if target.resolve().is_relative_to(bench.path.resolve()) and not is_own:
        raise ConfigError("expected a path outside the bench", kind="unsafe_path", where=str(target), hint="give --output")
    names = _files(bench.path, where)
    for run in (run for of_stage in benches for run in of_stage.runs()):
        folder = str(run.path.relative_to(bench.path))
        if not any(name.startswith(f"{folder}/") for name in names):
            raise _damaged(
                str(run.path), "expected files of the run, found none", "orch resume repeats the run under a new name"
            )
    return names


def verify(path: Path, tables: Tables, quoted: str = "") -> Archive:
    """Verify an archive, packed or unpacked: every byte of it, and its tables, which are recomputed from the logs.

    ``quoted`` is the seal that it must have, empty for any. Only a temporary copy of a packed archive is written.
    Raises DataError.
    """
    if path.is_dir():
        return _verified(path.absolute(), str(path), tables, quoted)
    if not path.is_file():
        raise ConfigError("expected an archive, or the directory of an unpacked one", where=str(path))
    with TemporaryDirectory(prefix="orch-") as temporary:
        folder = _unpacked(path, Path(temporary).absolute(), quoted)
        archive = _verified(folder, str(path), tables, quoted)
        # The sums are those of the files, not of their paths in the tar: only one root gives its bytes.
        if folder.name != _root(archive.bench_id, str(path)):
            message = f"expected files below {_root(archive.bench_id, str(path))}/ as sealed, found them below {folder.name}/"
            raise _damaged(str(path), message)
        return archive


def _root(bench_id: str, where: str) -> str:
    """Return the folder in an archive of a bench. The name of the first file must fit into a header without an extension."""
    return check_name(bench_id, f"{where}: bench.json: bench_id")[:80]


def _unpacked(path: Path, into: Path, quoted: str) -> Path:
    """Write the files of an archive under ``into`` and return their folder. Every name is checked before it is used."""
    with _readable(path), path.open("rb") as stream:
        tar = TarReader(stream, str(path))
        root, _, first = tar.first_name().partition("/")
        if first != SUMS:
            raise _damaged(str(path), "expected an archive sealed by orch, found another file")
        folder = into / check_name(root, str(path))
        _write(folder / SUMS, tar.content(f"{root}/{SUMS}"))
        for name in _digests(_own(folder / SUMS, str(path)), str(path), quoted):
            _write(folder / name, tar.content(f"{root}/{name}"))
        tar.end()
    return folder


def _verified(folder: Path, where: str, tables: Tables, quoted: str) -> Archive:
    sums = _own(folder / SUMS, where)
    digests = _digests(sums, where, quoted)
    sealed_names = digests.keys() - {RECORD}
    for name in sorted(sealed_names ^ set(_files(folder, where))):
        message = "expected this file as sealed, it is missing" if name in sealed_names else "expected no such file as sealed"
        raise _damaged(f"{where}: {name}", message)
    for name, digest in digests.items():
        _, actual = _measured(folder / name)
        if actual != digest:
            raise _damaged(f"{where}: {name}", f"expected SHA-256 {digest} as sealed, found {actual}")
    record = _record(_own(folder / RECORD, where), f"{where}: {RECORD}")
    _compare(record, _recomputed(folder, where, tables), f"{where}: {RECORD}")
    return _archive(_opened(folder.absolute()), sums, record)


def _archive(bench: Sealable, sums: bytes, record: Mapping[str, Any]) -> Archive:
    digest = hashlib.sha256(sums).hexdigest()
    runs = sum(len(of_stage.record().runs) for of_stage in _benches(bench))
    return Archive(_id(bench), digest, sums.count(b"\n"), record["orch"], runs, record["tables"])


def _files(root: Path, where: str) -> list[str]:
    """Return the names of the files of a bench in order. Raises DataError for an invalid name or an irregular file.

    Left out are ``owner.lock``, ``report.html``, the ``results`` of a run, certificates, an earlier seal, and hidden files,
    which are unfinished writes. The benches of an acceptance are one folder further down."""
    depth = int(AcceptanceDir(root).is_one)

    def unreadable(error: OSError) -> None:
        raise _damaged(where, f"cannot be read: {error.filename}: {error.strerror}") from error

    paths = []
    for folder, folders, names in os.walk(root, onerror=unreadable):
        inside = Path(folder).relative_to(root)
        at = len(inside.parts) - depth
        folders[:] = [name for name in folders if name[0] != "." and (at, name) != (1, "results")]
        passing = _PASSING if at == 0 else _OF_ACCEPTANCE if at < 0 else set()
        names = [name for name in names if name[0] != "." and name not in passing]
        for name in (*folders, *names):
            check_name(name, f"{where}: {inside}")
            status = Path(folder, name).lstat()
            if name in folders and not stat.S_ISDIR(status.st_mode):
                raise _damaged(f"{where}: {inside / name}", "expected a folder, found a link")
            if name in names and not (stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES):
                raise _damaged(f"{where}: {inside / name}", "expected a regular file of less than 8 GiB")
        paths += [str(inside / name) for name in names]
    return sorted(paths)


def _digests(sums: bytes, where: str, quoted: str) -> dict[str, str]:
    """Return the digest of each name. Raises DataError for another seal than quoted, and for names that `seal` never writes."""
    actual = hashlib.sha256(sums).hexdigest()
    if quoted and actual != quoted:
        raise _damaged(where, f"expected the seal {quoted}, found {actual}", "this is not the archive that was quoted")
    text = sums.decode("ascii", "replace")
    digests = {line[2]: line[1] for line in _LINE.finditer(text)}
    if "".join(f"{digest}  {name}\n" for name, digest in digests.items()) != text:
        raise _damaged(f"{where}: {SUMS}", "expected one line for each file: its digest, two spaces, its name")
    for name in digests:
        for part in name.split("/"):
            check_name(part, f"{where}: {SUMS}")
    folders = {str(folder) for name in digests for folder in Path(name).parents}
    if list(digests) != [RECORD, *sorted(digests.keys() - {RECORD})] or folders & {SUMS, *digests}:
        raise _damaged(f"{where}: {SUMS}", f"expected {RECORD} and then the files in order of name")
    return digests


def _own(path: Path, where: str) -> bytes:
    try:
        return read_bytes(path, _MAX_OWN_BYTES)
    except OSError as error:
        message, hint = f"{path.name} cannot be read: {error.strerror}", "verify only what orch archive has written"
        raise _damaged(where, message, hint) from error


def _record(data: bytes, where: str) -> Mapping[str, Any]:
    record = strict_json(data, where, "state_damaged")
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise _damaged(where, f"expected an object of schema {SCHEMA}", "a newer orch may have sealed it")
    if not isinstance(record.get("orch"), str) or not isinstance(record.get("tables"), dict):
        raise _damaged(where, "expected the version of orch, and tables")
    return record


def _computed(folder: Path, tables: Tables) -> Any:
    """Return the tables without the path of the bench, because some causes of failure name their file."""
    text = json.dumps(tables(_opened(folder.absolute())), allow_nan=False)
    return json.loads(text.replace(json.dumps(f"{folder.absolute()}/")[1:-1], ""))


def _recomputed(folder: Path, where: str, tables: Tables) -> Any:
    try:
        return _computed(folder, tables)
    except DataError as error:
        error.where = error.where.replace(f"{folder}/", f"{where}: ")
        raise


def _compare(record: Mapping[str, Any], computed: Any, where: str) -> None:
    """Raise DataError if tables differ from those of the logs, except in the last digits, which depend on library versions."""
    expected, actual = dict(_leaves(record["tables"])), dict(_leaves(computed))
    for place in {**expected, **actual}:
        old, new = expected.get(place, "nothing"), actual.get(place, "nothing")
        close = isinstance(old, float) and isinstance(new, float) and math.isclose(old, new, rel_tol=1e-9)
        if not close and (type(old) is not type(new) or old != new):
            hint = _sealed_by(record, computed)
            raise _damaged(f"{where}: {place}", f"expected {old!r} as sealed, the logs give {new!r}", hint)


def _sealed_by(record: Mapping[str, Any], computed: Any) -> str:
    """Return what to do if another version of orch sealed the archive; empty if it was this version."""
    sealed, current = (record["orch"], record["tables"].get("schema")), (__version__, computed["schema"])
    if sealed == current:
        return ""
    versions = f"sealed by orch {sealed[0]} (tables of schema {sealed[1]!r}), this is {current[0]} (schema {current[1]})"
    return f"{versions}: verify it with that version. all files are as sealed; orch summarize recomputes the unpacked archive"


def _leaves(value: Any, place: str = "tables") -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        yield place, value
    for key, inner in items:
        yield from _leaves(inner, f"{place}.{key}")


def _pieces(path: Path, seen: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the bytes of a regular file in pieces; ``seen`` is called with each piece first."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _readable(path), open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as stream:
        while piece := stream.read(PIECE_BYTES):
            seen(piece)
            yield piece


def _measured(path: Path) -> tuple[int, str]:
    """Return a file's size and SHA-256."""
    digest = hashlib.sha256()
    return sum(len(piece) for piece in _pieces(path, digest.update)), digest.hexdigest()


def _write(path: Path, pieces: Iterator[bytes]) -> None:
    with failures(path, is_input=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            out.writelines(pieces)


@contextmanager
def _appearing(target: Path, needed: int) -> Iterator[BinaryIO]:
    """Yield a file for ``needed`` bytes. It gets its name once it is complete and on disk; after an error nothing is left."""
    with failures(target, needed, is_input=True):
        if os.path.lexists(target):
            raise FileExistsError
        try:
            handle, part = mkstemp(dir=target.parent, prefix=".", suffix=".part")
        except OSError as error:  # whose name is that of a file which nobody has asked for
            raise OSError(error.errno, error.strerror, str(target)) from None
        try:
            with os.fdopen(handle, "wb") as out:
                yield out
                out.flush()
                os.fsync(handle)
            Path(part).rename(target)
        finally:
            Path(part).unlink(missing_ok=True)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _damaged(str(path), f"cannot be read: {error.strerror}") from error


def _damaged(where: str, message: str, hint: str = "") -> DataError:
    return DataError(message, kind="state_damaged", where=where, hint=hint)

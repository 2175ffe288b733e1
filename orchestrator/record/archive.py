"""Seal a bench or an acceptance into one file, and verify that an archive is unchanged.

    <id>/SHA256SUMS     the digest of every other file, as ``sha256sum --check`` reads them; its own SHA-256 is the seal
    <id>/archive.json   the version of orch, and what it computed: the tables of a bench, the certificate of an acceptance, and
                        what `orch history` shows of either
    <id>/…              the files of the bench or acceptance, except derived and temporary ones

The file is a tar with exactly one possible encoding (`sealed_tar`). It is not compressed, because
two libraries compress differently, and because an uncompressed file cannot be a decompression bomb.
Unpacked by any program, it is a normal bench or acceptance."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Any, BinaryIO

from orchestrator.errors import ConfigError, DataError, RunError
from orchestrator.files import failures
from orchestrator.record.archive_record import (
    MAX_OWN_BYTES,
    RECORD,
    SCHEMA,
    SUMS,
    difference,
    digests_of,
    record_of,
    root_of,
)
from orchestrator.record.bench_groups import BenchGroup, group_at
from orchestrator.record.ownership import holder
from orchestrator.record.rundir import BenchDir
from orchestrator.record.sealed_tar import (
    MAX_FILE_BYTES,
    PIECE_BYTES,
    TarReader,
    append,
    end,
    size_of,
)
from orchestrator.record.state_file import check_name, read_bytes, state_error
from orchestrator.version import __version__

_PASSING = {"owner.lock", "report.html", SUMS, RECORD}
_PASSING_OF_GROUP = {"owner.lock", SUMS, RECORD}

Sealable = BenchDir | BenchGroup
Contents = Callable[[Any], Mapping[str, Any]]
"""A function that computes from the files of a bench or acceptance alone what an archive holds
besides them, as JSON values: ``tables`` of a bench or the certificate of an acceptance, and
``history``, what a list of archives shows of it.
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """A sealed bench or acceptance: its seal, number of files, the version of orch that sealed it,
    number of runs, its tables or certificate, and what `orch history` shows of it."""

    bench_id: str
    seal: str
    files: int
    orch: str
    runs: int
    tables: Mapping[str, Any]
    history: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An archive in a folder. ``difference`` is the first place where this version of orch computes
    something else from the logs than the version that sealed it; None if nowhere."""

    archive: Archive
    folder: Path
    difference: DataError | None


def seal(bench: Sealable, target: Path, contents: Contents) -> Archive:
    """Write the archive of a bench or acceptance as ``target``. The same bench gives the same
    bytes; nothing is overwritten.

    Raises RunError (run_in_use) while a controller runs the bench, DataError for a file that does
    not belong to a bench, and ConfigError if ``target`` cannot be written.
    """
    where = str(bench.path)
    names = _sealable(bench, target, where)
    record = {"schema": SCHEMA, "orch": __version__, **_compute_contents(bench.path, contents)}
    own = json.dumps(record, indent=1, allow_nan=False).encode() + b"\n"
    measured = {name: _size_and_digest(bench.path / name) for name in names}
    digests = {RECORD: hashlib.sha256(own).hexdigest()} | {
        name: digest for name, (_, digest) in measured.items()
    }
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode()
    root = root_of(_id(bench), where)
    sizes = {SUMS: len(sums), RECORD: len(own)} | {
        name: size for name, (size, _) in measured.items()
    }
    with _appearing(
        target, size_of({f"{root}/{name}": size for name, size in sizes.items()})
    ) as out:
        for name, data in ((SUMS, sums), (RECORD, own)):
            append(out, f"{root}/{name}", len(data), [data])
        for name, (size, digest) in measured.items():
            again = hashlib.sha256()
            append(out, f"{root}/{name}", size, _pieces(bench.path / name, again.update))
            if again.hexdigest() != digest:
                raise state_error(
                    f"{where}: {name}",
                    "expected an unchanged file, but it was written to while it was sealed",
                    "repeat the command when nothing writes to the bench",
                )
        out.write(end(out.tell()))
    return _archive(bench, sums, record)


def _benches(folder: Sealable) -> list[BenchDir]:
    """Return the bench, or the benches of an acceptance."""
    if isinstance(folder, BenchDir):
        return [folder]
    return [bench for _, bench in folder.stages()]


def _id(folder: Sealable) -> str:
    if isinstance(folder, BenchDir):
        return folder.record().bench_id
    return folder.group_id


def _open_sealable(path: Path) -> Sealable:
    return group_at(path) or BenchDir.open(path)


def _sealable(bench: Sealable, target: Path, where: str) -> list[str]:
    """Return the names of the files to seal. Raises if the bench is in use, incomplete, or contains
    ``target``.
    """
    benches = _benches(bench)
    who = next(filter(None, map(holder, [bench, *benches])), None)
    if who:
        hint = "wait until it has finished, or stop it with orch cancel"
        raise RunError(
            f"a controller is running this {bench.noun}: {who}",
            kind="run_in_use",
            where=where,
            hint=hint,
        )
    is_own = not isinstance(bench, BenchDir) and target.resolve() == bench.own_archive.resolve()
    if target.resolve().is_relative_to(bench.path.resolve()) and not is_own:
        raise ConfigError(
            "expected a path outside the bench",
            kind="unsafe_path",
            where=str(target),
            hint="give --output",
        )
    names = _files(bench.path, where)
    for run in (run for of_stage in benches for run in of_stage.runs()):
        folder = str(run.path.relative_to(bench.path))
        if not any(name.startswith(f"{folder}/") for name in names):
            raise state_error(
                str(run.path),
                "expected files of the run, found none",
                "orch resume repeats the run under a new name",
            )
    return names


def verify(path: Path, contents: Contents, quoted: str = "") -> Archive:
    """Verify an archive, packed or unpacked: every byte of it, and its tables, which are recomputed
    from the logs.

    ``quoted`` is the seal that it must have, empty for any. Only a temporary copy of a packed
    archive is written. Raises DataError.
    """
    if path.is_dir():
        verified = _verify_folder(path.absolute(), str(path), contents, quoted)
    elif not path.is_file():
        found = "got something else" if path.exists() else "found none"
        raise ConfigError(
            f"expected an archive, or the directory of an unpacked one, {found}",
            where=str(path),
            hint="orch archive BENCH writes one",
        )
    else:
        with TemporaryDirectory(prefix="orch-") as temporary:
            verified = unpack(path, Path(temporary), contents, quoted)
    if verified.difference:
        raise verified.difference
    return verified.archive


def unpack(path: Path, into: Path, contents: Contents, quoted: str = "") -> Unpacked:
    """Write the files of a packed archive into a folder of their own below ``into``, and verify it
    as `verify` does.

    If another version of orch sealed it, other tables are no error. Raises DataError; the files
    below ``into`` are then worthless.
    """
    folder = _unpack(path, into.absolute(), quoted)
    verified = _verify_folder(folder, str(path), contents, quoted)
    # The digests are of the files, not of their paths in the tar: only one root gives its bytes.
    root = root_of(verified.archive.bench_id, str(path))
    if folder.name != root:
        raise state_error(
            str(path), f"expected files below {root}/ as sealed, found them below {folder.name}/"
        )
    if verified.difference and not verified.difference.hint:
        raise verified.difference
    return verified


def has_files_of(folder: Path, sealed: Path) -> bool:
    """Return whether a folder has exactly the files of the bench in an unpacked archive, apart from
    derived ones.

    Raises DataError for an irregular file."""
    digests = digests_of(_own(sealed / SUMS, str(sealed)), str(sealed), "")
    names = _files(folder, str(folder))
    return set(names) == digests.keys() - {RECORD} and all(
        _size_and_digest(folder / name)[1] == digests[name] for name in names
    )


def _unpack(path: Path, into: Path, quoted: str) -> Path:
    """Write the files of an archive under ``into`` and return their folder. Every name is checked
    before it is used.
    """
    with _readable(path), path.open("rb") as stream:
        tar = TarReader(stream, str(path), os.fstat(stream.fileno()).st_size)
        root, _, first = tar.first_name().partition("/")
        if first != SUMS:
            raise state_error(str(path), "expected an archive sealed by orch, found another file")
        folder = into / check_name(root, str(path))
        _write(folder / SUMS, tar.content(f"{root}/{SUMS}"))
        for name in digests_of(_own(folder / SUMS, str(path)), str(path), quoted):
            _write(folder / name, tar.content(f"{root}/{name}"))
        tar.end()
    return folder


def _verify_folder(folder: Path, where: str, contents: Contents, quoted: str) -> Unpacked:
    sums = _own(folder / SUMS, where)
    digests = digests_of(sums, where, quoted)
    sealed_names = digests.keys() - {RECORD}
    for name in sorted(sealed_names ^ set(_files(folder, where))):
        message = "expected only sealed files, found this one too"
        if name in sealed_names:
            message = "expected this sealed file, it is missing"
        raise state_error(f"{where}: {name}", message)
    for name, digest in digests.items():
        _, actual = _size_and_digest(folder / name)
        if actual != digest:
            raise state_error(
                f"{where}: {name}", f"expected SHA-256 {digest} as sealed, found {actual}"
            )
    record = record_of(_own(folder / RECORD, where), f"{where}: {RECORD}")
    computed = _recompute(folder, where, contents)
    archive = _archive(
        _open_sealable(folder.absolute()), sums, {"history": computed["history"], **record}
    )
    return Unpacked(archive, folder, difference(record, computed, f"{where}: {RECORD}"))


def _archive(bench: Sealable, sums: bytes, record: Mapping[str, Any]) -> Archive:
    digest = hashlib.sha256(sums).hexdigest()
    runs = sum(len(of_stage.record().runs) for of_stage in _benches(bench))
    return Archive(
        _id(bench),
        digest,
        sums.count(b"\n"),
        record["orch"],
        runs,
        record["tables"],
        record["history"],
    )


def _files(root: Path, where: str) -> list[str]:
    """Return the names of the files of a bench in order. Raises DataError for an invalid name or an
    irregular file.

    Left out are ``owner.lock``, ``report.html``, the ``results`` of a run, certificates, an earlier
    seal, and hidden files, which are unfinished writes. The benches of a group are one folder
    further down."""
    group = group_at(root)
    depth = int(group is not None)
    of_group = _PASSING_OF_GROUP | (group.derived if group else frozenset())

    def unreadable(error: OSError) -> None:
        raise state_error(where, f"cannot be read: {error.filename}: {error.strerror}") from error

    paths = []
    for folder, folders, names in os.walk(root, onerror=unreadable):
        inside = Path(folder).relative_to(root)
        at = len(inside.parts) - depth
        folders[:] = [name for name in folders if name[0] != "." and (at, name) != (1, "results")]
        if at == 0:
            passing = _PASSING
        elif at < 0:
            passing = of_group
        else:
            passing = set()
        names = [name for name in names if name[0] != "." and name not in passing]
        for name in (*folders, *names):
            check_name(name, f"{where}: {inside}")
            status = Path(folder, name).lstat()
            if name in folders and not stat.S_ISDIR(status.st_mode):
                raise state_error(f"{where}: {inside / name}", "expected a folder, found a link")
            if name in names and not (
                stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES
            ):
                raise state_error(
                    f"{where}: {inside / name}", "expected a regular file of less than 8 GiB"
                )
        paths += [str(inside / name) for name in names]
    return sorted(paths)


def _own(path: Path, where: str) -> bytes:
    try:
        return read_bytes(path, MAX_OWN_BYTES)
    except OSError as error:
        message = f"expected what orch archive has written, an archive or a folder of its files, {path.name} cannot be read"
        hint = "seal a bench first: orch archive BENCH"
        raise state_error(where, f"{message}: {error.strerror}", hint) from error


def _compute_contents(folder: Path, contents: Contents) -> Any:
    """Return the contents without the path of the bench, because some causes of failure name their
    file.
    """
    text = json.dumps(contents(_open_sealable(folder.absolute())), allow_nan=False)
    return json.loads(text.replace(json.dumps(f"{folder.absolute()}/")[1:-1], ""))


def _recompute(folder: Path, where: str, contents: Contents) -> Any:
    try:
        return _compute_contents(folder, contents)
    except DataError as error:
        error.where = error.where.replace(f"{folder}/", f"{where}: ")
        raise


def _pieces(path: Path, seen: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the bytes of a regular file in pieces; ``seen`` is called with each piece first."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with (
        _readable(path),
        open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as stream,
    ):
        while piece := stream.read(PIECE_BYTES):
            seen(piece)
            yield piece


def _size_and_digest(path: Path) -> tuple[int, str]:
    """Return a file's size and SHA-256."""
    digest = hashlib.sha256()
    return sum(map(len, _pieces(path, digest.update))), digest.hexdigest()


def _write(path: Path, pieces: Iterator[bytes]) -> None:
    with failures(path, is_input=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            out.writelines(pieces)


@contextmanager
def _appearing(target: Path, needed: int) -> Iterator[BinaryIO]:
    """Yield a file for ``needed`` bytes. It gets its name once it is complete and on disk; after an
    error nothing is left.
    """
    with failures(target, needed, is_input=True):
        if os.path.lexists(target):
            raise ConfigError(
                "already exists, and results are never overwritten",
                kind="unsafe_path",
                where=str(target),
                hint="name another file with --output, or remove this one",
            )
        try:
            handle, part = mkstemp(dir=target.parent, prefix=".", suffix=".part")
        except OSError as error:  # the archive has this name of a file
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
        raise state_error(str(path), f"cannot be read: {error.strerror}") from error

"""A store, whatever place it is kept in: `Store` puts archives in, lists them and hands them out."""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.errors import ConfigError, DataError, OrchError, RunError
from orchestrator.features.store.index import Entry, entry_of, read_index, write_index
from orchestrator.features.store.place import Place, unreadable
from orchestrator.files import failures
from orchestrator.record.archive import Archive, Contents, Unpacked, unpack
from orchestrator.record.archive_record import Head, head_of
from orchestrator.record.signature import is_signature, key_of, signer
from orchestrator.record.state_file import damaged
from orchestrator.strictjson import strict_json

__all__ = ["Listing", "Store"]

SCHEMA = 1
"""Of a store, in its marker. 1: first version."""
_MARKER, _INDEX, _ARCHIVES = "orch-store.json", "index.sqlite", "archives"
_OWN = {_MARKER, _INDEX, _ARCHIVES}
_SEALED = re.compile(r"([0-9a-f]{64})\.tar")
_SIGNATURE = re.compile(r"([0-9a-f]{64})\.tar(?:\.[0-9a-f]{16})?\.sig")
_MARKER_BYTES, _INDEX_BYTES, _SIGNATURE_BYTES = 1 << 16, 1 << 30, 1 << 16
_ATTEMPTS = 20
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Listing:
    """The archives of a store by seal. ``signed`` are the seals that have a signature, ``damaged``
    has by file name the fault of an archive, ``index`` is why the index cannot be read.
    Unless ``is_indexed``, it lacks archives, which were read from their heads, or has others."""

    entries: Mapping[str, Entry]
    signed: frozenset[str]
    damaged: Mapping[str, OrchError]
    index: OrchError | None
    is_indexed: bool

    def rows(self, signed: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each archive, oldest first, for JSON; sizes in bytes.

        ``signed`` is what the signatures of an archive are worth.
        """
        ordered = sorted(
            self.entries.values(), key=lambda entry: (entry.created, entry.id, entry.seal)
        )
        return [
            {
                "created": entry.created,
                "id": entry.id,
                "label": entry.label,
                "runs": entry.runs,
                "measured": entry.measured,
                "measures": entry.measures,
                "size_bytes": entry.size_bytes,
                "orch": entry.orch,
                "signed": signed.get(entry.seal, ""),
                "seal": entry.seal,
            }
            for entry in ordered
        ]


class Store:
    """A place with sealed archives."""

    def __init__(self, place: Place, contents: Contents) -> None:
        self.place = place
        self._contents = contents
        self._heads: dict[str, Entry] = {}

    @staticmethod
    def marks(folder: Path) -> bool:
        """Return True if a folder is a store. Raises ConfigError for one that may not be read."""
        try:
            return (folder / _MARKER).is_file()
        except PermissionError as error:
            raise unreadable(str(error.filename or folder)) from error

    @property
    def title(self) -> str:
        """The name of it in messages."""
        return self.place.title

    def where(self, seal: str) -> str:
        """Return what messages call an archive."""
        return f"{self.title}/{_ARCHIVES}/{seal}.tar"

    def open(self) -> Store:
        """Return this store after a look at it. Raises ConfigError if there is none."""
        if not self._is_one():
            hint = "orch push makes a store of an empty or new folder"
            raise ConfigError("expected a store, found none", where=self.title, hint=hint)
        return self

    def make(self) -> bool:
        """Make the place a store, unless it is one; return whether it was made.

        Raises ConfigError for a folder with other files."""
        self.place.make()
        if self._is_one():
            return False
        if strangers := sorted(set(self.place.sizes("") or {}) - _OWN):
            message = f"expected a store or an empty folder, found {', '.join(strangers[:3])}"
            raise ConfigError(
                message, kind="unsafe_path", where=self.title, hint="name a new folder in it"
            )
        with self._temporary() as folder:
            (folder / _MARKER).write_text(
                json.dumps({"schema": SCHEMA, "what": "a store of orch: docs/store.md"}) + "\n"
            )
            self.place.publish(_MARKER, folder / _MARKER)
        return True

    def push(
        self, path: Path, archive: Archive, signature: Path | None = None, *, again: bool = False
    ) -> bool:
        """Publish a verified archive, and its signature; return whether it was sent, because the
        store did not have it.

        ``again`` replaces what it has. The index is left to `index`.
        """
        name, size = f"{archive.seal}.tar", path.stat().st_size
        if signature:
            self._add_signature(archive.seal, signature)
        if self._size(name) == size and not again:
            return False
        self.place.publish(f"{_ARCHIVES}/{name}", path)
        if (stored := self._size(name)) != size:
            message = (
                f"expected {size} bytes as sent, found {stored if stored is not None else 'none'}"
            )
            raise DataError(
                message, kind="storage_failed", where=self.where(archive.seal), hint="push again"
            )
        return True

    def _add_signature(self, seal: str, signature: Path) -> None:
        """Publish a signature beside those that others have made of the same archive: each has a
        name by its key.
        """
        name = f"{_ARCHIVES}/{seal}.tar.sig"
        with self._temporary() as folder:
            known = folder / "known.sig"
            try:
                self.place.fetch(name, known, _SIGNATURE_BYTES)
            except (FileNotFoundError, DataError):  # none, or something else under its name
                known.write_bytes(b"")
            keys = key_of(known.read_bytes()), key_of(signature.read_bytes())
        if not keys[1]:
            raise DataError(
                "expected a signature of ssh-keygen, found something else",
                kind="state_damaged",
                where=str(signature),
            )
        if keys[0] not in ("", keys[1]):
            name = f"{_ARCHIVES}/{seal}.tar.{keys[1]}.sig"
        self.place.publish(name, signature)

    def signatures(self, seal: str) -> Iterator[bytes]:
        """Yield the files under the names of signatures of an archive."""
        names = self.place.sizes(_ARCHIVES)
        if names is None:
            names = {f"{seal}.tar.sig": None}
        for name in sorted(names):
            match = _SIGNATURE.fullmatch(name)
            if not match or match[1] != seal:
                continue
            with self._temporary() as folder, suppress(FileNotFoundError, DataError):
                self.place.fetch(f"{_ARCHIVES}/{name}", folder / "sig", _SIGNATURE_BYTES)
                yield (folder / "sig").read_bytes()

    def signer(self, seal: str, signers: Path | None) -> str:
        """Return who of the allowed signers has signed an archive; nothing if nobody asks. Raises
        DataError if none has.
        """
        if not signers:
            return ""
        where = f"{self.where(seal)}.sig"
        hint = "whoever vouches for the archive can add one: orch push --sign KEY"
        fault = damaged(where, "expected a signature, found none", hint)
        with self._temporary() as folder:
            signature = folder / "archive.tar.sig"
            for content in self.signatures(seal):
                signature.write_bytes(content)
                try:
                    return signer(seal, signature, signers)
                except DataError as error:
                    error.where = where
                    fault = error
        raise fault

    def standing(self, seal: str, signers: Path | None) -> str:
        """Return in words what the signatures of an archive are worth: ``verified`` and by whom,
        ``unverified``, or ``invalid``.
        """
        if signers:
            with suppress(DataError):
                return f"verified: {self.signer(seal, signers)}"
        is_signed = any(is_signature(seal, content) for content in self.signatures(seal))
        return "unverified" if is_signed else "invalid"

    def listing(self) -> Listing:
        """Return the content of the store: from the index, and from the heads of archives that are not
        in it.
        """
        fault: DataError | None = None
        indexed: dict[str, Entry] = {}
        broken: list[str] = []
        try:
            indexed, broken = self._index()
        except DataError as error:
            fault = error
        names = self.place.sizes(_ARCHIVES)
        if names is None:
            return self._listing_of_index(indexed, broken, fault)
        sizes: dict[str, int] = {}
        for name, size in sorted(names.items()):
            if size is not None and (match := _SEALED.fullmatch(name)):
                sizes[match[1]] = size
        entries = {seal: entry for seal, entry in indexed.items() if seal in sizes}
        is_indexed = not (fault or broken or len(indexed) > len(entries))
        problems: dict[str, OrchError] = {}
        for seal, size in sizes.items():
            try:
                if seal not in entries:
                    entries[seal] = self._entry(seal, size)
                    is_indexed = False
                elif entries[seal].size_bytes != size:
                    message = f"expected {entries[seal].size_bytes} bytes as indexed, found {size}"
                    raise damaged(self.where(seal), message, self._remedy(entries[seal].id))
            except FileNotFoundError:
                continue  # removed meanwhile
            except DataError as error:
                problems[f"{seal}.tar"] = error
        matches = filter(None, map(_SIGNATURE.fullmatch, names))
        signed = frozenset(match[1] for match in matches) & sizes.keys()
        return Listing(entries, signed, problems, fault, is_indexed)

    def _listing_of_index(
        self, indexed: Mapping[str, Entry], broken: Sequence[str], fault: DataError | None
    ) -> Listing:
        """Return what the index says of a place that does not list its files."""
        if fault:
            fault.hint = (
                "the archives cannot be listed here: the next orch push to the directory "
                "or bucket writes the index again"
            )
            raise fault
        where = f"{self.title}/{_INDEX}"
        fault_of_row = damaged(where, "expected the row as written, found another")
        rows = {f"{seal}.tar": fault_of_row for seal in broken}
        return Listing(indexed, frozenset(), rows, None, is_indexed=True)

    def index(self) -> Listing:
        """Make the index say what the archives say, if it does not; return the content.

        Others may do the same. Each publishes a whole index, looks again, and is done when that in
        place lacks nothing: the last to publish looks after all others have. Raises RunError if it
        was replaced too often by one that lacks something.
        """
        for attempt in range(_ATTEMPTS):
            listing = self.listing()
            if listing.is_indexed:
                return listing
            if attempt:
                time.sleep(SystemRandom().uniform(0, _PAUSE_S))
            with self._temporary() as folder:
                write_index(folder / _INDEX, listing.entries)
                self.place.publish(_INDEX, folder / _INDEX)
        message = f"expected to replace the index, but other pushes replaced it {_ATTEMPTS} times meanwhile"
        hint = "the archives are in the store and are listed; the next push completes the index"
        raise RunError(message, kind="storage_failed", where=f"{self.title}/{_INDEX}", hint=hint)

    @contextmanager
    def fetched(self, seal: str, size_bytes: int) -> Iterator[Path]:
        """Copy an archive into a temporary folder, as ``archive.tar``."""
        with self._temporary() as folder:
            path = folder / "archive.tar"
            try:
                self.place.fetch(f"{_ARCHIVES}/{seal}.tar", path, size_bytes)
            except FileNotFoundError:
                raise damaged(
                    self.where(seal), "expected the archive, found none", self._remedy()
                ) from None
            yield path

    def unpacked(self, path: Path, seal: str, into: Path, name: str = "BENCH") -> Unpacked:
        """Verify a fetched archive of this seal and write its files below ``into``. ``name`` is
        what it should be of.

        Raises DataError, which names the archive in the store."""
        try:
            return unpack(path, into, self._contents, seal)
        except DataError as error:
            error.where = error.where.replace(str(path), self.where(seal))
            error.hint = self._remedy(name)
            raise

    def verified(self, path: Path, entry: Entry, into: Path) -> Unpacked:
        """Do the same, and raise DataError also if the index says something else than the archive."""
        unpacked = self.unpacked(path, entry.seal, into, entry.id)
        archive = unpacked.archive
        sealed = entry_of(entry.seal, entry.size_bytes, _head(archive), self.where(entry.seal))
        if sealed != entry:
            hint = f"remove {_INDEX} from the store: the next orch push writes it again"
            raise damaged(
                f"{self.title}/{_INDEX}",
                f"expected the sealed values of {archive.bench_id}, found others",
                hint,
            )
        return unpacked

    def _is_one(self) -> bool:
        where = f"{self.title}/{_MARKER}"
        with self._temporary() as folder:
            try:
                self.place.fetch(_MARKER, folder / _MARKER, _MARKER_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                return False
            marker = strict_json((folder / _MARKER).read_bytes(), where, "state_damaged")
        if not isinstance(marker, dict) or marker.get("schema") != SCHEMA:
            raise damaged(
                where,
                f"expected the marker of a store of schema {SCHEMA}",
                "a newer orch may have made it",
            )
        return True

    def _index(self) -> tuple[dict[str, Entry], list[str]]:
        with self._temporary() as folder:
            try:
                self.place.fetch(_INDEX, folder / _INDEX, _INDEX_BYTES)
            except FileNotFoundError:
                return {}, []
            return read_index(folder / _INDEX, f"{self.title}/{_INDEX}")

    def _size(self, name: str) -> int | None:
        return (self.place.sizes(_ARCHIVES) or {}).get(name)

    def _entry(self, seal: str, size: int) -> Entry:
        """Return the entry of an archive from its head; of one that an earlier version sealed, from
        the whole archive. Each is read once.
        """
        if seal in self._heads:
            return self._heads[seal]
        where, name = self.where(seal), f"{_ARCHIVES}/{seal}.tar"
        try:
            head = head_of(
                lambda start, count: self.place.read(name, start, count), size, seal, where
            )
            if not head.history:
                with self.fetched(seal, size) as path, TemporaryDirectory(prefix="orch-") as folder:
                    head = _head(self.unpacked(path, seal, Path(folder)).archive)
            self._heads[seal] = entry_of(seal, size, head, where)
        except DataError as error:
            error.hint = error.hint or self._remedy()
            raise
        return self._heads[seal]

    def _remedy(self, name: str = "BENCH") -> str:
        return f"a project that still has the bench can replace it: orch push --again {self.title} {name}"

    @staticmethod
    @contextmanager
    def _temporary() -> Iterator[Path]:
        with TemporaryDirectory(prefix="orch-") as folder:
            try:
                yield Path(folder)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                with failures(Path(folder, "copy")):
                    raise


def _head(archive: Archive) -> Head:
    return Head(archive.files, archive.orch, archive.history, archive.tables)

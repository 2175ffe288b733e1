"""A store in any place: `Store` puts archives in, lists them and hands them out."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.errors import ConfigError, DataError, OrchError
from orchestrator.features.store.entries import Entry, entry_of
from orchestrator.features.store.place import MAX_NAMES_BYTES, NAMES, Place, names_in, unreadable
from orchestrator.features.store.record import read_heads, write_heads
from orchestrator.files import failures
from orchestrator.record.archive import Archive, Contents, Unpacked, unpack
from orchestrator.record.archive_record import Head, head_of
from orchestrator.record.signature import is_signature, key_of, signer
from orchestrator.record.state_file import state_error
from orchestrator.strictjson import strict_json

SCHEMA = 1
"""Of a store, in its marker. 1: first version."""
_MARKER, _ARCHIVES = "orch-store.json", "archives"
_SEALED = re.compile(r"([0-9a-f]{64})\.tar")
_SIGNATURE = re.compile(r"([0-9a-f]{64})\.tar(?:\.[0-9a-f]{16})?\.sig")
_MARKER_BYTES, _SIGNATURE_BYTES = 1 << 16, 1 << 16
_ATTEMPTS = 20
_SHOWN = ("created", "id", "label", "runs", "measured", "measures", "result", "size_bytes", "orch")


@dataclass(frozen=True, slots=True)
class Listing:
    """The archives of a store by seal. ``signed`` are the seals that have a signature, ``damaged``
    has by file name the fault of an archive."""

    entries: Mapping[str, Entry]
    signed: frozenset[str]
    damaged: Mapping[str, OrchError]

    def rows(self, signed: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each archive, oldest first, for JSON; sizes in bytes.

        ``signed`` is what the signatures of an archive are worth.
        """
        rows = []
        for entry in sorted(self.entries.values(), key=attrgetter("created", "id", "seal")):
            row = {name: getattr(entry, name) for name in _SHOWN}
            row["interval"] = asdict(entry.interval) if entry.interval else None
            rows.append(row | {"signed": signed.get(entry.seal, ""), "seal": entry.seal})
        return rows


class Store:
    """A place with sealed archives. ``cache`` is the file of `record` that remembers their heads."""

    def __init__(self, place: Place, contents: Contents, cache: Path) -> None:
        self.place = place
        self._contents = contents
        self._cache = cache

    @staticmethod
    def marks(folder: Path) -> bool:
        """Return True if a folder is a store. Raises ConfigError if it may not be read."""
        try:
            return (folder / _MARKER).is_file()
        except PermissionError as error:
            raise unreadable(str(error.filename or folder)) from error

    @property
    def title(self) -> str:
        """The name of it in messages."""
        return self.place.title

    def where(self, seal: str) -> str:
        """Return the name of an archive in messages."""
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
        strangers = sorted(set(self.place.sizes("")) - {_MARKER, _ARCHIVES, NAMES})
        if strangers:
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

        ``again`` replaces what it has.
        """
        name, size = f"{archive.seal}.tar", path.stat().st_size
        if signature:
            self._add_signature(archive.seal, signature)
        if self._size(name) == size and not again:
            return False
        self.place.publish(f"{_ARCHIVES}/{name}", path)
        stored = self._size(name)
        if stored != size:
            message = (
                f"expected {size} bytes as sent, found {stored if stored is not None else 'none'}"
            )
            raise DataError(
                message, kind="storage_failed", where=self.where(archive.seal), hint="push again"
            )
        return True

    def _add_signature(self, seal: str, signature: Path) -> None:
        """Publish a signature beside those by other keys."""
        key = key_of(signature.read_bytes())
        if not key:
            message = "expected a signature of ssh-keygen, found something else"
            raise state_error(str(signature), message)
        self.place.publish(f"{_ARCHIVES}/{seal}.tar.{key}.sig", signature)

    def signatures(self, seal: str) -> Iterator[bytes]:
        """Yield the files under the names of signatures of an archive."""
        for name in sorted(self.place.sizes(_ARCHIVES)):
            match = _SIGNATURE.fullmatch(name)
            if match and match[1] == seal:
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
        fault = state_error(where, "expected a signature, found none", hint)
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
        """Return the content of the store, each archive from its head."""
        names = self.place.sizes(_ARCHIVES)
        remembered = read_heads(self._cache)
        heads: dict[str, Head] = {}
        entries: dict[str, Entry] = {}
        problems: dict[str, OrchError] = {}
        for name, size in sorted(names.items()):
            match = _SEALED.fullmatch(name)
            if not match or size is None:
                continue
            seal = match[1]
            try:
                head = remembered.get(seal) or self._head(seal, size)
                entries[seal] = entry_of(seal, size, head, self.where(seal))
                heads[seal] = head
            except FileNotFoundError:
                continue  # removed meanwhile
            except DataError as error:
                error.hint = error.hint or self._remedy()
                problems[name] = error
        if heads != remembered:
            write_heads(self._cache, heads)
        matches = filter(None, map(_SIGNATURE.fullmatch, names))
        return Listing(entries, frozenset(match[1] for match in matches) & heads.keys(), problems)

    def publish_names(self) -> None:
        """Write the list of names for web servers, which show none.

        Others may do the same: the last to publish looks after all others have.
        """
        for _ in range(_ATTEMPTS):
            names = self.place.sizes(_ARCHIVES)
            with self._temporary() as folder:
                with suppress(FileNotFoundError, DataError):
                    self.place.fetch(NAMES, folder / "old", MAX_NAMES_BYTES)
                    if names_in((folder / "old").read_bytes()) == names:
                        return
                (folder / NAMES).write_text(json.dumps(names))
                self.place.publish(NAMES, folder / NAMES)

    def unpack(self, seal: str, size_bytes: int, into: Path, name: str = "BENCH") -> Unpacked:
        """Fetch and verify an archive, and write its files below ``into``. ``name`` is what it
        should be of.

        Raises DataError, which names the archive in the store."""
        with self._temporary() as folder:
            path = folder / "archive.tar"
            try:
                self.place.fetch(f"{_ARCHIVES}/{seal}.tar", path, size_bytes)
            except FileNotFoundError:
                raise state_error(
                    self.where(seal), "expected the archive, found none", self._remedy()
                ) from None
            with failures(into, is_input=True):
                try:
                    return unpack(path, into, self._contents, seal)
                except DataError as error:
                    error.where = error.where.replace(str(path), self.where(seal))
                    error.hint = self._remedy(name)
                    raise

    def _is_one(self) -> bool:
        where = f"{self.title}/{_MARKER}"
        with self._temporary() as folder:
            try:
                self.place.fetch(_MARKER, folder / _MARKER, _MARKER_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                return False
            marker = strict_json((folder / _MARKER).read_bytes(), where, "state_damaged")
        if not isinstance(marker, dict) or marker.get("schema") != SCHEMA:
            raise state_error(
                where,
                f"expected the marker of a store of schema {SCHEMA}",
                "a newer orch may have made it",
            )
        return True

    def _size(self, name: str) -> int | None:
        return self.place.sizes(_ARCHIVES).get(name)

    def _head(self, seal: str, size: int) -> Head:
        """Return the head of an archive; if an earlier version sealed it, from the whole archive."""
        where, name = self.where(seal), f"{_ARCHIVES}/{seal}.tar"
        head = head_of(lambda start, count: self.place.read(name, start, count), size, seal, where)
        history, is_acceptance = head.history, "acceptance_id" in head.tables
        if not history:
            with TemporaryDirectory(prefix="orch-") as folder:
                history = self.unpack(seal, size, Path(folder)).archive.history
        return replace(head, history=history, tables=head.tables if is_acceptance else {})

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

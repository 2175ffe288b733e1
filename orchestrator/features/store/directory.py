"""A store in a directory, which may be on NFS."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from orchestrator.errors import ConfigError, DataError
from orchestrator.features.store.place import HINT, PIECE_BYTES, readable, sha256_of, too_long
from orchestrator.files import failures, open_regular, sync_directory

__all__ = ["DirectoryPlace"]


class DirectoryPlace:
    """Files below a directory, with its permissions: who may read the directory may read them,
    whoever wrote them.
    """

    def __init__(self, root: Path) -> None:
        self.title = str(root)
        self._root = root

    def make(self) -> None:
        """Make the directory, unless it exists."""
        self._refuse_other(self._root)
        with failures(
            self._root, hint="make the folder above it first, or name another one", is_input=True
        ):
            self._root.mkdir(exist_ok=True)

    def sizes(self, folder: str) -> dict[str, int | None]:
        """Return what is in a folder."""
        path = self._root / folder
        with readable(self._root):
            if not self._root.is_dir():
                raise FileNotFoundError(str(self._root))
            if not path.is_dir():
                return {}
            with os.scandir(path) as entries:
                shown = [entry for entry in entries if entry.name[0] != "."]
                sizes: dict[str, int | None] = {}
                for entry in shown:
                    with suppress(FileNotFoundError):  # removed meanwhile
                        is_file = entry.is_file(follow_symlinks=False)
                        sizes[entry.name] = (
                            entry.stat(follow_symlinks=False).st_size if is_file else None
                        )
                return sizes

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return bytes of a file."""
        with self._opened(name) as stream:
            stream.seek(start)
            return stream.read(size)

    def fetch(self, name: str, target: Path, most: int) -> None:
        """Copy a file."""
        with self._opened(name) as stream, target.open("xb") as out:
            left = most
            while piece := stream.read(PIECE_BYTES):
                left -= len(piece)
                if left < 0:
                    raise too_long(str(self._root / name), most)
                out.write(piece)

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file that anybody may have put there: not through a link, and without waiting for
        the end of a pipe.
        """
        path = self._root / name
        try:
            with readable(self._root):
                stream = open_regular(path)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise
            message = "expected a regular file, found something else"
            raise DataError(message, kind="state_damaged", where=str(path)) from error
        with stream:
            yield stream

    def publish(self, name: str, source: Path) -> None:
        """Make a file appear: written under a hidden name beside it, read again, then renamed."""
        target, digest = self._root / name, sha256_of(source)
        part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        with failures(target, source.stat().st_size, HINT, is_input=True):
            mode = stat.S_IMODE(self._root.stat().st_mode)
            self._make_folder(target.parent, mode)
            try:
                with source.open("rb") as stream, part.open("xb") as out:
                    shutil.copyfileobj(stream, out, PIECE_BYTES)
                    out.flush()
                    os.fchmod(out.fileno(), mode & 0o666)
                    os.fsync(out.fileno())
                self._verify(part, digest, target)
                self._rename(part, target)
            finally:
                part.unlink(missing_ok=True)
            sync_directory(target.parent)
            for left in target.parent.glob(f".{target.name}.*.part"):
                left.unlink(missing_ok=True)

    def close(self) -> None:
        """Free nothing."""

    @staticmethod
    def _refuse_other(folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                "expected a folder, found something else", kind="unsafe_path", where=str(folder)
            )

    def _make_folder(self, folder: Path, mode: int) -> None:
        if folder.is_symlink():
            raise ConfigError(
                "expected a folder, found a link", kind="unsafe_path", where=str(folder)
            )
        self._refuse_other(folder)
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
            sync_directory(folder.parent)

    @staticmethod
    def _verify(part: Path, digest: str, target: Path) -> None:
        try:
            written = sha256_of(part)
        except FileNotFoundError:
            return  # as in `_rename`
        if written != digest:
            message = f"expected SHA-256 {digest} as written, read {written}"
            raise DataError(
                message,
                kind="storage_failed",
                where=str(target),
                hint="check mount and dmesg, then push again",
            )

    @staticmethod
    def _rename(part: Path, target: Path) -> None:
        try:
            part.rename(target)
        except FileNotFoundError:
            # Somebody else has published under this name meanwhile and removed what was unfinished.
            if not target.is_file():
                raise

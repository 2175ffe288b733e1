"""What a store is kept in, whatever carries its bytes: `Place`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from orchestrator.errors import ConfigError, DataError

__all__ = ["HINT", "PIECE_BYTES", "Place", "readable", "sha256_of", "too_long"]

PIECE_BYTES = 1 << 20
HINT = "all who push need write access to the store's folder and to archives/ in it"


class Place(Protocol):
    """Files below one root, by names such as ``archives/x.tar``. A missing file or root raises
    FileNotFoundError.
    """

    title: str
    """What messages call it."""

    def make(self) -> None:
        """Make the root, unless it exists."""

    def sizes(self, folder: str) -> Mapping[str, int | None] | None:
        """Return what is in a folder, ``""`` for the root: by name the size of each file in bytes,
        None for a folder. Nothing if the folder is missing; hidden files, which are unfinished, are
        left out.

        None if the place can give files and not list them.
        """

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes of a file from an offset on; it has them."""

    def fetch(self, name: str, target: Path, most: int) -> None:
        """Copy a regular file of at most ``most`` bytes to a new local one.

        Raises DataError state_damaged for a longer one, and for anything else under this name.
        """

    def publish(self, name: str, source: Path) -> None:
        """Make a file appear under a name, complete or not at all, in place of an earlier one.

        Where others publish under the same name meanwhile, it may be theirs that appears. What
        killed writers of this name left is removed.
        """

    def close(self) -> None:
        """Free connections."""


def too_long(where: str, most: int) -> DataError:
    """Return the error for a file of which more comes than it may have."""
    hint = "was it replaced? orch pull STORE shows what is there; orch push --again writes an archive again"
    return DataError(
        f"expected at most {most} bytes, got more", kind="state_damaged", where=where, hint=hint
    )


@contextmanager
def readable(root: Path) -> Iterator[None]:
    """Raise ConfigError for what this user may not read below a directory: nothing is damaged."""
    try:
        yield
    except PermissionError as error:
        message, hint = (
            f"cannot be read: {error.strerror}",
            "who reads a store needs read access to its folder and files",
        )
        raise ConfigError(
            message, kind="unsafe_path", where=str(error.filename or root), hint=hint
        ) from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()

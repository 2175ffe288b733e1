"""The place of a store, over any transport: `Place`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from orchestrator.errors import ConfigError, DataError
from orchestrator.strictjson import strict_json

PIECE_BYTES = 1 << 20
NAMES = "archives.json"
"""The names and sizes of the files in ``archives/``, for web servers."""
MAX_NAMES_BYTES = 16 << 20


class Place(Protocol):
    """Files below one root, by names such as ``archives/x.tar``. A missing file or root raises
    FileNotFoundError.
    """

    title: str
    """What messages call it."""

    def make(self) -> None:
        """Make the root, unless it exists."""

    def sizes(self, folder: str) -> Mapping[str, int | None]:
        """Return the names in a folder, ``""`` for the root, with the size of each file in bytes,
        None for all else. Nothing if the folder is missing; hidden files, which are unfinished, are
        left out.
        """

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes of a file from an offset on; it has them."""

    def fetch(self, name: str, target: Path, most: int) -> None:
        """Copy a regular file of at most ``most`` bytes to a new local one.

        Raises DataError state_damaged for a longer one, and for anything else under this name.
        """

    def publish(self, name: str, source: Path) -> None:
        """Make a file appear under a name, complete or not at all, in place of an earlier one.

        Where others publish under the same name meanwhile, it may be theirs that appears.
        """


def names_in(data: bytes) -> dict[str, int | None]:
    """Return the names and sizes in a list. Raises DataError for anything else."""
    names = strict_json(data, NAMES, "state_damaged")
    if not isinstance(names, dict) or not all(
        size is None or type(size) is int for size in names.values()
    ):
        raise DataError("expected names and sizes", kind="state_damaged", where=NAMES)
    return names


def too_long(where: str, most: int) -> DataError:
    """Return the error for a file that is longer than its limit."""
    hint = "was it replaced? orch pull STORE shows what is there; orch push --again writes an archive again"
    return DataError(
        f"expected at most {most} bytes, got more", kind="state_damaged", where=where, hint=hint
    )


def unreadable(where: str) -> ConfigError:
    """Return the error for what this user may not read: nothing is damaged."""
    hint = "who reads a store needs read access to its folder and files"
    message = "cannot be read: Permission denied"
    return ConfigError(message, kind="unsafe_path", where=where, hint=hint)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()

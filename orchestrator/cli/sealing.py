"""The signature of an archive, for every command that seals one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.record.archive import Archive

__all__ = ["signed"]


def signed(archive: Archive, target: Path, key: Path) -> None:
    """Sign the seal of an archive with a key, and write the signature next to the archive."""
    from orchestrator.files import write_atomic
    from orchestrator.record.signature import sign

    path = target.with_name(f"{target.name}.sig")
    write_atomic(path, sign(archive.seal, key), 0o644, is_input=True)
    typer.echo(f"signature: {path}", err=True)

"""What is sealed, and the signature of its archive, for every command that seals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.features.accept.record import AcceptanceDir
    from orchestrator.record import BenchDir
    from orchestrator.record.archive import Archive

__all__ = ["sealable", "signed"]


def sealable(name: str) -> BenchDir | AcceptanceDir:
    """Return the bench or acceptance with this name or directory, or the bench with this label; without a name the newest of
    both. Raises ConfigError if there is none."""
    from orchestrator.cli.acceptances import named, newest
    from orchestrator.cli.options import find_bench

    return (named(name) if name else newest()) or find_bench(name)


def signed(archive: Archive, target: Path, key: Path) -> None:
    """Sign the seal of an archive with a key, and write the signature next to the archive."""
    from orchestrator.files import write_atomic
    from orchestrator.record.signature import sign

    path = target.with_name(f"{target.name}.sig")
    write_atomic(path, sign(archive.seal, key), 0o644, is_input=True)
    typer.echo(f"signature: {path}", err=True)

"""The subject of a seal, and the signature of its archive, for every command that seals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.record import BenchDir
    from orchestrator.record.archive import Archive
    from orchestrator.record.bench_groups import BenchGroup


def sealable(name: str) -> BenchDir | BenchGroup:
    """Return the bench or group of benches with this name or directory, or the bench with this
    label; without a name the newest of both. Raises ConfigError if there is none."""
    from orchestrator.cli.options import find_bench
    from orchestrator.record import Project
    from orchestrator.record.bench_groups import find_group, newest_group

    runs = Project.here(os.environ).runs
    return (find_group(runs, name) if name else newest_group(runs)) or find_bench(name)


def sign_archive(archive: Archive, target: Path, key: Path) -> None:
    """Sign the seal of an archive with a key, and write the signature next to the archive."""
    from orchestrator.files import write_atomic
    from orchestrator.record.signature import sign

    path = target.with_name(f"{target.name}.sig")
    write_atomic(path, sign(archive.seal, key), 0o644, is_input=True)
    typer.echo(f"signature: {path}", err=True)

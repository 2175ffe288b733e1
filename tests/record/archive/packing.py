"""Archives that are packed by hand, and what is said of those that are refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from orchestrator.api.sealing import contents as tables
from orchestrator.errors import DataError
from orchestrator.record import sealed_tar as sealedtar
from orchestrator.record.archive import verify
from orchestrator.record.archive_record import RECORD, SUMS


def quoted(archive: Path) -> str:
    return verify(archive, tables).seal


def resealed(folder: Path, target: Path) -> Path:
    """Write an archive of a folder as it is, with digests that are true: what somebody does who
    rewrites everything.
    """
    names = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (SUMS, RECORD)
    )
    return packed(target, {name: (folder / name).read_bytes() for name in (RECORD, *names)})


def packed(target: Path, files: dict[str, bytes]) -> Path:
    sums = "".join(
        f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()
    ).encode()
    with target.open("wb") as out:
        for name, data in {SUMS: sums, **files}.items():
            sealedtar.append(out, f"b1/{name}", len(data), [data])
        out.write(sealedtar.end(out.tell()))
    return target


def refusal(path: Path, seal: str = "") -> str:
    with pytest.raises(DataError) as caught:
        verify(path, tables, seal)
    assert caught.value.exit_code == 4
    return str(caught.value)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in (folder, *folder.rglob("*"))
    }

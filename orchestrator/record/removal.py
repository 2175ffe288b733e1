"""Remove a bench from a project: what it holds, why it may have to stay, and its end.

The record goes last, so a bench whose removal was interrupted is still one and can be removed
again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConfigError, DataError
from orchestrator.files import failures
from orchestrator.plural import with_article
from orchestrator.record.bench_groups import group_at
from orchestrator.record.journal import list_pruned_hosts
from orchestrator.record.manifest import read_manifest
from orchestrator.record.ownership import hold, holder
from orchestrator.record.rundir import BenchDir, benches

_RECORD = "bench.json"
_LAST = (_RECORD, "owner.lock")


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a bench's folder: its runs, also superseded and borrowed ones, and all files
    with their bytes.

    ``on_nodes`` are the hosts that still have files of a run, by run id.
    """

    label: str
    runs: int
    files: int
    size_bytes: int
    on_nodes: Mapping[str, Sequence[str]]


def check_removal(root: Path, paths: Sequence[Path]) -> list[BenchDir]:
    """Return the benches in these folders, which may all be removed together. ``root`` is the
    project's folder of benches.

    Raises ConfigError for a folder elsewhere, or for a bench that lent runs to a bench that stays,
    and RunError for one that a controller runs.
    """
    for path in paths:
        if path.is_symlink() or path.resolve().parent != root.resolve():
            message, hint = (
                f"expected a bench of this project, in {root}",
                "remove a directory elsewhere with rm -r",
            )
            raise ConfigError(message, kind="unsafe_path", where=str(path), hint=hint)
        if not (path / _RECORD).is_file():
            group = group_at(path)
            hint = ""
            if group:
                hint = f"remove {with_article(group.noun)} with rm -r, after orch collect --prune of its benches"
            message = f"expected a bench, got a folder without {_RECORD}"
            raise ConfigError(message, kind="unsafe_path", where=str(path), hint=hint)
    going = {path.resolve().name: BenchDir(root / path.resolve().name) for path in paths}
    for other in benches(root):
        lenders = []
        if other.path.name not in going:
            lenders = sorted(set(other.record().borrowed.values()) & set(going))
        if lenders:
            message = f"expected a bench that has lent no runs, but {other.path.name} borrowed runs of {', '.join(lenders)}"
            raise ConfigError(
                message, where="orch rm", hint=f"to remove both, name {other.path.name} too"
            )
    for bench in going.values():
        if holder(bench) is not None:
            with hold(bench):  # says who holds it
                pass
    return list(going.values())


def contents_of(bench: BenchDir) -> Contents:
    """Return the contents of a bench; a damaged one may hold more runs than are counted."""
    sizes = []
    for folder, _, names in os.walk(bench.path):
        with suppress(FileNotFoundError):
            sizes += [os.lstat(Path(folder, name)).st_size for name in names]
    label, runs, on_nodes = "", 0, {}
    with suppress(DataError):
        record = bench.record()
        label, all_runs = record.label, bench.runs(superseded=True)
        runs = len(all_runs)
        pruned = list_pruned_hosts(bench.events())
        for run in all_runs:
            with suppress(DataError):
                manifest = read_manifest(run)
                hosts = [host for host in manifest.hosts if host not in pruned.get(run.run_id, ())]
                if hosts and manifest.was_released and run.run_id not in record.borrowed:
                    on_nodes[run.run_id] = hosts
    return Contents(label, runs, len(sizes), sum(sizes), on_nodes)


def remove(bench: BenchDir) -> None:
    """Remove a bench. Raises RunError if a controller has taken it, and DataError if a file cannot
    be removed.
    """
    with hold(bench), failures(bench.path):
        for path in bench.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in _LAST:
                path.unlink()
        for (
            name
        ) in _LAST:  # the lock after the record, so that no controller takes the bench in between
            (bench.path / name).unlink()
        bench.path.rmdir()

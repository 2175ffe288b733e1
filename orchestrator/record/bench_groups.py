"""Groups of benches: folders of a project in which a feature keeps several benches, such as an
acceptance with its stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import ConfigError
from orchestrator.feature import providers
from orchestrator.files import is_file
from orchestrator.record.rundir import BenchDir, bench_folders

_BENCH = "bench.json"


class BenchGroup(Protocol):
    """A folder with several benches."""

    path: Path
    noun: str
    """Its kind in words, such as ``acceptance``."""
    derived: frozenset[str]
    """Names of files in it that are made from the others and are not sealed."""

    @property
    def group_id(self) -> str:
        """The name that its record gives it."""

    @property
    def is_over(self) -> bool:
        """Return whether all of its work is done."""

    @property
    def own_archive(self) -> Path:
        """The only file in it that it may be sealed into."""

    def stages(self) -> Sequence[tuple[str, BenchDir]]:
        """Return its benches with the names of their stages, in the order in which they began."""


def groups(runs: Path) -> Iterator[BenchGroup]:
    """Yield the groups in a project's folder of benches, the newest name first."""
    for provider in providers("bench_group"):
        yield from provider.groups(runs)


def every_bench_folder(runs: Path) -> Iterator[Path]:
    """Yield the folders of all benches of a project, the oldest name first, those in groups last."""
    for folder in (runs, *(group.path for group in groups(runs))):
        yield from reversed(bench_folders(folder))


def group_at(path: Path) -> BenchGroup | None:
    """Return the group in a folder; None if it holds none."""
    for provider in providers("bench_group"):
        group: BenchGroup | None = provider.group_at(path)
        if group:
            return group
    return None


def provider_of(group: BenchGroup) -> Any:
    """Return the module of the feature that made a group: what `orchestrator.feature` lists as
    ``bench_group``.
    """
    return next(
        provider for provider in providers("bench_group") if isinstance(group, provider.GROUP)
    )


def find_group(runs: Path, name: str) -> BenchGroup | None:
    """Return the group with this name or directory; None if it is the name of something else, or
    empty.
    """
    places = (Path(name), runs / name) if name else ()
    return next(filter(None, map(group_at, places)), None)


def newest_group(runs: Path) -> BenchGroup | None:
    """Return the newest group of a project; None if there is none, or a bench is newer."""
    last = next(groups(runs), None)
    if last is None or any(path.name > last.path.name for path in bench_folders(runs)[:1]):
        return None
    return last


def find_unfinished_group(runs: Path, name: str) -> BenchGroup | None:
    """Return the group with this name or directory; without a name the newest one, if it is not
    over and newer than every bench; None if there is none."""
    if name:
        return find_group(runs, name)
    last = newest_group(runs)
    return None if last is None or last.is_over else last


def stage_of(runs: Path, name: str) -> Path | None:
    """Return the folder of a bench in a group.

    ``name`` is the name or directory of a group, for its last bench, or the name of a stage's
    bench. Without a name, it is the last bench of the newest group, as long as that is in progress.
    None for anything else. Raises ConfigError for a group without a bench.
    """
    if name and "/" not in name:
        for group in groups(runs):
            if is_file(group.path / name / _BENCH):
                return group.path / name
    folder = find_unfinished_group(runs, name)
    if folder is None:
        return None
    made = [bench.path for _, bench in folder.stages() if (bench.path / _BENCH).is_file()]
    if not made and name:
        raise ConfigError(
            f"no stage of this {folder.noun} has begun a bench yet", where=str(folder.path)
        )
    return made[-1] if made else None

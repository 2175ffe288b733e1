"""Find benches by name, and name new ones."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.record import BenchDir, Project


def find_bench(project: Project, name: str) -> BenchDir:
    """Return the bench with this name, directory or label, or the latest of the project.

    Raise ConfigError if there is none, and for a group of benches, naming them.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.plural import with_article
    from orchestrator.record import BenchDir, latest
    from orchestrator.record.bench_groups import group_at

    if name:
        path = bench_path(project, name)
        if group := group_at(path):
            benches = [f"{bench.path} ({stage})" for stage, bench in group.stages()]
            hint = f"its benches are {', '.join(benches)}" if benches else ""
            raise ConfigError(
                f"expected a bench, got {with_article(group.noun)}", where=str(path), hint=hint
            )
        return BenchDir.open(path, project.runs)
    runs = project.runs
    newest = latest(runs)
    if newest is None:
        raise ConfigError(
            "no bench yet", where=str(runs), hint="to create one: orch bench resnet50"
        )
    return BenchDir.open(newest, runs)


def bench_path(project: Project, name: str) -> Path:
    """Return the folder of the bench with this name, directory or label. Raise ConfigError if there
    is none, or several, Faults if it may be one that cannot be read, and DataError for a folder
    that is none.

    A directory comes first, then a name, then a label that only one bench of the project has.
    """
    from orchestrator.errors import ConfigError, DataError, Faults
    from orchestrator.files import is_file
    from orchestrator.record.rundir import benches

    runs = project.runs
    folders = [path for path in (Path(name), runs / name) if _is_folder(path)]
    if any(is_file(path / "bench.json") for path in folders):
        return next(path for path in folders if is_file(path / "bench.json"))
    damaged: dict[str, DataError] = {}
    labelled = [bench.path for bench in benches(runs, damaged) if bench.record().label == name]
    if len(labelled) > 1:
        names = ", ".join(path.name for path in labelled)
        raise ConfigError(
            f"{len(labelled)} benches have the label {name!r}",
            where=str(runs),
            hint=f"name one of {names}",
        )
    if not (labelled or folders):
        listed = "orch status lists the benches; the path of a bench directory also works"
        hint = listed
        if name.endswith(".tar"):
            hint = "unpack an archive with tar -xf, and use its directory"
        if damaged:
            missing = ConfigError(
                f"no bench {name!r} among those that can be read", where=str(runs)
            )
            raise Faults([missing, *damaged.values()])
        raise ConfigError(f"no bench {name!r}", where=str(runs), hint=hint)
    if not labelled and not _has_record(folders[0]):
        raise DataError(
            "expected the folder of a bench, with bench.json and a folder for each run, found no bench.json",
            kind="state_damaged",
            where=str(folders[0]),
            hint="orch status lists the benches; logs of other programs: orch summarize --from-logs DIR -f FRAMEWORK",
        )
    return (labelled or folders)[0]


def _has_record(folder: Path) -> bool:
    """Return True for a folder with the record of a bench or of a group of benches, which may be
    damaged.
    """
    from orchestrator.record.bench_groups import group_at

    return os.path.lexists(folder / "bench.json") or group_at(folder) is not None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False


def new_bench_id() -> str:
    """Return the name of a bench that is planned now: the time, and six hexadecimal digits of the
    second's fraction, so that names sort by time: the latest bench is the last one.

    Six digits are 60 ns: of benches that a script starts at the same time, two were planned within
    the 15 us of four digits.
    """
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    fraction = (nanoseconds << 24) // 10**9
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(seconds))}-{fraction:06x}"


def new_seed() -> int:
    """Return a random seed of 32 bits."""
    return int.from_bytes(secrets.token_bytes(4), "big")

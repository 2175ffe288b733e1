"""A bench as Python sees it: what `orch summarize --json` prints of it, as values and as tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api.arguments import argument_error
from orchestrator.api.find import find_bench
from orchestrator.errors import ConfigError, DataError, OrchError, raise_all
from orchestrator.extras import need
from orchestrator.files import is_file
from orchestrator.record import BenchDir, Project

if TYPE_CHECKING:
    import pandas


_NESTED = ("options", "key", "repeats", "ranks")
_OF_REPEATS = (
    "series", "framework", "model", "dtype", "device", "shape", "nodes", "gpus", "world_size", "batch_size", "global_batch",
    "loader", "metric", "unit", "better", "primary",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench, as its evidence shows it. Numbers are unrounded, None where there is none; times are
    in seconds.

    ``id`` names it, ``path`` is its directory or its sealed archive, ``document`` is what `orch
    summarize --json` prints of it (its JSON Schema is
    `orchestrator/report/formats/summary.schema.json`), ``errors`` are those with which `orch` would
    end.
    """

    id: str
    path: Path
    document: Mapping[str, Any] = field(repr=False)
    errors: tuple[OrchError, ...] = ()

    @property
    def label(self) -> str:
        """The name that its user gave it; empty for none."""
        return str(self.document["label"])

    @property
    def notes(self) -> tuple[str, ...]:
        """Qualifications of the bench as a whole; each row has its own ``qualifications``."""
        return tuple(self.document["notes"])

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each configuration, metric and key: typical ``value`` in ``unit`` over
        ``n`` good repeats.

        Its 95 % interval is ``interval_low`` to ``interval_high``, and likewise of ``speedup`` and
        ``efficiency``. The other settings of a configuration are ``options.<name>``, the keys of a
        metric, such as a message size, ``key.<name>``.
        """
        return [_flat(row) for row in self.document["rows"]]

    def repeats(self) -> list[dict[str, Any]]:
        """Return one row for each good run, metric and key: ``run_id``, ``repeat``, ``value`` in
        ``unit``, and of trainings the step times of the measured window, ``step_mean_s`` and
        others."""
        rows = []
        for row in self.document["rows"]:
            of_row = {name: row[name] for name in _OF_REPEATS} | _settings(row)
            for repeat in row["repeats"]:
                of_repeat = {name: repeat[name] for name in ("run_id", "repeat", "value")}
                for name, value in (repeat["step_times"] or {}).items():
                    of_repeat[f"step_{name}"] = value
                rows.append(of_row | of_repeat)
        return rows

    def frame(self, per_run: bool = False) -> pandas.DataFrame:
        """Return `rows`, or with ``per_run`` `repeats`, as a DataFrame. Raises ConfigError if
        pandas is not installed.
        """
        need("pandas", "Bench.frame")
        import pandas

        return pandas.DataFrame(self.repeats() if per_run else self.rows())

    def check(self) -> None:
        """Raise the error with which `orch` would end, if there is one: of a run, a damaged file,
        an expectation not met.
        """
        raise_all(self.errors)


def _settings(row: Mapping[str, Any]) -> dict[str, Any]:
    nested = {"options": row["options"], "key": row["key"]}
    return {
        f"{kind}.{name}": value for kind, values in nested.items() for name, value in values.items()
    }


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("interval"):
            flat |= {f"{name}_{end}": value and value[end] for end in ("low", "high")}
        elif name not in _NESTED:
            flat[name] = value
    return flat | _settings(row)


def load(name: str | Path = "", *, project: str | Path | None = None) -> Bench:
    """Return a bench by its directory, its name or label in a project, or its sealed archive; the
    latest for an empty name.

    ``project`` is the folder of the project: by default ``ORCH_PROJECT`` or the current directory,
    as for `orch`.

    An archive is verified as by `orch verify`. Raises ConfigError if there is no such bench,
    DataError for an archive that has been changed. What else is damaged is in `Bench.errors`.
    """
    if not isinstance(name, str | Path):
        raise argument_error("a name or a path", name, "name")
    path = Path(name)
    if name and is_file(path):
        return _of_archive(path)
    return of_folder(find_bench(project_of(project), str(name)))


def project_of(folder: str | Path | None) -> Project:
    """Return the project in a folder, by default the one `orch` would use."""
    if not isinstance(folder, str | Path | None):
        raise argument_error("the path of a folder", folder, "project")
    return Project.here({**os.environ, "ORCH_PROJECT": str(folder)} if folder else os.environ)


def of_folder(folder: BenchDir, errors: tuple[OrchError, ...] | None = None) -> Bench:
    """Return the bench in a folder.

    ``errors`` are the errors with which its controller ended; they replace the ones in its
    evidence.
    """
    from orchestrator.report.formats.json import render
    from orchestrator.results import NEVER_RUN
    from orchestrator.results.bench import notes_of, read_bench
    from orchestrator.results.expectations import errors_of
    from orchestrator.results.planned import planned_runs
    from orchestrator.results.summary import of_bench

    planned = planned_runs(folder, read_bench(folder))
    summary = of_bench(planned, notes_of(folder))
    if errors is None:
        made = [result for result in planned.results if result.state != NEVER_RUN]
        damaged = [result.error for result in made if isinstance(result.error, DataError)]
        errors = (*damaged, *errors_of(summary.expected))
    return Bench(folder.path.resolve().name, folder.path, json.loads(render(summary)), errors)


def _of_archive(path: Path) -> Bench:
    from orchestrator.api.sealing import contents
    from orchestrator.record.archive import verify

    archive = verify(path, contents)
    if "rows" not in archive.tables:
        hint = "orch verify shows its verdicts; unpacked, each of its benches can be loaded"
        raise ConfigError(
            "expected the archive of a bench, got that of an acceptance", where=str(path), hint=hint
        )
    return Bench(archive.bench_id, path, archive.tables)

"""Read two benches from their directories and compare them: their speeds, and everything that may
explain a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import join

from orchestrator.analysis.compare.causes import (
    Distinction,
    FileDifference,
    distinctions,
    file_differences,
    neutral,
)
from orchestrator.analysis.compare.cells import (
    FASTER,
    MARGIN,
    SLOWER,
    CellPair,
    cells_with,
    compare_cells,
    find_unmatched_cells,
    match_cells,
    of_metric,
    spec_fields,
)
from orchestrator.analysis.compare.suspects import CellSuspects, suspects
from orchestrator.errors import ConfigError, DataError
from orchestrator.logs.metrics import Metric
from orchestrator.record import BenchDir, RunDir
from orchestrator.record.evidence import read_rendered_files
from orchestrator.record.manifest import Manifest, read_manifest
from orchestrator.results import Cell, RunResult, cells_of
from orchestrator.results.bench import damage_in, read_bench

DIGITS = 12
"""Characters of a digest in a difference."""
_RUNNERS = ("rank_wrapper.py", "noderun.py")
"""File names of the node runner in a manifest's payload; the second name was used by earlier
versions.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences between two benches. ``only_before`` and ``only_after`` name cells without a
    counterpart, ``suspects`` what may explain each cell that became slower or faster."""

    before: str
    after: str
    margin: float
    pairs: tuple[CellPair, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    distinctions: tuple[Distinction, ...]
    files: tuple[FileDifference, ...]
    suspects: tuple[CellSuspects, ...] = ()


@dataclass(frozen=True, slots=True)
class Counterparts:
    """Two benches, the results of their runs, the cells that are compared, and the pairs of cells
    that correspond.
    """

    benches: tuple[BenchDir, BenchDir]
    results: tuple[list[RunResult], list[RunResult]]
    cells: tuple[list[Cell], list[Cell]]
    pairs: tuple[tuple[Cell, Cell], ...]


By = tuple[str, tuple[str, str]]
"""The name of a spec field, and its values in the cells selected from the first and from the second
bench.
"""


def counterparts(
    before: BenchDir, after: BenchDir, by: Sequence[By] = (), metric: str = ""
) -> Counterparts:
    """Return the cells of two benches that correspond. ``metric`` is the metric that is compared:
    the primary one if empty, every one with ``all``.

    Raise DataError if a bench cannot be read, ConfigError for a bench whose result is a diagnosis,
    and for a field, value or metric that a bench does not have.
    """
    benches = (before, after)
    results = (read_bench(before), read_bench(after))
    for bench, runs in zip(benches, results, strict=True):
        _have_metrics(bench, runs)
    cells = [
        _of_metric(bench, cells_of(runs), metric)
        for bench, runs in zip(benches, results, strict=True)
    ]
    for name, values in by:
        cells = [
            _by(bench, chosen_from, name, value)
            for bench, chosen_from, value in zip(benches, cells, values, strict=True)
        ]
    return Counterparts(benches, results, (cells[0], cells[1]), tuple(match_cells(*cells)))


def compare(
    before: BenchDir,
    after: BenchDir,
    margin: float = MARGIN,
    by: Sequence[By] = (),
    metric: str = "",
) -> tuple[Comparison, list[DataError]]:
    """Return the comparison, and the errors of runs that are excluded because their evidence is
    damaged.

    Raise as `counterparts` does, and DataError if rendered files cannot be read.
    """
    matched = counterparts(before, after, by, metric)
    pairs = compare_cells(matched.pairs, margin)
    places = _first_of_specs(matched.pairs)
    cases = [pairs[place].case for place in places]
    different = [matched.pairs[place] for place in places]
    files = []
    for side, bench in enumerate(matched.benches):
        files.append(_rendered_files(_samples(bench, [pair[side] for pair in different]), cases))
    names = [
        f"{_name(bench)}{suffix}"
        for bench, suffix in zip(matched.benches, _suffixes(by), strict=True)
    ]
    comparison = Comparison(
        before=names[0],
        after=names[1],
        margin=margin,
        pairs=pairs,
        only_before=find_unmatched_cells(matched.cells[0], matched.pairs),
        only_after=find_unmatched_cells(matched.cells[1], matched.pairs),
        distinctions=find_differences(matched.benches, different, matched.pairs),
        files=file_differences(*files) if all(files) else (),
        suspects=tuple(
            _suspects(matched, place, pair)
            for place, pair in enumerate(pairs)
            if pair.verdict in (FASTER, SLOWER)
        ),
    )
    return comparison, [
        error
        for bench, runs in zip(matched.benches, matched.results, strict=True)
        for error in damage_in(bench, runs)
    ]


def _suspects(matched: Counterparts, place: int, pair: CellPair) -> CellSuspects:
    cells = matched.pairs[place]
    known = find_differences(matched.benches, [cells])
    return CellSuspects(pair.case, pair.metric, suspects(*cells, pair.verdict == SLOWER, known))


def find_differences(
    benches: tuple[BenchDir, BenchDir],
    pairs: Sequence[tuple[Cell, Cell]],
    metrics: Sequence[tuple[Cell, Cell]] = (),
) -> tuple[Distinction, ...]:
    """Return everything in which pairs of cells differ, or their benches, as far as it is recorded,
    the likeliest cause first.

    ``metrics`` are further pairs, of the same specs, whose metrics are compared.
    """
    about = []
    for side, bench in enumerate(benches):
        about.append(_about(bench, _samples(bench, [pair[side] for pair in pairs])))
    for side, facts in enumerate(about):
        facts |= {
            f"metric.{pair[side].metric.name}": _describe_metric(pair[side].metric)
            for pair in (*pairs, *metrics)
        }
    return distinctions(pairs, *about)


def _have_metrics(bench: BenchDir, runs: Sequence[RunResult]) -> None:
    for run in runs:
        if run.measure.is_diagnosis:
            message = f"expected a bench with metrics, got one that measured {run.measure.noun}"
            raise ConfigError(
                message,
                where=_name(bench),
                hint="orch summarize shows the result of a single bench",
            )


def _first_of_specs(pairs: Sequence[tuple[Cell, Cell]]) -> list[int]:
    """Return the place of the first pair of each spec: all cells of a spec have the same files and
    facts.
    """
    places: dict[str, int] = {}
    for place, (cell, _) in enumerate(pairs):
        places.setdefault(repr(spec_fields(cell)), place)
    return list(places.values())


def _of_metric(bench: BenchDir, cells: Sequence[Cell], metric: str) -> list[Cell]:
    try:
        return of_metric(cells, metric)
    except ConfigError as error:
        raise ConfigError(
            error.message, where=f"--metric: {_name(bench)}", hint=error.hint
        ) from None


def _by(bench: BenchDir, cells: Sequence[Cell], name: str, value: str) -> list[Cell]:
    try:
        return cells_with(cells, name, value)
    except ConfigError as error:
        raise ConfigError(error.message, where=f"--by: {_name(bench)}", hint=error.hint) from None


def _suffixes(by: Sequence[By]) -> list[str]:
    return ["".join(f" {name}={values[side]}" for name, values in by) for side in (0, 1)]


def _samples(bench: BenchDir, cells: Sequence[Cell]) -> list[tuple[RunDir, Manifest]]:
    """Return one run of each cell, a good one if there is any: repeats differ only in values that
    `neutral` replaces.
    """
    runs = [bench.run((cell.good or cell.runs)[0].run_id) for cell in cells]
    return [(run, _manifest(run)) for run in runs]


def _manifest(run: RunDir) -> Manifest:
    """Return a manifest that has all values needed here; the fields of its cell have already been
    validated.
    """
    manifest = read_manifest(run)
    relied_on = {"bench_id": manifest.bench_id, "master_port": manifest.placement.master_port}
    missing = [name for name, value in relied_on.items() if not value]
    if missing:
        message = f"expected a run's manifest, {', '.join(missing)} is missing or of the wrong type"
        raise DataError(
            message, kind="state_damaged", where=str(run.path / "manifest.json"), run_id=run.run_id
        )
    return manifest


def _name(bench: BenchDir) -> str:
    return bench.record().bench_id


def _about(bench: BenchDir, runs: Sequence[tuple[RunDir, Manifest]]) -> dict[str, str]:
    """Return everything else that is recorded about a bench, by names that `distinctions` ranks."""
    record = bench.record()
    facts = {
        "orch": record.orch,
        "inventory": record.inventory,
        "command": join(["orch", *_without_label(record.argv[1:])]),
    }
    for _, manifest in runs:
        facts[f"template.{manifest.framework}"] = manifest.digest[:DIGITS]
        for name, digest in manifest.payload.items():
            facts["node_runner" if name in _RUNNERS else f"payload.{name}"] = digest[:DIGITS]
    return facts


def _without_label(argv: Sequence[str]) -> list[str]:
    """Return the words of a command without its label, which is a name and changes no run."""
    words, kept = iter(argv), list[str]()
    for word in words:
        if word == "--label":
            next(words, None)
        elif not word.startswith("--label="):
            kept.append(word)
    return kept


def _describe_metric(metric: Metric) -> str:
    """Describe the numbers of a metric: ``MB/s, higher is better, group rate, factor 0.001, sum
    across nodes``.
    """
    over = [] if metric.over == "only" else [f"{metric.over} over lines"]
    across = [f"{metric.across} across {metric.scope}s"] if metric.across else []
    read = [f"group {metric.group}", *([f"factor {metric.factor:g}"] if metric.factor != 1 else [])]
    return ", ".join([metric.unit, f"{metric.better} is better", *read, *over, *across])


def _rendered_files(
    runs: Sequence[tuple[RunDir, Manifest]], cases: Sequence[str]
) -> dict[tuple[str, int, str], str]:
    """Return the rendered files of the runs by (case, node_rank, path), after `neutral`."""
    files = {}
    for (run, manifest), case in zip(runs, cases, strict=True):
        for slot in manifest.slots:
            for path, text in read_rendered_files(run, slot.host).items():
                files[case, slot.node_rank, path] = neutral(text, manifest)
    return files

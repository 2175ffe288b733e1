"""Read two benches from their directories and compare them: their speeds, and everything that may explain a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import join

from orchestrator.analysis.compare.causes import Distinction, FileDifference, distinctions, file_differences, neutral
from orchestrator.analysis.compare.cells import MARGIN, CellPair, chosen, compared, matched, unmatched
from orchestrator.errors import ConfigError, DataError
from orchestrator.record import BenchDir, RunDir
from orchestrator.record.evidence import rendered_texts
from orchestrator.record.manifest import Manifest, read_manifest
from orchestrator.results import Cell, RunResult, cells_of
from orchestrator.results.bench import read_bench

__all__ = ["Comparison", "compare"]

_DIGITS = 12
_RUNNERS = ("rank_wrapper.py", "noderun.py")
"""File names of the node runner in a manifest's payload; the second name was used by earlier versions."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences between two benches. ``only_before`` and ``only_after`` name cells without a counterpart."""

    before: str
    after: str
    margin: float
    pairs: tuple[CellPair, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    distinctions: tuple[Distinction, ...]
    files: tuple[FileDifference, ...]


def compare(
    before: BenchDir, after: BenchDir, margin: float = MARGIN, by: tuple[str, tuple[str, str]] | None = None
) -> tuple[Comparison, list[DataError]]:
    """Return the comparison, and the errors of runs that are excluded because their evidence is damaged.

    ``by`` is the name of a spec field, and its values in the cells selected from the first and from the second bench.

    Raise DataError if a bench or its rendered files cannot be read, ConfigError for a bench without training speeds, and for a
    field or value that a bench does not have.
    """
    benches = (before, after)
    results = [read_bench(bench) for bench in benches]
    for bench, runs in zip(benches, results, strict=True):
        _have_speed(bench, runs)
    cells = [cells_of(runs) for runs in results]
    if by:
        cells = [_by(bench, candidates, by[0], value) for bench, candidates, value in zip(benches, cells, by[1], strict=True)]
    pairs_of_cells = matched(*cells)
    pairs = compared(pairs_of_cells, margin)
    sides = [[pair[side] for pair in pairs_of_cells] for side in (0, 1)]
    samples = [_samples(*side) for side in zip(benches, sides, strict=True)]
    about = [_about(bench, runs) for bench, runs in zip(benches, samples, strict=True)]
    files = [_rendered(runs, [pair.case for pair in pairs]) for runs in samples]
    names = [f"{_name(bench)}{suffix}" for bench, suffix in zip(benches, _suffixes(by), strict=True)]
    comparison = Comparison(
        before=names[0],
        after=names[1],
        margin=margin,
        pairs=pairs,
        only_before=unmatched(cells[0], pairs_of_cells),
        only_after=unmatched(cells[1], pairs_of_cells),
        distinctions=distinctions(pairs_of_cells, *about),
        files=file_differences(*files) if all(files) else (),
    )
    return comparison, [run.error for runs in results for run in runs if isinstance(run.error, DataError)]


def _have_speed(bench: BenchDir, runs: Sequence[RunResult]) -> None:
    for run in runs:
        if not run.measure.has_speed:
            message = f"expected a bench of training speeds, it measured {run.measure.noun}"
            raise ConfigError(message, where=_name(bench), hint="orch summarize shows the result of a single bench")


def _by(bench: BenchDir, cells: Sequence[Cell], name: str, value: str) -> list[Cell]:
    try:
        return chosen(cells, name, value)
    except ConfigError as error:
        raise ConfigError(error.message, where=f"--by: {_name(bench)}", hint=error.hint) from None


def _suffixes(by: tuple[str, tuple[str, str]] | None) -> list[str]:
    return [f" {by[0]}={value}" for value in by[1]] if by else ["", ""]


def _samples(bench: BenchDir, cells: Sequence[Cell]) -> list[tuple[RunDir, Manifest]]:
    """Return one run of each cell, a good one if there is any: repeats differ only in values that `neutral` replaces."""
    runs = [bench.run((cell.good or cell.runs)[0].run_id) for cell in cells]
    return [(run, _manifest(run)) for run in runs]


def _manifest(run: RunDir) -> Manifest:
    """Return a manifest that has all values needed here; the fields of its cell have already been validated."""
    manifest = read_manifest(run)
    relied_on = {"bench_id": manifest.bench_id, "master_port": manifest.placement.master_port}
    missing = [name for name, value in relied_on.items() if not value]
    if missing:
        message = f"expected a run's manifest, {', '.join(missing)} is missing or of the wrong type"
        raise DataError(message, kind="state_damaged", where=str(run.path / "manifest.json"), run_id=run.run_id)
    return manifest


def _name(bench: BenchDir) -> str:
    return bench.record().bench_id


def _about(bench: BenchDir, runs: Sequence[tuple[RunDir, Manifest]]) -> dict[str, str]:
    """Return everything else that is recorded about a bench, by names that `distinctions` ranks."""
    record = bench.record()
    facts = {"orch": record.orch, "inventory": record.inventory, "command": join(["orch", *record.argv[1:]])}
    for _, manifest in runs:
        facts[f"template.{manifest.framework}"] = manifest.digest[:_DIGITS]
        for name, digest in manifest.payload.items():
            facts["node_runner" if name in _RUNNERS else f"payload.{name}"] = digest[:_DIGITS]
    return facts


def _rendered(runs: Sequence[tuple[RunDir, Manifest]], cases: Sequence[str]) -> dict[tuple[str, int, str], str]:
    """Return the rendered files of the runs by (case, node_rank, path), after `neutral`."""
    files = {}
    for (run, manifest), case in zip(runs, cases, strict=True):
        for slot in manifest.slots:
            for path, text in rendered_texts(run, slot.host).items():
                files[case, slot.node_rank, path] = neutral(text, manifest)
    return files

"""What a bench or a tune prints when it is over, and the files that a tune writes."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.options import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.analysis.tune import Tuned
    from orchestrator.record import BenchDir
    from orchestrator.results import RunResult

__all__ = ["options_path", "show", "table"]


def show(bench: BenchDir, as_json: bool) -> None:
    """Print what came of a tune, and write it: all of it beside the bench, and what applies it, if anything is faster."""
    import json

    from orchestrator.analysis.tune import tuned
    from orchestrator.files import write_atomic
    from orchestrator.report.tune import answer, rungs

    found = tuned(bench)
    files = _write(bench, found)
    document = {**found.as_dict(), "answer": answer(found), "files": [str(path) for path in files]}
    write_atomic(bench.path / "tuned.json", json.dumps(document, indent=2, allow_nan=False).encode() + b"\n")
    if as_json:
        print_json(document)
        return
    for line in rungs(found):
        typer.echo(line)
    typer.echo(f"\n{answer(found)}")
    if files:
        typer.echo(f"\nto use it: {shlex.join(_command(found, files))}")
    elif found.verdict == "unfinished":
        typer.echo(f"to go on: orch resume {shlex.quote(bench.path.name)}{' --retry-failed' * _pilot_failed(bench)}")


def _pilot_failed(bench: BenchDir) -> bool:
    """Tell whether the first run failed by itself: a resume repeats it where it is told to."""
    from contextlib import suppress

    from orchestrator.controller.resume import counts
    from orchestrator.errors import DataError
    from orchestrator.record.manifest import read_manifest

    for pilot in bench.runs()[:1]:
        with suppress(DataError):  # whoever reads its evidence is told
            outcome = read_manifest(pilot).outcome
            return outcome is not None and counts(outcome) and outcome.state != "finished"
    return False


def _write(bench: BenchDir, found: Tuned) -> list[Path]:
    """Write the inventory and the run file of what is faster; return those that are there. What stands there stays."""
    from orchestrator.analysis.tune.answer import FASTER
    from orchestrator.files import write_atomic
    from orchestrator.report.tune import inventory_file, options_file

    if found.verdict != FASTER:
        return []
    tune = bench.record().tune
    target = Path(tune.output) if tune and tune.output else bench.path / "tuned.yaml"
    base = os.path.relpath(found.inventory, target.parent) if Path(found.inventory).exists() else ""
    files = {}
    if found.env:
        files[target] = inventory_file(found, base)
    if found.options:
        files[options_path(target)] = options_file(found)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomic(path, text.encode(), 0o644)
    return list(files)


def options_path(target: Path) -> Path:
    """Return where the run file of a tune is written whose inventory goes to ``target``."""
    return target.with_name(f"{target.stem}.options.yaml")


def _command(found: Tuned, files: list[Path]) -> list[str]:
    """Return the bench that uses what was found."""
    from orchestrator.plan.spec import as_written

    spec = found.spec
    words = ["orch", "bench", spec["model"], "--shape", f"{spec['nodes']}n{spec['gpus']}g", "--dtype", spec["dtype"]]
    words += ["--batch-size", str(spec["batch_size"]), "--framework", spec["framework"], "--loader", spec["loader"]]
    words += [word for name, value in found.chosen.items() for word in ("--set", f"{name}={as_written(value)}")]
    for path in files:
        words += ["--file" if path.name.endswith(".options.yaml") else "--hosts", os.path.relpath(path)]
    return words


def table(bench: BenchDir, results: Sequence[RunResult], as_json: bool) -> None:
    """Print the table of a bench that is over, or what came of a tune."""
    if bench.record().tune:
        show(bench, as_json)
        return
    from rich.console import Console

    from orchestrator.report import terminal
    from orchestrator.report.formats.json import render as json_document
    from orchestrator.results.bench import notes_of
    from orchestrator.results.summary import summarize

    summary = summarize(results, notes_of(bench))
    if as_json:
        typer.echo(json_document(summary), nl=False)
    else:
        terminal.render(summary, Console())

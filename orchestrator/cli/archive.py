"""`orch archive` and `orch verify`: seal a bench into one file, and verify that nothing in it has changed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import Bench, Json, find_bench, print_json

if TYPE_CHECKING:
    from orchestrator.record import BenchDir
    from orchestrator.record.archive import Archive


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("archive")(archive)
    app.command("verify")(verify)


def archive(
    bench: Bench = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: <bench>.tar in this directory.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Seal a bench into one file: all its evidence, its tables, and a digest of each."""
    from orchestrator.record.archive import seal

    directory = find_bench(bench)
    target = output or Path(f"{directory.path.resolve().name}.tar")
    sealed = seal(directory, target, _tables)
    _print(sealed, target, f"sealed {sealed.files} files", as_json)


def verify(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIRECTORY", help="An archive, packed or unpacked.")],
    quoted: Annotated[str, typer.Option("--seal", metavar="SHA256", help="The expected seal.")] = "",
    as_json: Json = False,
) -> None:
    """Verify every byte of an archive, and recompute its tables from the logs. Exits with 4 if anything differs."""
    import re

    from orchestrator.errors import ConfigError
    from orchestrator.record.archive import verify as verified

    if quoted and not re.fullmatch(r"[0-9a-f]{64}", quoted):
        raise ConfigError(f"expected 64 digits of 0-9 and a-f, got {quoted!r}", where="--seal")
    archived = verified(path, _tables, quoted)
    _print(archived, path, f"{archived.files} files and the tables are as sealed by orch {archived.orch}", as_json)
    if not quoted:
        typer.echo("the archive is consistent; --seal SHA256 also verifies that it is the archive with a quoted seal", err=True)


def _tables(bench: BenchDir) -> dict[str, Any]:
    """Return what ``orch summarize --json`` prints. Nothing is cached, because the evidence may be in a read-only directory."""
    import json

    from orchestrator.report.formats.json import render
    from orchestrator.results.bench import notes_of
    from orchestrator.results.planned import planned_runs
    from orchestrator.results.read import read_run
    from orchestrator.results.summary import of_bench

    summary = of_bench(planned_runs(bench, [read_run(run) for run in bench.runs()]), notes_of(bench))
    document: dict[str, Any] = json.loads(render(summary))
    return document


def _print(archived: Archive, path: Path, what: str, as_json: bool) -> None:
    measured = sum(row["n"] for row in (*archived.tables["rows"], *archived.tables.get("sheets", ())))
    if as_json:
        print_json({"path": str(path), **asdict(archived), "measured": measured})
        return
    typer.echo(f"{path}: {what}; {measured} of {archived.runs} runs have a number")
    typer.echo(f"seal {archived.seal}")

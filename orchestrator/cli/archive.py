"""`orch archive` and `orch verify`: a bench in one sealed file, and the proof that nothing in it has changed."""

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
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: <bench>.tar, here.")] = None,
    as_json: Json = False,
) -> None:
    """Seal a bench into one file: all its evidence, its tables, and a digest of each."""
    from orchestrator.record.archive import seal

    directory = find_bench(bench)
    target = output or Path(f"{directory.path.resolve().name}.tar")
    sealed = seal(directory, target, _tables)
    _print(sealed, target, f"sealed {sealed.files} files", as_json)


def verify(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIRECTORY", help="An archive, as it is or unpacked.")],
    quoted: Annotated[str, typer.Option("--seal", metavar="SHA256", help="The seal that it has to have.")] = "",
    as_json: Json = False,
) -> None:
    """Prove an archive: every byte of it, and the tables computed anew from the logs. Exit 4 where something differs."""
    import re

    from orchestrator.errors import ConfigError
    from orchestrator.record.archive import verify as proven

    if quoted and not re.fullmatch(r"[0-9a-f]{64}", quoted):
        raise ConfigError(f"expected 64 digits of 0-9 and a-f, got {quoted!r}", where="--seal")
    found = proven(path, _tables, quoted)
    _print(found, path, f"{found.files} files and the tables are what orch {found.orch} sealed", as_json)
    if not quoted:
        typer.echo("it agrees with itself; --seal SHA256 proves that it is the archive whose seal was quoted", err=True)


def _tables(bench: BenchDir) -> dict[str, Any]:
    """Return what ``orch summarize --json`` prints. Nothing derived is kept, as the evidence may lie where nobody writes."""
    import json

    from orchestrator.report.formats.json import render
    from orchestrator.results.bench import notes_of
    from orchestrator.results.read import read_run
    from orchestrator.results.summary import summarize

    summary = summarize([read_run(run) for run in bench.runs()], notes_of(bench))
    document: dict[str, Any] = json.loads(render(summary))
    return document


def _print(found: Archive, path: Path, what: str, as_json: bool) -> None:
    measured = sum(row["n"] for row in (*found.tables["rows"], *found.tables.get("sheets", ())))
    if as_json:
        print_json({"path": str(path), **asdict(found), "measured": measured})
        return
    typer.echo(f"{path}: {what}; {measured} of {found.runs} runs have a number")
    typer.echo(f"seal {found.seal}")

"""`orch published`: recompute the published tables from their printed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import Json, Templates, print_json, template_bases

if TYPE_CHECKING:
    from orchestrator.analysis.published.tables import PublishedFile, TableCheck

Name = Annotated[str, typer.Argument(metavar="[NAME]", help="A framework with published tables. Default: all.")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("published")(published)


def published(name: Name = "", templates: Templates = None, as_json: Json = False) -> None:
    """Recompute published tables from their printed runs, and report the numbers that do not follow from the runs."""
    from orchestrator.analysis.published import published_files, recompute
    from orchestrator.analysis.published.doubts import doubts
    from orchestrator.report.published import check_document

    files = published_files(template_bases(templates))
    if name:
        files = {name: _chosen(name, files)}
    checked = {framework: (file, [recompute(table) for table in file.tables]) for framework, file in files.items()}
    if as_json:
        print_json([check_document(framework, file, checks, doubts(file)) for framework, (file, checks) in checked.items()])
    else:
        _print(checked, whole=bool(name))
    _refuse_surprises([check for _, checks in checked.values() for check in checks])


def _chosen(name: str, files: dict[str, PublishedFile]) -> PublishedFile:
    from orchestrator.errors import ConfigError
    from orchestrator.inventory import nearest

    if name not in files:
        hint = f"available: {', '.join(files)}{nearest(name, files)}"
        raise ConfigError(f"no published tables of {name!r}", where="published", hint=hint)
    return files[name]


def _print(checked: dict[str, tuple[PublishedFile, list[TableCheck]]], whole: bool) -> None:
    from rich.console import Console

    from orchestrator.analysis.published.doubts import doubts
    from orchestrator.report.published import overview, table

    console = Console()
    if not whole:
        overview({framework: (checks, doubts(file)) for framework, (file, checks) in checked.items()}, console)
        return
    for file, checks in checked.values():
        typer.echo(f"{file.source}\nprinted = recomputed; ≠ marks a difference, ! a doubt about a number\n")
        doubted = doubts(file)
        for check in checks:
            table(check, doubted[check.table.name], console)
        if file.inconsistencies:
            typer.echo("known inconsistencies of the source:")
        for text in file.inconsistencies:
            typer.echo(f"  - {text}")


def _refuse_surprises(checks: list[TableCheck]) -> None:
    """Raise DataError for differences that a table does not declare, and for declared ones that do not occur."""
    from orchestrator.errors import DataError

    unexpected = [f"{check.table.name}: {text}" for check in checks for text in (*check.undeclared, *check.unseen)]
    if unexpected:
        raise DataError(f"expected only the declared differences, found {'; '.join(unexpected)}", kind="result_invalid")

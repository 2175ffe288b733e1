"""`orch published`: recompute published tables from their printed runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import Json, Templates, print_json, template_bases
from orchestrator.errors import raise_all

if TYPE_CHECKING:
    from orchestrator.features.published.language import LanguageCheck
    from orchestrator.features.published.tables import PublishedFile, TableCheck

    Checks = tuple[PublishedFile, list[TableCheck], list[LanguageCheck]]
    """A file with its recomputed tables, and those of language models."""

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|PATH",
        help="A framework with published tables, a folder with published.json, or such a file. Default: all frameworks.",
    ),
]


def published(name: Name = "", templates: Templates = None, as_json: Json = False) -> None:
    """Recompute published tables from their printed runs, and report the numbers that do not follow
    from the runs.
    """
    from orchestrator.features.published.folders import read_published_files
    from orchestrator.features.published.language import recompute_language
    from orchestrator.features.published.tables import recompute

    bases = template_bases(templates)
    if name:
        only = _chosen(name, bases)
        files = {only.framework: only}
    else:
        files = read_published_files(bases)
    checked: dict[str, Checks] = {}
    for framework, file in files.items():
        checks = [recompute(table) for table in file.tables]
        checked[framework] = file, checks, [recompute_language(table) for table in file.language]
    if as_json:
        print_json([_document(framework, checks) for framework, checks in checked.items()])
    else:
        _print(checked, whole=bool(name))
    _refuse_surprises(list(checked.values()))


def _document(framework: str, checked: Checks) -> dict[str, Any]:
    from orchestrator.features.published.language_plausibility import find_language_doubts
    from orchestrator.features.published.language_report import language_document
    from orchestrator.features.published.plausibility import find_doubts
    from orchestrator.features.published.report import check_document

    file, checks, language = checked
    document = check_document(framework, file, checks, find_doubts(file))
    return document | {
        "language_models": language_document(language, find_language_doubts(file.language))
    }


def _chosen(name: str, bases: Sequence[Path]) -> PublishedFile:
    """Return the tables of a folder or file here, else of a framework. Raise ConfigError if
    there are none.
    """
    from orchestrator.errors import ConfigError, nearest
    from orchestrator.features.published.folders import open_published, read_tables
    from orchestrator.plan.folders import frameworks

    path = Path(name)
    folders = {
        framework: folder
        for framework, folder in frameworks(bases).items()
        if (folder / "published.json").exists()
    }
    if (path / "published.json").exists() or path.is_file():
        return read_tables(path)
    if name in folders:
        return open_published(name, folders[name])
    if len(path.parts) > 1 or path.exists():
        raise ConfigError(
            "expected a folder with published.json, or such a file, found none", where=str(path)
        )
    hint = f"available: {', '.join(sorted(folders))}{nearest(name, folders)}; or the path of a folder or file"
    raise ConfigError(f"no published tables of {name!r}", where="published", hint=hint)


def _print(checked: dict[str, Checks], whole: bool) -> None:
    from orchestrator.features.published.language_plausibility import find_language_doubts
    from orchestrator.features.published.language_report import language_overview, language_table
    from orchestrator.features.published.plausibility import find_doubts
    from orchestrator.features.published.report import overview, table, totals
    from orchestrator.report.text import one_line, stdout_console

    console = stdout_console()
    if not whole:
        overview(
            {name: (checks, find_doubts(file)) for name, (file, checks, _) in checked.items()},
            console,
        )
        of_language = {
            name: (checks, find_language_doubts(file.language))
            for name, (file, _, checks) in checked.items()
        }
        language_overview(of_language, console)
        totals([check for checks in checked.values() for check in _every(checks)], console)
        return
    for file, checks, language in checked.values():
        typer.echo(one_line(file.source))
        for rule in _rules(file):
            typer.echo(one_line(rule))
        typer.echo("printed = recomputed; ≠ marks a difference, ! a doubt about a number\n")
        doubted, doubted_rows = find_doubts(file), find_language_doubts(file.language)
        for check in checks:
            table(check, doubted[check.table.name], console)
        for language_check in language:
            language_table(language_check, doubted_rows[language_check.table.name], console)
        if file.inconsistencies:
            typer.echo("known inconsistencies of the source:")
        for text in file.inconsistencies:
            typer.echo(f"  - {one_line(text)}")
        if language:
            totals(_every((file, checks, language)), console)


def _every(checked: Checks) -> list[TableCheck | LanguageCheck]:
    _, checks, language = checked
    return [*checks, *language]


def _rules(file: PublishedFile) -> list[str]:
    """Return the rules of a file's folder, one line each; none if the file lies in no framework
    folder.
    """
    from orchestrator.features.published.rules import rules_of
    from orchestrator.plan.folders import read_folder

    folder = Path(file.where).parent
    if not (folder / "framework.yaml").is_file():
        return []
    return [
        f"rule {rule.name}: {rule.title}"
        for rule in rules_of(read_folder(folder).framework).values()
    ]


def _refuse_surprises(checked: Sequence[Checks]) -> None:
    """Raise DataError for undeclared differences of a table, and for declared ones that do not
    occur.
    """
    from orchestrator.errors import DataError

    faults = []
    for checks in checked:
        file, *_ = checks
        unexpected = [
            f"{check.table.name}: {text}"
            for check in _every(checks)
            for text in (*check.undeclared, *check.unseen)
        ]
        if unexpected:
            message = f"expected only the declared differences, found {'; '.join(unexpected)}"
            hint = (
                "correct the number, or copy the difference as printed here to known: of the table"
            )
            faults.append(DataError(message, kind="result_invalid", where=file.where, hint=hint))
    raise_all(faults)

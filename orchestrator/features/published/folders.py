"""Published tables and rules in framework folders, and tables in files anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from json import JSONDecodeError
from pathlib import Path

from orchestrator.errors import ConfigError, DataError, OrchError
from orchestrator.features.published.rules import rules_of
from orchestrator.features.published.tables import PublishedFile
from orchestrator.inventory.values import KeyPath
from orchestrator.plan import Framework
from orchestrator.plan.folders import frameworks, read_folder
from orchestrator.strictjson import strict_json

TABLES = "published.json"
"""The file with the published tables of a folder."""


def read_published_files(bases: Sequence[Path] = ()) -> dict[str, PublishedFile]:
    """Return the published tables of every framework folder that has any, by framework."""
    folders = frameworks(bases)
    return {
        name: open_published(name, folders[name])
        for name in sorted(folders)
        if (folders[name] / TABLES).exists()
    }


def open_published(framework: str, folder: Path) -> PublishedFile:
    """Read ``published.json`` of a framework folder. Raise ConfigError, or Faults of each fault
    with its line.
    """
    path = folder / TABLES
    if not path.exists():
        raise ConfigError("expected published tables, this framework has none", where=str(path))
    return _read(framework, path)


def read_tables(path: Path) -> PublishedFile:
    """Read the published tables of a folder with ``published.json``, or of a JSON file, as
    `open_published` does.
    """
    if path.is_dir():
        return open_published(path.resolve().name, path)
    return _read(path.resolve().parent.name if path.name == TABLES else path.stem, path)


def _read(framework: str, path: Path) -> PublishedFile:
    from orchestrator import yamlfile
    from orchestrator.features.published import schema

    text = yamlfile.read_text(path)
    # JSON is YAML, so the YAML reader finds the lines of a JSON file too; only a faulty file needs
    # them.
    lines = cache(lambda: yamlfile.loads(text.replace("\t", " "), str(path)))
    try:
        value = strict_json(text, str(path))
    except DataError as error:
        place = (
            f"{path}:{error.__cause__.lineno}"
            if isinstance(error.__cause__, JSONDecodeError)
            else str(path)
        )
        if place == str(path):
            lines()  # refuses a key that is there twice, with its line
        raise ConfigError(
            error.message, where=place, hint="the file is JSON: remove comments and trailing commas"
        ) from error

    def line(key: KeyPath) -> int:
        with suppress(
            ConfigError
        ):  # some JSON is no YAML, such as keys of more than 1024 characters
            return lines().line(key)
        return 0

    return schema.parse(value, framework, str(path), line)


def table_faults(folder: Path) -> tuple[OrchError, ...]:
    """Return the faults of the published tables of a framework folder; nothing if it has none."""
    try:
        if (folder / TABLES).exists():
            open_published(folder.name, folder)
    except OrchError as error:
        return error.errors
    return ()


def rule_notes(framework: Framework, log: bytes, path: str) -> list[str]:
    """Return a note for each published rule of a framework whose patterns match no line of a log."""
    unmatched = [name for name, rule in rules_of(framework).items() if not rule.matching_lines(log)]
    return [f"no line of {path} matches lines: of the published rule {name}" for name in unmatched]


def rule_names(bases: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Return the names of the published rules of each framework folder that declares any; faulty
    folders are left out.
    """
    names = {}
    for name, path in frameworks(bases).items():
        with suppress(OrchError):
            rules = read_folder(path).framework.published.get("rules")
            if rules:
                names[name] = list(rules)
    return names

"""Completion of values in a shell: hosts and groups, benches, runs, frameworks, models, options of
frameworks, checks.

A shell waits for each answer. So nothing is parsed that a look at the text can tell, names of hosts
are kept until their file changes, no inventory program is started, and no fault is reported: what
cannot be read completes to nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from orchestrator.record import Project

_MOST_NAMES = 10_000
_TOP = re.compile(r"^(\w+):")
_NAME = re.compile(r"""^  ["']?([\w.-]+)["']?:""")


def quiet(
    find: Callable[[typer.Context, str], Iterable[str]],
) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion that extends the last word of a list with commas, and answers nothing
    where something is wrong.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        with suppress(
            Exception
        ):  # a shell has no place for a message, and the command itself will report it
            return [f"{before}{comma}{name}" for name in find(ctx, last) if name.startswith(last)][
                :_MOST_NAMES
            ]
        return []

    return complete


def here() -> Project:
    """Return the project of the working directory."""
    from orchestrator.record import Project

    return Project.here(os.environ)


@quiet
def hosts(ctx: typer.Context, last: str) -> Iterable[str]:
    """Return hosts and groups of the inventory that the command would use."""
    project = here()
    given = ctx.params.get("hosts") or ""
    source, _ = project.inventory_source(given, os.environ)
    names = _hosts_of(project, Path(source).expanduser())
    if last:
        return names
    return [name for name in names if not name.startswith("@") or len(names) < _MOST_NAMES]


def _hosts_of(project: Project, path: Path) -> list[str]:
    """Return the hosts and groups of an inventory file, remembered in the project until the file
    changes.
    """
    from orchestrator.errors import OrchError
    from orchestrator.record.state_file import read_json

    status = path.stat()
    stamp = [str(path.absolute()), status.st_mtime_ns, status.st_size]
    kept = project.root / ".orch" / "completion.json"
    with suppress(OrchError, KeyError, TypeError):
        remembered = read_json(kept)
        if remembered["inventory"] == stamp:
            return [str(name) for name in remembered["names"]]
    from orchestrator.inventory import open_inventory

    if path.is_file() and os.access(path, os.X_OK) and path.read_bytes()[:2] == b"#!":
        return []
    inventory = open_inventory(str(path))
    names = [
        *(host.name for host in inventory.hosts),
        *(f"@{group}" for group in ("all", *inventory.groups)),
    ]
    if kept.parent.is_dir() and path.is_file():
        from orchestrator.files import write_atomic

        with suppress(OSError):
            write_atomic(kept, json.dumps({"inventory": stamp, "names": names}).encode())
    return names


@quiet
def benches(ctx: typer.Context, last: str) -> Iterable[str]:
    """Return the names of the project's benches, the newest first, and their labels."""
    folders = sorted(here().runs.glob("*/bench.json"), reverse=True)
    names = [path.parent.name for path in folders]
    return [*names, *filter(None, map(_label, folders[:200]))]


def _label(path: Path) -> str:
    match = re.search(rb'"label": "([^"\\]+)"', path.read_bytes())
    return match[1].decode() if match else ""


@quiet
def runs(ctx: typer.Context, last: str) -> Iterable[str]:
    """Return the ids of the runs of the latest bench."""
    newest = max(here().runs.glob("*/bench.json"))
    return sorted(path.parent.name for path in newest.parent.glob("*/manifest.json"))


@quiet
def frameworks(ctx: typer.Context, last: str) -> Iterable[str]:
    """Return the names of framework folders."""
    return sorted(_folders(ctx))


@quiet
def models(ctx: typer.Context, last: str) -> Iterable[str]:
    """Return the models of the frameworks on the command line, or of all."""
    return sorted({name for folder in _chosen(ctx) for name in _names_under("models", folder)})


@quiet
def checks(ctx: typer.Context, last: str) -> Iterable[str]:
    """Return the names of the checks, those of an audit too."""
    from orchestrator.checks.catalogue import all_entries

    return [entry.name for entry in all_entries()]


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the options of the frameworks on the command line, or of all, as ``name=``."""
    with suppress(Exception):
        names = {name for folder in _chosen(ctx) for name in _names_under("options", folder)}
        return [f"{name}=" for name in sorted(names) if name.startswith(incomplete)]
    return []


def _folders(ctx: typer.Context) -> dict[str, Path]:
    from orchestrator.plan.folders import frameworks as framework_folders

    given: Sequence[Any] = ctx.params.get("templates") or ()
    return framework_folders(here().template_folders([Path(path) for path in given], os.environ))


def _chosen(ctx: typer.Context) -> list[Path]:
    folders = _folders(ctx)
    names = [name for name in str(ctx.params.get("framework") or "").split(",") if name in folders]
    return [folders[name] for name in names] or list(folders.values())


def _names_under(key: str, folder: Path) -> Iterable[str]:
    """Yield the keys of a mapping of ``framework.yaml`` in block style, without parsing it: YAML
    takes ten times as long.
    """
    inside = False
    for line in (folder / "framework.yaml").read_text(encoding="utf-8").splitlines():
        if match := _TOP.match(line):
            inside = match[1] == key
        elif inside and (match := _NAME.match(line)):
            yield match[1]

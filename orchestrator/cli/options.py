"""Options that several commands share, and the hosts that they select."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.api.selection import Selection
from orchestrator.cli import complete
from orchestrator.cli.option_rows import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.inventory import Host
    from orchestrator.plan.folders import FrameworkFolder
    from orchestrator.record import BenchDir, Project
    from orchestrator.record.bench_record import BenchRecord


Hosts = Annotated[str, option("hosts")]
Exclude = Annotated[str, option("exclude")]
AcceptNew = Annotated[bool, option("accept_new")]
Bench = Annotated[
    str,
    typer.Argument(
        metavar="BENCH",
        autocompletion=complete.benches,
        help="Name, label or directory of a bench. Default: the latest.",
    ),
]
FirstBench = Annotated[
    str,
    typer.Argument(
        metavar="A",
        autocompletion=complete.benches,
        help="Name, label or directory of a bench.",
    ),
]
Debug = Annotated[bool, option("debug")]
Json = Annotated[bool, option("json")]
Templates = Annotated[list[Path] | None, option("templates")]
KeepGoing = Annotated[bool, option("keep_going")]
Sign = Annotated[
    Path | None, typer.Option("--sign", metavar="KEY", help="Sign the seal with this SSH key.")
]
Signers = Annotated[
    Path | None,
    typer.Option(
        "--signers",
        metavar="FILE",
        help="Allowed signers, as for ssh-keygen; one must have signed each archive.",
    ),
]
Detach = Annotated[bool, option("detach")]

ChangedSecrets = Annotated[
    bool,
    typer.Option(
        "--changed-secrets",
        help="Continue although secrets have changed; the former values are not hidden.",
    ),
]


def check_secrets(record: BenchRecord, hosts: Sequence[Host], remedy: str) -> None:
    """Raise ConfigError if secrets have changed since a bench was planned: former values could not
    be hidden in its logs.
    """
    from orchestrator.errors import ConfigError

    changed = record.planned_with.changed_secrets(hosts) if record.planned_with else []
    if changed:
        message = f"expected the secrets that the bench was planned with, got other values of {', '.join(changed)}"
        hint = f"the former values cannot be recognised in logs: put them back until the logs are collected, or {remedy}"
        raise ConfigError(message, where=record.inventory, hint=hint)


def template_bases(templates: Sequence[Path] | None) -> tuple[Path, ...]:
    """Return the folders of framework folders besides orch's own, for every command; the first
    takes precedence.
    """
    from orchestrator.record import Project

    return Project.here(os.environ).template_folders(templates or (), os.environ)


def open_frameworks(names: Sequence[str], bases: Sequence[Path]) -> list[FrameworkFolder]:
    """Return framework folders by name, and print on stderr which of them hide another one of the
    same name.
    """
    from orchestrator.plan.folders import hidden, open_framework

    folders = [open_framework(name, bases) for name in names]
    behind = hidden(bases)
    for folder in folders:
        if paths := behind.get(folder.framework.name):
            typer.echo(
                f"framework: {folder.framework.folder} hides {', '.join(map(str, paths))}", err=True
            )
    return folders


def select(
    hosts: str,
    exclude: str = "",
    bench_id: str = "",
    *,
    devices: Sequence[str] = (),
    source_of: str = "",
) -> Selection:
    """Return the hosts selected by the options and the project as
    `orchestrator.api.selection.select`; tell it on stderr.

    From now on, what the transports report is printed, without the secrets of the inventory.
    """
    from orchestrator.api.selection import select as selected
    from orchestrator.cli.connection_log import print_reports
    from orchestrator.record import Project

    project = Project.here(os.environ)
    selection = selected(
        project, hosts, exclude, bench_id, devices=devices, source_of=source_of, say=say
    )
    print_reports(selection.inventory.redaction())
    return selection


def forget_path(output: Path | None) -> None:
    """Remove the file of ``--output``, so that a command that is refused leaves no path of an
    earlier one.
    """
    from orchestrator.files import failures

    if output:
        with failures(output):
            output.unlink(missing_ok=True)


def tell_path(output: Path | None, folder: Path) -> None:
    """Write the path of a bench or acceptance to the file of ``--output``."""
    from orchestrator.files import write_atomic

    if output:
        write_atomic(output, f"{folder.resolve()}\n".encode(), 0o644, is_input=True)


def say(text: str) -> None:
    """Print a line on standard error, broken between words at a terminal."""
    from orchestrator.report.text import fit

    typer.echo(fit(text, sys.stderr), err=True)


def print_line(text: str) -> None:
    """Print a line on standard output, broken between words at a terminal."""
    from orchestrator.report.text import fit

    typer.echo(fit(text, sys.stdout))


def print_json(value: Any) -> None:
    """Print one JSON value on standard output."""
    import json

    typer.echo(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))


def find_bench(name: str) -> BenchDir:
    """Return the bench with this name, directory or label, the last one of an acceptance, or the
    latest of the project.

    The latest is one with runs. If a newer one has none, a terminal is told; a script, which would
    take old numbers for new ones, gets a ConfigError. Raises ConfigError also if there is no bench.
    """
    from orchestrator.api import find
    from orchestrator.record import BenchDir, Project
    from orchestrator.record.bench_groups import stage_of

    project = Project.here(os.environ)
    if stage := stage_of(project.runs, name):
        return BenchDir.open(stage)
    found = find.find_bench(project, name)
    if not name:
        _tell_passed_over(project, found)
    return found


def name_bench(bench: BenchDir) -> str:
    """Return the name of a bench for people, with its label if it has one."""
    from orchestrator.report.text import one_line

    label = bench.record().label
    return one_line(
        f"{bench.path.resolve().name} ({label})" if label else bench.path.resolve().name
    )


def _tell_passed_over(project: Project, found: BenchDir) -> None:
    from orchestrator.errors import ConfigError
    from orchestrator.record.refusals import find_passed_over
    from orchestrator.report.text import one_line

    newer = find_passed_over(project.runs, found)
    if newer is None:
        return
    newest, why = newer
    said = one_line(f"the newest bench, {name_bench(newest)}, {why}")
    if not sys.stdout.isatty():
        hint = f"the latest bench with runs is {name_bench(found)}: name it if that is the one you want"
        raise ConfigError(
            f"expected the name of a bench, got none, and {said}", where="BENCH", hint=hint
        )
    say(f"orch: {said}; this is {name_bench(found)}")


def bench_path(name: str) -> Path:
    """Return the folder of the bench with this name, directory or label. Raise ConfigError if there
    is none, or several.
    """
    from orchestrator.api import find
    from orchestrator.record import Project

    return find.bench_path(Project.here(os.environ), name)

"""`orch rm`: remove benches from a project."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import complete
from orchestrator.cli.options import bench_path
from orchestrator.plural import plural

if TYPE_CHECKING:
    from orchestrator.record import BenchDir
    from orchestrator.record.removal import Contents


def rm(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="BENCH",
            autocompletion=complete.benches,
            help="Names, labels or directories of benches.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove benches and all their runs from this project. What they left on nodes stays there, and
    is listed.

    A bench that a controller is running, or that has lent runs to another bench, is not removed.
    """
    from orchestrator.record import Project
    from orchestrator.record.removal import check_removal, contents_of, remove

    runs = Project.here(os.environ).runs
    benches = check_removal(runs, list(dict.fromkeys(map(bench_path, names))))
    for bench in benches:
        _show(bench, contents_of(bench))
    if not (yes or _is_confirmed(len(benches))):
        typer.echo("nothing was removed")
        return
    for bench in benches:
        remove(bench)
        typer.echo(f"removed {bench.path.name}")


def _show(bench: BenchDir, contents: Contents) -> None:
    from orchestrator.inventory import fold
    from orchestrator.report.text import one_line

    words = [
        plural(contents.runs, "run"),
        plural(contents.files, "file"),
        _size(contents.size_bytes),
    ]
    label = f" {contents.label}" if contents.label else ""
    typer.echo(one_line(f"{bench.path.name}{label}: {', '.join(words)}, in {bench.path}"))
    if contents.on_nodes:
        hosts = {host for on_nodes in contents.on_nodes.values() for host in on_nodes}
        has = "still has" if len(hosts) == 1 else "still have"
        command = f"orch collect --prune {bench.path.name} removes them, but not once the bench is removed"
        typer.echo(
            one_line(
                f"  {fold(hosts)} {has} files of {len(contents.on_nodes)} of its runs: {command}"
            )
        )


def _is_confirmed(count: int) -> bool:
    from orchestrator.errors import ConfigError

    if not os.isatty(0):
        raise ConfigError("expected --yes, because there is no terminal to ask on", where="orch rm")
    return typer.confirm(f"remove {'it' if count == 1 else f'these {count} benches'}?")


def _size(size_bytes: int) -> str:
    for unit, least in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= least:
            return f"{size_bytes / least:.1f} {unit}"
    return f"{size_bytes} bytes"

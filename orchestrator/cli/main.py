"""The program `orch`: its commands, and the only place that turns errors into text and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli.complete import word_in
from orchestrator.cli.defaults import Command
from orchestrator.errors import EXIT_STATUS, DataError, Faults, OrchError

__all__ = ["main", "program"]

MODULES = {
    "deploy": ("deploy", "check"),
    "bench": ("bench",),
    "tune": ("tune",),
    "bisect": ("bisect",),
    "accept": ("accept",),
    "nodes": ("nodes",),
    "resume": ("resume", "attach"),
    "running": ("status", "logs", "cancel"),
    "stacks": ("stacks",),
    "collect": ("collect",),
    "summarize": ("summarize",),
    "history": ("history",),
    "site": ("site",),
    "serve": ("serve",),
    "archive": ("archive", "verify"),
    "remove": ("rm",),
    "undeploy": ("undeploy",),
    "compare": ("compare", "gate"),
    "published": ("published",),
    "schema": ("schema",),
    "framework": ("framework",),
    "lab": ("lab",),
    "dataset": ("dataset",),
}
"""The command modules of `orchestrator.cli` and their commands, in the order of the help."""

_STATUSES = "; ".join(f"{code} {text}" for code, text in EXIT_STATUS.items())
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_OF_A_PLACE = (*_NO_SPACE, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.ESTALE)


def program(word: str = "") -> typer.Typer:
    """Return the program, with only the command ``word`` if that is one: importing the others takes time at every start."""
    app = typer.Typer(
        name="orch",
        help="Benchmark deep-learning training on machines that are reachable by SSH.",
        epilog=f"Exit status: {_STATUSES}; 128 + N stopped by signal N.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    names = [name for name, commands in MODULES.items() if word in commands] or list(MODULES)
    for name in names:
        import_module(f"orchestrator.cli.{name}").add_to(app)
    groups = [group.typer_instance for group in app.registered_groups if group.typer_instance]
    for command in [each for one in (app, *groups) for each in one.registered_commands]:
        command.cls = Command
    return app


def _version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"orch {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Benchmark deep-learning training on machines that are reachable by SSH."""


def main() -> None:
    """Run the command line; turn every error into one message and one exit status."""
    try:
        program(sys.argv[1] if len(sys.argv) > 1 else word_in(dict(os.environ)))(standalone_mode=True)
    except OrchError as error:
        with suppress(OSError):  # the terminal may have just gone
            report(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of the output has gone, as `head` does, so a message would reach nobody.
        sys.exit(0)
    except OSError as error:
        # Errors of files carry the file's name; an error without one is usually from the output itself.
        if error.filename is not None and error.errno in _OF_A_PLACE:
            refused = DataError(error.strerror or str(error), kind="storage_failed", where=os.fsdecode(error.filename))
            with suppress(OSError):
                report(refused)
            sys.exit(refused.exit_code)
        if error.filename is not None or error.errno not in _NO_SPACE:
            raise
        with suppress(OSError):
            typer.echo(f"orch: standard output: expected space for the whole output, got: {error.strerror}", err=True)
        sys.exit(1)


def report(error: OrchError) -> None:
    """Print an error: each distinct message once, with its hosts folded."""
    from orchestrator.inventory import fold
    from orchestrator.report.text import one_line, visible

    errors = error.errors if isinstance(error, Faults) else (error,)
    hosts_by_text: dict[str, list[str]] = {}
    for distinct in errors:
        hosts_by_text.setdefault(str(distinct), []).extend([distinct.host] if distinct.host else [])
    for text, hosts in hosts_by_text.items():
        prefix = f"{fold(hosts)}: " if hosts else ""
        # Only the first line is orch's own; the others may be lines of logs and of other programs.
        indented = visible(text).replace("\n", "\n  ")
        typer.echo(f"orch: {one_line(prefix)}{indented}", err=True)

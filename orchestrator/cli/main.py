"""The program `orch`: its commands, and the one place where errors become text and exit codes."""

from __future__ import annotations

import errno
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.errors import Faults, OrchError

__all__ = ["main", "program"]

MODULES = {
    "deploy": ("deploy", "check"),
    "bench": ("bench",),
    "tune": ("tune",),
    "resume": ("resume", "attach"),
    "running": ("status", "logs", "cancel"),
    "collect": ("collect",),
    "summarize": ("summarize",),
    "history": ("history",),
    "archive": ("archive", "verify"),
    "compare": ("compare", "gate"),
    "published": ("published",),
    "lab": ("lab",),
    "dataset": ("dataset",),
}
"""The modules of `orchestrator.cli` in the order of the help, and the commands of each."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def program(word: str = "") -> typer.Typer:
    """Return the program; where ``word`` is a command, with no other, as each costs time at every start."""
    app = typer.Typer(
        name="orch",
        help="Benchmark deep-learning training on machines that are reachable by SSH.",
        epilog="Exit status: 0 good; 1 a run failed or a node is unfit; 2 bad input, nothing contacted; 3 a host could not be "
        "reached or trusted, or orch check found a fault; 4 damaged data; 5 a regression; 130 and alike: stopped by a signal.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    wanted = [name for name, commands in MODULES.items() if word in commands] or list(MODULES)
    for name in wanted:
        import_module(f"orchestrator.cli.{name}").add_to(app)
    return app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"orch {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Benchmark deep-learning training on machines that are reachable by SSH."""


def main() -> None:
    """Run the command line; every error ends here, in one message and one exit status."""
    try:
        program(sys.argv[1] if len(sys.argv) > 1 else "")(standalone_mode=True)
    except OrchError as error:
        with suppress(OSError):  # the terminal may be what has just gone
            report(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does; there is nobody left to tell.
        sys.exit(0)
    except OSError as error:
        # Files are written where errors name them; what has no name is the output itself, as a rule.
        if error.filename or error.errno not in _NO_ROOM:
            raise
        with suppress(OSError):
            typer.echo(f"orch: expected room for all that is printed, got: {error.strerror}", err=True)
        sys.exit(1)


def report(error: OrchError) -> None:
    """Print an error: each distinct message once, with the hosts that say it folded."""
    from orchestrator.inventory import fold
    from orchestrator.report.text import visible

    errors = error.errors if isinstance(error, Faults) else (error,)
    said: dict[str, list[str]] = {}
    for each in errors:
        said.setdefault(str(each), []).extend([each.host] if each.host else [])
    for text, hosts in said.items():
        prefix = f"{fold(hosts)}: " if hosts else ""
        typer.echo(f"orch: {prefix}{visible(text)}", err=True)

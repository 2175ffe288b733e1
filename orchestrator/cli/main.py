"""The program `orch`: its commands, and the one place where errors become text and exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from orchestrator import __version__
from orchestrator.errors import Faults, OrchError

__all__ = ["main", "program", "run"]

MODULES = {
    "deploy": ("deploy", "check"),
    "bench": ("bench",),
    "tune": ("tune",),
    "resume": ("resume", "attach"),
    "live": ("status", "logs", "cancel"),
    "results": ("collect", "summarize"),
    "history": ("history",),
    "archive": ("archive", "verify"),
    "compare": ("compare", "gate"),
    "published": ("published",),
    "lab": ("lab",),
    "dataset": ("dataset",),
}
"""The modules of `orchestrator.cli` in the order of the help, and the commands of each."""


def program(word: str = "") -> typer.Typer:
    """Return the program; where ``word`` is a command, with no other, as each costs time at every start."""
    app = typer.Typer(
        name="orch",
        help="Benchmark deep-learning training on machines that are reachable by SSH.",
        epilog="Exit status: 0 good; 1 a run failed or a node is unfit; 2 bad input, nothing contacted; 3 a host could not be "
        "reached or trusted; 4 damaged data; 5 a regression; 130 and alike: stopped by a signal.",
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


def run() -> None:
    """Run the command line as a process of its own, and end it at once.

    Python would first take all modules apart, which is an eighth of a second that nobody needs.
    """
    try:
        main()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        _flush()
        os._exit(end.code or 0)


def main() -> None:
    """Run the command line; every error ends here, in one message and one exit status."""
    # What a command loads is there to stay: with Python's own 700, a tenth of each start went into looking for garbage in it.
    gc.set_threshold(50_000)
    # Inventories mean the same whatever plug-ins of pydantic there are, and to look for some is to read about all packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        program(sys.argv[1] if len(sys.argv) > 1 else "")(standalone_mode=True)
    except OrchError as error:
        with suppress(OSError):  # the terminal may be what has just gone
            report(error)
        _leave(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does; there is nobody left to tell.
        _leave(0)


def _leave(code: int) -> NoReturn:
    """End with this status and no other: text that a gone reader cannot take would make the interpreter end with 120."""
    _flush()
    sys.exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report(error: OrchError) -> None:
    """Print an error: each distinct message once, with the hosts that say it folded."""
    from orchestrator.hostset import fold
    from orchestrator.report.text import visible

    errors = error.errors if isinstance(error, Faults) else (error,)
    said: dict[str, list[str]] = {}
    for each in errors:
        said.setdefault(str(each), []).extend([each.host] if each.host else [])
    for text, hosts in said.items():
        prefix = f"{fold(hosts)}: " if hosts else ""
        typer.echo(f"orch: {prefix}{visible(text)}", err=True)

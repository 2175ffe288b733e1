"""The program `orch`: its commands, and the only place that turns errors into text and exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from orchestrator.cli.conversion import FewConversions
from orchestrator.errors import EXIT_STATUS, DataError, Interrupted, OrchError
from orchestrator.feature import features

_CORE = {
    "Measure": {
        "deploy": {
            "deploy": "Send the node runner and payloads to every node.",
            "check": "Check that every node is reachable and fit for a run.",
        },
        "bench": {"bench": "Plan a bench, show it, run it, collect it."},
        "collect": {"collect": "Collect logs and exit records."},
        "summarize": {"summarize": "Print the scaling table of a bench."},
    },
    "While it runs": {
        "running": {
            "status": "Show which runs are active on which nodes, and all benches.",
            "cancel": "Stop runs on every node and verify that nothing is left.",
        },
        "logs": {"logs": "Print the log of one rank, or of all."},
        "resume": {
            "resume": "Continue a bench whose controller died or was stopped.",
            "attach": "Follow a bench run by another process.",
        },
    },
    "Compare": {
        "compare": {
            "compare": "Show whether bench B is faster or slower than A, and why.",
            "gate": "Compare a bench with a baseline, for CI.",
        },
    },
    "Accept": {
        "nodes": {"nodes": "List what the project remembers about its nodes."},
    },
    "Keep and share": {
        "archive": {
            "archive": "Seal a bench or an acceptance into one file.",
            "verify": "Verify every byte and every number of an archive.",
        },
        "label": {"label": "Give a bench a name, which another bench then loses."},
    },
    "Set up": {
        "framework": {"framework": "Show, create and check framework folders."},
        "dataset": {"dataset": "Small data sets for tests and rehearsals."},
        "lab": {"lab": "A rehearsal cluster on this machine."},
        "schema": {"schema": "Print the JSON Schema of a file, for editors."},
        "remove": {"rm": "Remove benches and all their runs from the project."},
        "undeploy": {"undeploy": "Remove what orch left on the nodes."},
    },
}
"""The core's commands by heading of the help and by module, in the order of a day."""

_BY_GROUP: dict[str, dict[str, Mapping[str, str]]] = {
    group: {f"orchestrator.cli.{module}": commands for module, commands in modules.items()}
    for group, modules in _CORE.items()
}
for _name, _feature in features().items():
    for _module, _commands in _feature.commands.items():
        _of_group = _BY_GROUP.setdefault(_feature.group, {})
        _of_group[f"orchestrator.features.{_name}.{_module}"] = _commands
GROUPS = {
    group: [name for commands in modules.values() for name in commands]
    for group, modules in _BY_GROUP.items()
}
"""The names of commands by heading."""
MODULES = {
    module: commands for modules in _BY_GROUP.values() for module, commands in modules.items()
}
"""The modules of commands, and what the help says of their commands, in its order."""

_START = """\b
orch deploy --hosts inventory/cluster.yaml
orch bench resnet50 --nodes 4 --dtype fp16
orch collect && orch summarize

"""
_STATUSES = "; ".join(f"{code} {text}" for code, text in EXIT_STATUS.items())
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_OF_A_PLACE = (
    *_NO_SPACE,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.ESTALE,
)


class Program(FewConversions, typer.core.TyperGroup):
    """All commands, each imported when it is run, explained or completed: importing all takes a
    tenth of a second.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for commands in MODULES.values():
            for name, summary in commands.items():
                self.add_command(typer.core.TyperCommand(name, short_help=summary))

    def load(self, *words: str) -> None:
        """Put the commands with these names in place of what stands for them in the help."""
        from orchestrator.cli.defaults import Command

        for path, commands in MODULES.items():
            if not commands.keys() & set(words):
                continue
            app, module = typer.Typer(rich_markup_mode=None), import_module(path)
            for name in commands:
                if own := getattr(module, "app", None):
                    app.add_typer(own, name=name)
                else:
                    app.command(name)(getattr(module, name))
            groups = [
                group.typer_instance for group in app.registered_groups if group.typer_instance
            ]
            for command in [
                command for level in (app, *groups) for command in level.registered_commands
            ]:
                command.cls = Command
            self.commands.update(typer.main.get_group(app).commands)

    def make_context(self, *words: Any, **extra: Any) -> Any:
        """Return the context of the program. Raises ConfigError for words that it does not take."""
        with _usage_errors():
            return super().make_context(*words, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises ConfigError for words that it does not take, and Interrupted."""
        try:
            with _usage_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:  # of which the library of the command line says nothing
            raise Interrupted(signal.SIGINT, "interrupted") from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the headings of a day's order."""
        longest = max(map(len, self.commands))
        for group, names in GROUPS.items():
            with formatter.section(group):
                for name in names:
                    summary = self.commands[name].get_short_help_str(formatter.width)
                    line = f"{'':{formatter.current_indent}}{name:{longest}}  {summary}"
                    if len(line) <= formatter.width:
                        formatter.write(f"{line}\n")
                    else:  # wrapping takes longer than all else that is done with a line
                        formatter.write_dl([(name.ljust(longest), summary)])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, as the library of the command line needs
        it.
        """
        self.load(*args[:1])
        return super().resolve_command(ctx, args)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn a fault of the words of a command into an error of the form of all others."""
    try:
        yield
    except Exception as error:
        # By name: the module of these classes depends on the version of typer.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "UsageError" not in kinds or "NoArgsIsHelpError" in kinds:
            raise
        from orchestrator.cli.usage import usage_error

        raise usage_error(error) from None


def program() -> typer.Typer:
    """Return the program."""
    app = typer.Typer(
        name="orch",
        cls=Program,
        help=f"{_START}Benchmark deep-learning training on clusters, over SSH, Slurm or Kubernetes.",
        epilog=f"Exit status: {_STATUSES}; 128 + N stopped by signal N.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app


def whole() -> Program:
    """Return the program with all commands loaded, for what reads them."""
    loaded = typer.main.get_command(program())
    assert isinstance(loaded, Program)
    loaded.load(*(name for commands in MODULES.values() for name in commands))
    return loaded


def _version(is_set: bool) -> None:
    if is_set:
        from orchestrator.version import __version__

        typer.echo(f"orch {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Benchmark deep-learning training on clusters, over SSH, Slurm or Kubernetes."""


def main() -> None:
    """Run the command line; turn every error into one message and one exit status."""
    try:
        program()(standalone_mode=True)
    except OrchError as error:
        with suppress(OSError):  # the terminal may have just gone
            report(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of the output has gone, as `head` does, so a message would reach nobody.
        sys.exit(0)
    except SystemExit as end:
        # The libraries of the command line and of its tables end a program so for the same reason.
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(0)
        raise
    except OSError as error:
        # Errors of files carry the file's name; an error without one is usually from the output
        # itself.
        if error.filename is not None and error.errno in _OF_A_PLACE:
            refused = DataError(
                error.strerror or str(error),
                kind="storage_failed",
                where=os.fsdecode(error.filename),
            )
            with suppress(OSError):
                report(refused)
            sys.exit(refused.exit_code)
        if error.filename is not None or error.errno not in _NO_SPACE:
            raise
        with suppress(OSError):
            typer.echo(
                f"orch: standard output: expected space for the whole output, got: {error.strerror}",
                err=True,
            )
        sys.exit(1)


def report(error: OrchError) -> None:
    """Print an error: each distinct message once, with its hosts folded."""
    from orchestrator.inventory import fold
    from orchestrator.report.text import fit, one_line, visible

    hosts_by_text: dict[str, list[str]] = {}
    for distinct in error.errors:
        hosts_by_text.setdefault(str(distinct), []).extend([distinct.host] if distinct.host else [])
    for text, hosts in hosts_by_text.items():
        prefix = f"{fold(hosts)}: " if hosts else ""
        # Only the first line is orch's own; the others may be lines of logs and of other programs.
        indented = visible(text).replace("\n", "\n  ")
        typer.echo(fit(f"orch: {one_line(prefix)}{indented}", sys.stderr), err=True)

"""`orch framework`: list, show, make and check framework folders. Contacts no host."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import complete
from orchestrator.cli.options import Json, Templates, print_json, template_bases

if TYPE_CHECKING:
    from orchestrator.plan.command_line import TrainingCommand

app = typer.Typer(
    help="Show, create and check framework folders. Contacts no host.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_LONGEST_SAMPLE = 1 << 20
_LARGEST_INPUT = 1 << 20
"""A larger file among the arguments of a command is data, which does not belong into a payload."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}")


Name = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=complete.frameworks, help="Name of a framework."),
]


@app.command("list")
def list_(templates: Templates = None, as_json: Json = False) -> None:
    """List every framework folder. Shows where each comes from, and the folders of the same name
    that it hides.
    """
    from orchestrator.plan.folders import frameworks, hidden

    bases = template_bases(templates)
    folders, behind = frameworks(bases), hidden(bases)
    rows = [
        _row(name, path, list(map(str, behind.get(name, ()))))
        for name, path in sorted(folders.items())
    ]
    if as_json:
        print_json(rows)
        return
    widths = [max(len(row[key]) for row in rows) for key in ("name", "from")]
    for row in rows:
        hides = f"; hides {', '.join(row['hides'])}" if row["hides"] else ""
        typer.echo(f"{row['name']:{widths[0]}}  {row['from']:{widths[1]}}  {row['title']}{hides}")


def _row(name: str, path: Path, hides: list[str]) -> dict[str, Any]:
    """Return a folder's row of the list; a faulty one says so in place of its title."""
    from orchestrator.errors import OrchError
    from orchestrator.plan.folders import own_folder, read_folder

    source = "orch" if path.parent == own_folder() else str(path.parent)
    row: dict[str, Any] = {
        "name": name,
        "from": source,
        "path": str(path),
        "hides": hides,
        "models": [],
        "measures": "",
    }
    try:
        framework = read_folder(path).framework
    except OrchError:
        return {**row, "title": f"faulty, see orch framework check {name}"}
    return {
        **row,
        "title": framework.title,
        "models": list(framework.models),
        "measures": framework.measures,
    }


@app.command()
def show(name: Name, templates: Templates = None, as_json: Json = False) -> None:
    """Show what a framework folder declares.

    Models, dtypes by device, loaders, options with their defaults, launch and log.
    """
    from orchestrator.cli.framework_text import declaration, document
    from orchestrator.cli.options import open_frameworks, print_line

    (folder,) = open_frameworks([name], template_bases(templates))
    if as_json:
        print_json(document(folder))
        return
    for line in declaration(folder):
        print_line(line)


@app.command()
def new(
    name: Name,
    from_command: Annotated[
        str,
        typer.Option(
            "--from-command",
            metavar="'torchrun … train.py …'",
            help="The command that starts the program.",
        ),
    ] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME:UNIT[:lower]",
            help="Metric printed by a program that does not train; repeatable.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Log of the program to use as sample.log."),
    ] = None,
) -> None:
    """Create a framework folder in templates/ of the project.

    The folder runs as it is: it starts the given command, or is an example to edit. If the
    command's script is a file here, it is copied into the folder, with the modules next to it that
    it imports and small files among its arguments. Ranks, addresses and ports come from orch; all
    other arguments are kept.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.files import PROJECT_HINT, make_folder, write_atomic
    from orchestrator.plan.command_line import training_command
    from orchestrator.plan.scaffold import example, for_command, hook, new_metric, place_arguments
    from orchestrator.record import Project

    if not _NAME.fullmatch(name):
        hint = "it becomes the name of a folder and part of file names"
        raise ConfigError(
            f"expected a name of letters, digits, '.', '_', '+' and '-', got {name!r}",
            where="NAME",
            hint=hint,
        )
    if (metric or log) and not from_command:
        option = "--metric" if metric else "--log"
        raise ConfigError(
            "expected --from-command too, got none",
            where=option,
            hint="without it, the folder is an example",
        )
    metrics, sample = [new_metric(text) for text in metric or ()], _sample(log)
    names = [declared.name for declared in metrics]
    twice = [metric_name for metric_name in names if names.count(metric_name) > 1]
    if twice:
        raise ConfigError(
            f"expected each metric once, got {twice[0]} again",
            where="--metric",
            hint="give each metric a name of its own",
        )
    folder = Project.here(os.environ).templates / name
    if folder.exists():
        raise ConfigError(
            "expected a new folder",
            kind="unsafe_path",
            where=str(folder),
            hint="existing files are not overwritten",
        )
    payload: dict[str, bytes] = {}
    said = []
    if from_command:
        command = training_command(from_command, lambda word: Path(word).is_file())
        payload = _payload(command)
        files = for_command(name, from_command, command, payload, metrics, sample)
        if command.left_out:
            said.append(
                f"left out, because orch sets it in each run: {', '.join(command.left_out)}"
            )
        if placed := place_arguments(command):
            said.append(f"with values of orch in each run: {', '.join(placed)}")
        program = command.script or command.module
        copy = Path(program).name
        said += filter(None, [hook(command, str(folder / copy) if copy in payload else program)])
    else:
        files = example(name)
    for file, content in {
        **{file: text.encode() for file, text in files.items()},
        **payload,
    }.items():
        make_folder((folder / file).parent, PROJECT_HINT, is_input=True)
        write_atomic(folder / file, content, 0o644, is_input=True)
    copied = dict.fromkeys(file.split("/")[0] + "/" * ("/" in file) for file in payload)
    typer.echo(f"{folder}: {', '.join([*files, *copied])}")
    for line in said:
        typer.echo(line)
    if from_command and not log:
        typer.echo(
            "sample.log is a placeholder: put a log of the program in its place, or name one with --log FILE"
        )
    typer.echo(
        f"next: edit {folder}/framework.yaml; orch framework check {name}; orch bench {name} -f {name} --dry-run"
    )


def _sample(log: Path | None) -> str:
    """Return the text of a log that becomes the sample of a new folder, empty without one."""
    from orchestrator.errors import ConfigError

    if log is None:
        return ""
    try:
        with log.open("rb") as stream:
            text = stream.read(4 * _LONGEST_SAMPLE).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(
            f"expected a file that can be read, got {error.strerror}", where=f"--log {log}"
        ) from error
    if not text.strip() or len(text) > _LONGEST_SAMPLE:
        got = f"{len(text)} characters" if text.strip() else "an empty one"
        raise ConfigError(
            f"expected a log of at most {_LONGEST_SAMPLE} characters, got {got}",
            where=f"--log {log}",
        )
    return text


def _payload(command: TrainingCommand) -> dict[str, bytes]:
    """Return the files here that a command needs, by name: its script with what that imports, and
    small files among its arguments. Raises Faults for a file that cannot be sent."""
    from orchestrator.errors import Faults
    from orchestrator.plan.payload import find_imports, is_payload_name, payload_files

    entries, source = list[str](), Path()
    if command.is_here:
        program = Path(command.script or command.program)
        entries, source = find_imports(program), program.parent
    elif command.module:
        entries = _module(command.module)
    payload, faults = payload_files(dict.fromkeys(entries, "--from-command"), source)
    if faults:
        raise Faults(faults)
    for file in map(Path, command.inputs):
        is_small = file.stat().st_size <= _LARGEST_INPUT
        if is_small and is_payload_name(file.name) and file.name not in payload:
            payload[file.name] = file.read_bytes()
    return payload


def _module(dotted: str) -> list[str]:
    """Return the payload entry of a module that is here, none if it is somewhere else."""
    top = dotted.split(".")[0]
    if Path(top).is_dir():
        return [f"{top}/"]
    if not Path(f"{top}.py").is_file():
        return []
    return [f"{top}.py"]


@app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|DIR",
            autocompletion=complete.frameworks,
            help="A framework, or its folder. Default: all in templates/ of the project.",
        ),
    ] = "",
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="FILE", help="Apply the patterns to this log, not to sample.log."
        ),
    ] = None,
    bench: Annotated[
        str,
        typer.Option(
            "--bench", metavar="BENCH", help="Apply the patterns to a log collected by this bench."
        ),
    ] = "",
    templates: Templates = None,
    as_json: Json = False,
) -> None:
    """Check a framework folder without a node.

    Checks its files and scripts, renders every shape, dtype and choice, and applies its patterns to
    a log. Exits with 2 for a fault, and with 4 if the patterns find no number in the log.
    """
    from orchestrator.cli.framework_check import Checked, check_folder, lines, read_log
    from orchestrator.errors import ConfigError, DataError, Faults

    if log and bench:
        raise ConfigError("expected one of --log and --bench, got both", where="--bench")
    paths = _paths(name, template_bases(templates))
    results: list[Checked] = [
        check_folder(path, read_log(bench, path) if bench else log) for path in paths
    ]
    if as_json:
        documents = [result.document() for result in results]
        print_json(documents[0] if name else documents)
    else:
        for result in results:
            for line in lines(result):
                typer.echo(line)
    faults = [fault for result in results for fault in result.faults]
    if faults:
        raise Faults(faults)
    refusals = [result.refusal for result in results if result.refusal]
    if refusals:
        raise Faults(refusals)
    silent = [result for result in results if result.log and not result.log.has_number]
    if silent:
        message = "expected lines that give a number, found none"
        hint = "correct the patterns, or name another log of the program with --log FILE"
        raise Faults([
            DataError(message, kind="result_invalid", where=result.log_path, hint=hint)
            for result in silent
        ])  # fmt: skip


def _paths(name: str, bases: tuple[Path, ...]) -> list[Path]:
    """Return the folders to check. Raise ConfigError if there are none."""
    from orchestrator.errors import ConfigError
    from orchestrator.plan.folders import frameworks, open_framework
    from orchestrator.record import Project

    if name and (Path(name) / "framework.yaml").is_file():
        return [Path(name)]
    if name:
        folders = frameworks(bases)
        if name not in folders:
            open_framework(name, bases)  # says which there are
        return [folders[name]]
    own = Project.here(os.environ).templates
    paths = [file.parent for file in sorted(own.glob("*/framework.yaml"))]
    if not paths:
        hint = "name a framework or a folder; orch framework new NAME makes one here"
        raise ConfigError("expected framework folders, found none", where=str(own), hint=hint)
    return paths

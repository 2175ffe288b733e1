"""`orch lab`: a rehearsal cluster on this machine, with real SSH servers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json, print_json

app = typer.Typer(help="A rehearsal cluster on this machine.", no_args_is_help=True, rich_markup_mode=None)


def add_to(program: typer.Typer) -> None:
    """Add the commands of this module."""
    program.add_typer(app, name="lab")


Directory = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Where the lab lives; .orch/lab if not given.")]


def _directory(given: Path | None) -> Path:
    from orchestrator.record import Project

    return given or Project.here(os.environ).lab


@app.command()
def up(
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=1000, help="How many nodes.")] = 4,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", help="Deal this machine's GPUs out.")] = None,
    slots: Annotated[int, typer.Option("--slots", min=1, help="CPU slots of each node.")] = 1,
    python: Annotated[str, typer.Option("--python", help="Interpreter of the frameworks on the nodes.")] = sys.executable,
    kind: Annotated[str | None, typer.Option("--kind", help="namespaces, loopback or asyncssh; the best if not given.")] = None,
    mtu: Annotated[int, typer.Option("--mtu", min=1280, max=65000, help="MTU of the lab's network.")] = 1500,
    directory: Directory = None,
) -> None:
    """Start a lab: N nodes with a real sshd each, at 10.11.0.2 … in namespaces (root), or at 127.0.0.2 … (anyone)."""
    from orchestrator import lab

    made = lab.up(
        _directory(directory),
        nodes=nodes,
        python=python,
        gpus_per_node=gpus_per_node,
        slots=slots,
        kind=kind,
        mtu=mtu,
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo(f"inventory: {made.inventory}")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": False})
def exec(argv: Annotated[list[str], typer.Argument(metavar="-- CMD …")], directory: Directory = None) -> None:
    """Run a command on the controller's side of the lab, in this directory, with the lab's inventory as default."""
    from orchestrator import lab

    _become(lab.load(_directory(directory)), argv)


@app.command()
def shell(directory: Directory = None) -> None:
    """Open a shell on the controller's side, in a directory that has the lab's inventory/cluster.yaml."""
    from orchestrator import lab

    there = lab.load(_directory(directory))
    typer.echo(f"lab of {len(there.nodes)} nodes; inventory/cluster.yaml is theirs; exit ends the shell, not the lab", err=True)
    os.chdir(there.work)
    _become(there, [os.environ.get("SHELL", "/bin/sh")])


@app.command()
def down(directory: Directory = None) -> None:
    """End the lab and everything in it."""
    from orchestrator import lab

    for line in lab.down(_directory(directory)):
        typer.echo(line, err=True)


@app.command()
def status(directory: Directory = None, as_json: Json = False) -> None:
    """Show the lab's nodes."""
    from orchestrator import lab

    there = lab.load(_directory(directory))
    if as_json:
        print_json({"kind": there.kind, "nodes": [{"name": n.name, "address": n.address, "port": n.port} for n in there.nodes]})
        return
    for node in there.nodes:
        typer.echo(f"{node.name}  {node.address}:{node.port}")


def _become(there: object, argv: list[str]) -> None:
    """Replace this process by a command on the lab's controller side."""
    from orchestrator import lab
    from orchestrator.errors import ConfigError

    command = lab.argv_inside(there, argv)  # type: ignore[arg-type]
    environment = {**os.environ, **lab.environment(there)}  # type: ignore[arg-type]
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise ConfigError(f"{command[0]}: {error.strerror}", where="orch lab exec") from error

"""`orch lab`: a rehearsal cluster on this machine, with real SSH servers."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json, print_json
from orchestrator.plural import plural

app = typer.Typer(
    help="A rehearsal cluster on this machine. Benches belong to the project of the current directory, also in exec and shell, "
    "where inventory/cluster.yaml and ORCH_HOSTS mean the lab's inventory; --hosts FILE names another. "
    "In a lab of namespaces, /tmp, /var/tmp, /home, /root, /run and "
    "/dev/shm are private to each node, as on machines without a shared disk: put programs and data elsewhere, such as /opt or "
    "/srv, or make folders visible to the nodes with orch lab up --share DIR.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Directory of the lab. Default: .orch/lab."),
]


def _directory(given: Path | None) -> Path:
    from orchestrator.record import Project

    return given or Project.here(os.environ).lab


@app.command()
def up(
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", min=1, max=4000, help="Number of nodes.")
    ] = 4,
    gpus_per_node: Annotated[
        int | None,
        typer.Option("--gpus-per-node", help="Divide this machine's GPUs among the nodes."),
    ] = None,
    slots: Annotated[int, typer.Option("--slots", min=1, help="CPU slots per node.")] = 1,
    python: Annotated[
        str, typer.Option("--python", help="Python interpreter with the frameworks.")
    ] = sys.executable,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="namespaces, loopback or asyncssh. Default: the best available."
        ),
    ] = None,
    mtu: Annotated[
        int, typer.Option("--mtu", min=1280, max=65000, help="MTU of the lab's network.")
    ] = 1500,
    share: Annotated[
        list[Path] | None,
        typer.Option(
            "--share", metavar="DIR", help="Folder in /tmp, /home … to make visible to the nodes."
        ),
    ] = None,
    slurm: Annotated[
        bool,
        typer.Option(
            "--slurm",
            help="Also start Slurm: slurmctld, and slurmd on every node (Debian's packages).",
        ),
    ] = False,
    pods: Annotated[
        bool,
        typer.Option(
            "--pods",
            help="Also start a stand-in for Kubernetes: --hosts pods:app=lab are its nodes.",
        ),
    ] = False,
    machines: Annotated[
        int | None,
        typer.Option(
            "--machines",
            metavar="N",
            min=1,
            help="Start N nodes with a kernel of their own, by qemu: function, not speed.",
        ),
    ] = None,
    kernel: Annotated[
        Path | None,
        typer.Option(
            "--kernel",
            metavar="DEB",
            help="Package linux-image-….deb of machines. Default: the newest installed kernel.",
        ),
    ] = None,
    nfs: Annotated[
        bool,
        typer.Option("--nfs", help="The first machine serves /shared to all over NFS 4."),
    ] = False,
    loss: Annotated[
        str, typer.Option("--loss", metavar="PERCENT", help="Packets that machines lose: 1%.")
    ] = "",
    delay: Annotated[
        str,
        typer.Option("--delay", metavar="TIME", help="Delay of what machines send: 5ms."),
    ] = "",
    directory: Directory = None,
) -> None:
    """Start a lab of N nodes. Each has a real sshd, at 10.11.0.2 … in namespaces (as root), or at
    127.0.0.2 … (any user).
    """
    from orchestrator import lab
    from orchestrator.errors import ConfigError

    wanted = lab.Machines(kernel, nfs, loss, delay)
    if machines is None and wanted != lab.Machines():
        raise ConfigError(
            "--kernel, --nfs, --loss and --delay are of machines", hint="--machines 2"
        )
    made = lab.up(
        _directory(directory),
        nodes=machines or nodes,
        python=python,
        gpus_per_node=gpus_per_node,
        slots=slots,
        kind=kind,
        mtu=mtu,
        share=share or (),
        slurm=slurm,
        pods=pods,
        machines=wanted if machines else None,
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo(f"inventory: {made.inventory}")
    of_directory = f" --dir {shlex.quote(str(directory))}" if directory else ""
    inside = f"orch lab exec{of_directory} --"
    typer.echo(
        f"next: {inside} orch bench resnet50 -f simulated; without {inside} no command finds the nodes"
    )


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": False})
def exec(
    argv: Annotated[list[str], typer.Argument(metavar="-- CMD …")], directory: Directory = None
) -> None:
    """Run a command on the lab's controller side. It runs in this directory, with the lab's
    inventory as default.
    """
    from orchestrator import lab

    _become(lab.load(_directory(directory)), argv)


@app.command()
def shell(directory: Directory = None) -> None:
    """Open a shell on the lab's controller side. It opens in this directory, with the lab's
    inventory as default.
    """
    from orchestrator import lab

    running_lab = lab.load(_directory(directory))
    typer.echo(
        f"lab of {plural(len(running_lab.nodes), 'node')}, the default inventory here; exit ends the shell, not the lab",
        err=True,
    )
    _become(running_lab, [os.environ.get("SHELL", "/bin/sh")])


@app.command()
def down(directory: Directory = None) -> None:
    """Stop the lab and everything in it, and remove its nodes' files. The benches of the project
    stay.
    """
    from orchestrator import lab

    place = _directory(directory)
    for line in lab.down(place) or [f"no lab in {place}"]:
        typer.echo(line, err=True)


@app.command()
def status(directory: Directory = None, as_json: Json = False) -> None:
    """Show the lab's nodes."""
    from orchestrator import lab

    running_lab = lab.load(_directory(directory))
    if as_json:
        print_json(
            {
                "kind": running_lab.kind,
                "nodes": [
                    {"name": n.name, "address": n.address, "port": n.port}
                    for n in running_lab.nodes
                ],
            }
        )
        return
    for node in running_lab.nodes:
        typer.echo(f"{node.name}  {node.address}:{node.port}")


def _become(running_lab: object, argv: list[str]) -> None:
    """Replace this process with a command on the lab's controller side."""
    from orchestrator import lab
    from orchestrator.errors import ConfigError

    command = lab.argv_inside(running_lab, argv)  # type: ignore[arg-type]
    environment = {**os.environ, **lab.environment(running_lab)}  # type: ignore[arg-type]
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise ConfigError(f"{command[0]}: {error.strerror}", where="orch lab exec") from error

"""`orch dataset make`: write a small data set for tests and rehearsals, with the same bytes on
every node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.option_rows import duration
from orchestrator.cli.options import AcceptNew, Debug, Exclude, Hosts, Json, print_json, select

if TYPE_CHECKING:
    from orchestrator.inventory import Host
    from orchestrator.nodes.cluster import Cluster

app = typer.Typer(
    help="Small data sets for tests and rehearsals.", no_args_is_help=True, rich_markup_mode=None
)


_PROGRAM = "make_dataset.py"
_MADE = {"images": int, "bytes": int, "sha256": str, "made": bool}
"""What it tells of the data set, which may have been made before and altered since."""


@app.callback()
def _root() -> None:
    """Small data sets for tests and rehearsals."""


@app.command()
def make(
    hosts: Hosts = "",
    exclude: Exclude = "",
    images: Annotated[int, typer.Option("--images", min=1, help="Number of images.")] = 64,
    classes: Annotated[int, typer.Option("--classes", min=1, help="Number of classes.")] = 4,
    size: Annotated[int, typer.Option("--size", min=8, help="Pixels of the shorter side.")] = 128,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the images.")] = 0,
    directory: Annotated[
        str,
        typer.Option(
            "--dir",
            metavar="/DIR",
            help="Directory to write to. Default: vars.data_dir of each host.",
        ),
    ] = "",
    limit_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            parser=duration("--timeout", 1),
            metavar="TIME",
            show_default=False,
            help="Maximum time per node.  [default: 10m]",
        ),
    ] = 600.0,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """Write JPEG files and TFRecords of the same images on every node.

    The JPEG files are in one folder per class, and all bytes are the same on every node. Safe to
    repeat. A directory that holds anything else is not touched, and the command fails.
    """
    from orchestrator.errors import ConfigError, Faults
    from orchestrator.inventory.fields import WHOLE, is_whole
    from orchestrator.nodes.fanout import each_or_raise

    if directory and not is_whole(directory):
        raise ConfigError(
            f"expected an absolute path, got {directory!r}", where="--dir", hint=WHOLE
        )
    selection = select(hosts, exclude)
    places = {
        host.name: directory or str(host.vars.get("data_dir", "")) for host in selection.hosts
    }
    missing = [ConfigError("expected a place for the data set", where=name, hint="use --dir, or data_dir: in vars of this host")
               for name, place in places.items() if not place]  # fmt: skip
    if missing:
        raise Faults(missing)
    options = [
        "--images",
        str(images),
        "--classes",
        str(classes),
        "--size",
        str(size),
        "--seed",
        str(seed),
    ]
    with selection.cluster(accept_new).open() as cluster:
        made = each_or_raise(
            cluster.nodes,
            lambda name: _make(cluster, name, ["--dir", places[name], *options], limit_s),
        )
    if as_json:
        print_json(made)
    else:
        _say(selection.hosts, places, made)


def _make(cluster: Cluster, name: str, argv: list[str], limit_s: float) -> dict[str, Any]:
    """Run the program on one node; return its description of the data set."""
    import hashlib
    import json

    from orchestrator.documents import read
    from orchestrator.errors import RunError
    from orchestrator.nodes.node import Upload
    from orchestrator.plan.framework import payload_digest, payload_path
    from orchestrator.plan.payload import payload_bytes

    node, content = cluster.nodes[name], payload_bytes(_PROGRAM)
    path = payload_path(_PROGRAM, payload_digest({_PROGRAM: hashlib.sha256(content).hexdigest()}))
    node.put([Upload(path, content)], timeout_s=60)
    answer = node.ask("program", program=path, argv=argv, limit_s=limit_s, timeout_s=limit_s + 20)
    if answer["code"] != 0:
        output = " / ".join(str(answer["err"]).strip().splitlines()[-3:]) or "no output"
        raise RunError(f"data set: {output}", kind="node_unfit", host=name, phase="dataset")
    try:
        value: dict[str, Any] = json.loads(answer["out"].splitlines()[-1])
        for key, kind in _MADE.items():
            read(kind, value[key])
    except (ValueError, LookupError, TypeError) as fault:
        message = f"expected the description of a data set, got something malformed: {fault!r}"
        raise RunError(message, kind="result_invalid", host=name, phase="dataset") from fault
    return value


def _say(hosts: tuple[Host, ...], places: dict[str, str], made: dict[str, dict[str, Any]]) -> None:
    """Print one line for hosts with equal results."""
    from orchestrator.inventory import fold
    from orchestrator.report.text import one_line

    lines: dict[str, list[str]] = {}
    for host in hosts:
        report = made[host.name]
        content = (
            f"{report['images']} images, {report['bytes']} bytes, sha256 {report['sha256'][:12]}"
        )
        state = "made" if report["made"] else "already there"
        lines.setdefault(f"{content} in {places[host.name]}: {state}", []).append(host.name)
    for line, names in lines.items():
        typer.echo(one_line(f"{fold(names)}: {line}"))

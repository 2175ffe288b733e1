"""`orch dataset make`: a small data set for tests and rehearsals, the same bytes on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AcceptNew, Exclude, Hosts, Json, bounded, print_json, select

if TYPE_CHECKING:
    from orchestrator.inventory import Host
    from orchestrator.nodes.cluster import Cluster

app = typer.Typer(help="Small data sets for tests and rehearsals.", no_args_is_help=True, rich_markup_mode=None)


def add_to(program: typer.Typer) -> None:
    """Add the commands of this module."""
    program.add_typer(app, name="dataset")


_PROGRAM = "make_dataset.py"


@app.callback()
def _root() -> None:
    """Small data sets for tests and rehearsals."""


@app.command()
def make(
    hosts: Hosts = "",
    exclude: Exclude = "",
    images: Annotated[int, typer.Option("--images", min=1, help="How many images.")] = 64,
    classes: Annotated[int, typer.Option("--classes", min=1, help="In how many classes.")] = 4,
    size: Annotated[int, typer.Option("--size", min=8, help="Pixels of the shorter side.")] = 128,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other numbers, other images.")] = 0,
    directory: Annotated[
        str, typer.Option("--dir", metavar="/DIR", help="Where; vars.data_dir of each host if not given.")
    ] = "",
    limit_s: Annotated[float, typer.Option("--timeout", min=1, callback=bounded, help="Seconds a node may take.")] = 600.0,
    accept_new: AcceptNew = False,
    as_json: Json = False,
) -> None:
    """Write JPEG files in folders by class, and the same as TFRecords, on every node: the same bytes everywhere.

    Safe to repeat. A directory that holds anything else is left alone, and the command fails.
    """
    from orchestrator.errors import ConfigError, Faults
    from orchestrator.inventory.values import WHOLE, is_whole
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.nodes.fanout import each_or_raise

    if directory and not is_whole(directory):
        raise ConfigError(f"expected an absolute path, got {directory!r}", where="--dir", hint=WHOLE)
    selection = select(hosts, exclude)
    places = {host.name: directory or str(host.vars.get("data_dir", "")) for host in selection.hosts}
    missing = [ConfigError("expected a place for the data set", where=name, hint="say --dir, or data_dir: in vars of this host")
               for name, place in places.items() if not place]  # fmt: skip
    if missing:
        raise Faults(missing)
    wanted = ["--images", str(images), "--classes", str(classes), "--size", str(size), "--seed", str(seed)]
    with Cluster(selection.hosts, selection.trust(accept_new)).open() as cluster:
        made = each_or_raise(cluster.nodes, lambda name: _make(cluster, name, ["--dir", places[name], *wanted], limit_s))
    if as_json:
        print_json(made)
    else:
        _say(selection.hosts, places, made)


def _make(cluster: Cluster, name: str, argv: list[str], limit_s: float) -> dict[str, Any]:
    """Run the program on one node; return what it says of the data set."""
    import hashlib
    import json

    from orchestrator.errors import RunError
    from orchestrator.nodes.node import Upload
    from orchestrator.plan.folders import payload_bytes
    from orchestrator.plan.framework import payload_digest, payload_path

    node, content = cluster.nodes[name], payload_bytes(_PROGRAM)
    path = payload_path(_PROGRAM, payload_digest({_PROGRAM: hashlib.sha256(content).hexdigest()}))
    node.put([Upload(path, content)], timeout_s=60)
    answer = node.ask("program", program=path, argv=argv, limit_s=limit_s, timeout_s=limit_s + 20)
    if answer["code"] != 0:
        said = " / ".join(str(answer["err"]).strip().splitlines()[-3:]) or "nothing"
        raise RunError(f"data set: {said}", kind="node_unfit", host=name, phase="dataset")
    value: dict[str, Any] = json.loads(str(answer["out"]).splitlines()[-1])
    return value


def _say(hosts: tuple[Host, ...], places: dict[str, str], made: dict[str, dict[str, Any]]) -> None:
    """Print one line for hosts that say the same."""
    from orchestrator.inventory import fold

    lines: dict[str, list[str]] = {}
    for host in hosts:
        found = made[host.name]
        what = f"{found['images']} images, {found['bytes']} bytes, sha256 {found['sha256'][:12]}"
        how = "made" if found["made"] else "already there"
        lines.setdefault(f"{what} in {places[host.name]}: {how}", []).append(host.name)
    for line, names in lines.items():
        typer.echo(f"{fold(names)}: {line}")

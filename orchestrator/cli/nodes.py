"""`orch nodes`: what the project remembers of its nodes, and how a person changes that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import complete
from orchestrator.cli.options import Json, print_json, select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.record.node_states import NodeState


def nodes(
    hosts: Annotated[
        str,
        typer.Argument(
            metavar="HOSTS",
            autocompletion=complete.hosts,
            help="Hosts to change, such as gpu[01-04].",
        ),
    ] = "",
    out: Annotated[
        bool, typer.Option("--out", help="Leave these hosts out of every bench until --good.")
    ] = False,
    good: Annotated[bool, typer.Option("--good", help="Use these hosts again.")] = False,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Reason, shown wherever the host is left out."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """List the state of every node that the project remembers: good, suspect or out, why, and since
    when.

    `orch accept` marks nodes that fail as suspect, and nodes that pass as good. `bench`, `tune` and
    `accept` leave out nodes that are suspect or out.
    """
    from dataclasses import asdict, replace

    from orchestrator.errors import ConfigError
    from orchestrator.inventory import fold, in_order
    from orchestrator.record import Project
    from orchestrator.record.node_states import GOOD, OUT, NodeState, change, node_states, now
    from orchestrator.report.text import one_line

    if out and good:
        raise ConfigError("expected --out or --good, got both", where="orch nodes")
    if (out or good) != bool(hosts):
        raise ConfigError(
            "expected hosts together with --out or --good",
            where="orch nodes",
            hint="without any, it lists all",
        )
    if reason and not (out or good):
        raise ConfigError("expected --out or --good together with --reason", where="--reason")
    project = Project.here(os.environ)
    if hosts:
        said = reason or ("taken out" if out else "taken back")
        selection = select(hosts)
        is_by_name = selection.source == hosts  # and not in an inventory, which may have addresses
        changed = {
            host.name: NodeState(OUT if out else GOOD, host.address, said, "", now())
            for host in selection.hosts
        }

        def changing(before: Mapping[str, NodeState]) -> dict[str, NodeState]:
            kept = {name: before[name].address for name in changed if is_by_name and name in before}
            after = {
                **before,
                **changed,
                **{name: replace(changed[name], address=at) for name, at in kept.items()},
            }
            return {
                name: state
                for name, state in after.items()
                if not (good and is_by_name and state.address == name)
            }

        before, known = change(project.nodes, changing)
        gone = [name for name in changed if name not in known]
        if gone:
            typer.echo(
                one_line(f"{fold(gone)}: in no inventory, so its state is forgotten"), err=True
            )
        elif new := [name for name in changed if is_by_name and name not in before]:
            hint = "ORCH_HOSTS=FILE names an inventory that has them"
            typer.echo(
                one_line(
                    f"{fold(new)}: in no inventory, so the state applies to any host of this name; {hint}"
                ),
                err=True,
            )
    else:
        known = node_states(project.nodes)
    known = {host: known[host] for host in in_order(known)}
    if as_json:
        print_json({host: asdict(state) for host, state in known.items()})
        return
    width = max(map(len, known), default=0)
    for host, state in known.items():
        evidence = f" ({state.evidence})" if state.evidence else ""
        typer.echo(
            one_line(
                f"{host:<{width}}  {state.state:<7}  since {state.since}  {state.reason}{evidence}"
            )
        )
    if not known:
        typer.echo("no node has passed or failed an acceptance yet: orch accept quick", err=True)

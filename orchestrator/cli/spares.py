"""Spare hosts (``--spares N``): before a bench is planned, they take the places of hosts that are unfit for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.selection import Selection

if TYPE_CHECKING:
    from orchestrator.errors import OrchError
    from orchestrator.plan.folders import FrameworkFolder

__all__ = ["Spares", "with_spares"]

Spares = Annotated[
    int,
    typer.Option("--spares", min=0, metavar="N", help="The last N hosts replace hosts that are unreachable, unfit or held."),
]


def with_spares(selection: Selection, count: int, folders: Sequence[FrameworkFolder], accept_new: bool) -> Selection:
    """Return the selection without its last ``count`` hosts, which take the places of those that preflight finds unfit.

    Replacements are named on stderr and in its notes. Raises ConfigError if no other host is selected, and Faults of all that
    is wrong with the hosts if the spares are too few.
    """
    from orchestrator.errors import ConfigError, Faults

    hosts, spares = selection.hosts[:-count], list(selection.hosts[-count:])
    if not hosts:
        raise ConfigError(f"expected more than {count} hosts, {len(selection.hosts)} selected", where="--spares")
    faults = _faults(selection, folders, accept_new)
    fit = [host for host in spares if host.name not in faults]
    bad = [host for host in hosts if host.name in faults]
    if len(bad) > len(fit):
        raise Faults([error for errors in faults.values() for error in errors])
    places = dict(zip((host.name for host in bad), fit, strict=False))
    notes = [f"spare {spare.name} in place of {name}: {faults[name][0].message}" for name, spare in places.items()]
    for note in notes:
        typer.echo(note, err=True)
    chosen = tuple(places.get(host.name, host) for host in hosts)
    return replace(selection, hosts=chosen, notes=(*selection.notes, *notes))


def _faults(selection: Selection, folders: Sequence[FrameworkFolder], accept_new: bool) -> dict[str, list[OrchError]]:
    """Return by host what keeps it from a run: it does not answer, fails a check, or another run holds it.

    Raises Faults for a host whose identity is in doubt, which no spare replaces.
    """
    from orchestrator.checks import unfit
    from orchestrator.checks.judge import judge
    from orchestrator.errors import Faults, RunError, TransportError
    from orchestrator.nodes.preflight import capture

    found: dict[str, list[OrchError]] = {}
    with selection.cluster(accept_new) as cluster:
        errors = cluster.open_what_answers()
        if doubtful := [error for error in errors.values() if isinstance(error, TransportError) and error.is_of_identity]:
            raise Faults(doubtful)
        found |= {name: [error] for name, error in errors.items()}
        for folder in folders:
            facts, failed = capture(cluster, folder.framework)
            for name, error in failed.items():
                found.setdefault(name, []).append(error)
            for host in selection.hosts:
                if host.name in facts:
                    faults = unfit(judge(host, facts[host.name], folder.framework, None))
                    if holder := facts[host.name].get("held_by"):
                        faults.append(RunError(f"another run holds this node: {holder}", kind="node_busy", host=host.name))
                    if faults:
                        found.setdefault(host.name, []).extend(faults)
    return found

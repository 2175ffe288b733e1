"""Spare hosts (``--spares N``): they take the places of hosts that are unfit for a bench, before it
begins or in its course.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from orchestrator.api.connection_cache import ConnectionCache
from orchestrator.api.selection import Selection
from orchestrator.plural import plural

if TYPE_CHECKING:
    from orchestrator.errors import OrchError
    from orchestrator.inventory import Host
    from orchestrator.plan.bench import Bench


def set_aside(selection: Selection, count: int) -> tuple[Selection, tuple[Host, ...]]:
    """Return the selection without its last ``count`` hosts, and these. Raises ConfigError if no
    other host is selected.
    """
    from orchestrator.errors import ConfigError

    if not count:
        return selection, ()
    hosts, spares = selection.hosts[:-count], selection.hosts[-count:]
    if not hosts:
        raise ConfigError(
            f"expected more than {plural(count, 'host')}, {len(selection.hosts)} selected",
            where="--spares",
        )
    return replace(selection, hosts=hosts), spares


def with_spares(
    selection: Selection,
    spares: Sequence[Host],
    plan: Bench,
    opened: ConnectionCache,
    *,
    accept_new: bool,
    waits: bool,
) -> Selection:
    """Return the selection with spares in the places of hosts that preflight finds unfit for the
    runs of a plan, of those that it uses; ``opened`` gets the fit spares that are left, the
    connections, and what preflight has seen.

    Replacements are named on stderr and in its notes. Raises Faults of all that is wrong with the
    hosts if the spares are too few, and for a host whose identity is in doubt, which no spare
    replaces. If the bench ``waits``, held hosts without a spare stay.
    """
    from orchestrator.controller.fitness import kinds_of, look_at
    from orchestrator.errors import Faults, TransportError
    from orchestrator.plan.placement import used_hosts

    members = used_hosts(plan.cells, selection.hosts)
    everyone = [*members, *spares]
    cluster = opened.of(selection, accept_new, everyone)
    faults: dict[str, list[OrchError]] = {
        name: [error] for name, error in cluster.open_what_answers().items()
    }
    errors = [error for errors in faults.values() for error in errors]
    doubtful = [
        error for error in errors if isinstance(error, TransportError) and error.is_of_identity
    ]
    if doubtful:
        raise Faults(doubtful)
    for kind in kinds_of(plan.list_runs(), selection.hosts):
        look = look_at(cluster, kind, everyone)
        opened.facts[look.framework] = look.facts
        for host in everyone:
            if against := look.against(host.name):
                faults.setdefault(host.name, []).extend(against)
    fit = [host for host in spares if host.name not in faults]
    bad = [host.name for host in members if host.name in faults]
    held = []
    for name in bad:
        if any(error.kind == "node_busy" for error in faults[name]):
            held.append(name)
    unfit = [name for name in bad if name not in held]
    if len(unfit if waits else bad) > len(fit):
        raise Faults([error for errors in faults.values() for error in errors])
    places = dict(zip([*unfit, *held], fit, strict=False))
    notes = [
        f"spare {spare.name} in place of {name}: {faults[name][0].message}"
        for name, spare in places.items()
    ]
    for note in notes:
        typer.echo(note, err=True)
    opened.spares = tuple(fit[len(places) :])
    if len(places) < len(bad):  # what a node is like under another run is not what it will be
        opened.facts.clear()
    chosen = tuple(places.get(host.name, host) for host in selection.hosts)
    return replace(selection, hosts=chosen, notes=(*selection.notes, *notes))

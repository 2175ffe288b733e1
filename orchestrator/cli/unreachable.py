"""Options for nodes that differ, and the hosts that answer, of those that were selected:
``--skip-unreachable``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from orchestrator.api.connection_cache import ConnectionCache
from orchestrator.api.selection import Selection
from orchestrator.cli.option_rows import option
from orchestrator.grouping import group_pairs

Devices = Annotated[list[str] | None, option("devices")]
SkipUnreachable = Annotated[bool, option("skip_unreachable")]


def select_reachable(selection: Selection, accept_new: bool, opened: ConnectionCache) -> Selection:
    """Return the selection without the hosts that cannot be reached, which are named on stderr and
    in its notes; ``opened`` gets the connections to the others.

    Raises Faults if none is left, and for a host that answers and does not let us in: its key may
    have changed.
    """
    from orchestrator.errors import Faults
    from orchestrator.inventory import fold

    errors = opened.of(selection, accept_new).open_what_answers()
    gone = {
        name: error
        for name, error in errors.items()
        if error.kind in ("host_unreachable", "host_gone")
    }
    serious = [
        error
        for name, error in errors.items()
        if name not in gone or len(gone) == len(selection.hosts)
    ]
    if serious:
        raise Faults(serious)
    if not gone:
        return selection
    hosts = group_pairs((error.message, name) for name, error in gone.items())
    note = f"left out, because unreachable: {'; '.join(f'{fold(names)} ({reason})' for reason, names in hosts.items())}"
    typer.echo(note, err=True)
    left = tuple(host for host in selection.hosts if host.name not in gone)
    return replace(selection, hosts=left, notes=(*selection.notes, note))

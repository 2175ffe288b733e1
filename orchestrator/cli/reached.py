"""Options for nodes that differ, and the hosts that answer, of those that were selected: ``--skip-unreachable``.

What a command connects to before it knows all hosts of its work, that work goes on with: `Opened`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import Selection

if TYPE_CHECKING:
    from orchestrator.inventory import Host
    from orchestrator.nodes.cluster import Cluster

__all__ = ["Devices", "Opened", "SkipUnreachable", "reached"]

Devices = Annotated[
    list[str] | None,
    typer.Option("--devices", metavar="0-3|HOST:0-3", help="GPUs or MIG instances that runs use; repeatable for single hosts."),
]
SkipUnreachable = Annotated[bool, typer.Option("--skip-unreachable", help="Leave out and name hosts that cannot be reached.")]


@dataclass(slots=True)
class Opened:
    """The connections that a command has opened so far, facts of their hosts by framework, and spares that are fit.

    Use as a context manager: leaving it closes the connections, unless they were handed on.
    """

    cluster: Cluster | None = None
    facts: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    spares: tuple[Host, ...] = ()

    def of(self, selection: Selection, accept_new: bool, hosts: Sequence[Host] = ()) -> Cluster:
        """Return connections to some hosts, or to those of a selection; the ones that are open stay so, others are not
        opened."""
        self.cluster = self.cluster or selection.cluster(accept_new)
        return self.cluster.keep(hosts or selection.hosts)

    def handed_on(self, selection: Selection, accept_new: bool, hosts: Sequence[Host]) -> Cluster:
        """Return connections as `of` does; the caller closes them."""
        cluster, self.cluster = self.of(selection, accept_new, hosts), None
        return cluster

    def close(self) -> None:
        """Close the connections."""
        if self.cluster:
            self.cluster.close()
        self.cluster = None

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def reached(selection: Selection, accept_new: bool, opened: Opened) -> Selection:
    """Return the selection without the hosts that cannot be reached, which are named on stderr and in its notes; ``opened``
    gets the connections to the others.

    Raises Faults if none is left, and for a host that answers and does not let us in: its key may have changed.
    """
    from orchestrator.errors import Faults
    from orchestrator.inventory import fold

    errors = opened.of(selection, accept_new).open_what_answers()
    gone = {name: error for name, error in errors.items() if error.kind == "host_unreachable"}
    if serious := [error for name, error in errors.items() if name not in gone or len(gone) == len(selection.hosts)]:
        raise Faults(serious)
    if not gone:
        return selection
    hosts: dict[str, list[str]] = {}
    for name, error in gone.items():
        hosts.setdefault(error.message, []).append(name)
    note = f"left out, because unreachable: {'; '.join(f'{fold(names)} ({reason})' for reason, names in hosts.items())}"
    typer.echo(note, err=True)
    left = tuple(host for host in selection.hosts if host.name not in gone)
    return replace(selection, hosts=left, notes=(*selection.notes, note))

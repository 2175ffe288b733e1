"""Connections opened while planning, handed to the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.api.selection import Selection

if TYPE_CHECKING:
    from orchestrator.inventory import Host
    from orchestrator.nodes.cluster import Cluster


@dataclass(slots=True)
class ConnectionCache:
    """The connections that a command has opened so far, facts of their hosts by framework, and
    spares that are fit.

    Use as a context manager: leaving it closes the connections, unless they were handed on.
    """

    cluster: Cluster | None = None
    facts: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    spares: tuple[Host, ...] = ()

    def of(self, selection: Selection, accept_new: bool, hosts: Sequence[Host] = ()) -> Cluster:
        """Return connections to some hosts, or to a selection's hosts; open ones stay open, no
        others open.
        """
        self.cluster = self.cluster or selection.cluster(accept_new)
        return self.cluster.keep(hosts or selection.hosts)

    def hand_on(self, selection: Selection, accept_new: bool, hosts: Sequence[Host]) -> Cluster:
        """Return connections as `of` does; the caller closes them."""
        cluster, self.cluster = self.of(selection, accept_new, hosts), None
        return cluster

    def close(self) -> None:
        """Close the connections."""
        if self.cluster:
            self.cluster.close()
        self.cluster = None

    def __enter__(self) -> ConnectionCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The place of a store that a command line names, with the connection that it needs."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.features.store.destinations import Destination
    from orchestrator.features.store.place import Place
    from orchestrator.inventory import Host
    from orchestrator.record import Project

__all__ = ["place_of"]


@contextmanager
def place_of(where: str, accept_new: bool) -> Iterator[Place]:
    """Return the place of a store; a machine is connected to when it is first asked, as the
    inventory of the project says.
    """
    from orchestrator.cli.connecting import trust_of
    from orchestrator.features.store.destinations import destination
    from orchestrator.inventory import NO_SECRETS
    from orchestrator.record import Project

    there = destination(where)
    if there.kind == "directory":
        from orchestrator.features.store.directory import DirectoryPlace

        yield DirectoryPlace(Path(there.path))
    elif there.kind == "bucket":
        from orchestrator.features.store.bucket import BucketPlace

        yield BucketPlace(there.path)
    else:
        from orchestrator.features.store.machine import MachinePlace
        from orchestrator.transport.connections import Connections

        project = Project.here(os.environ)
        host = _host(there, project)
        connections = Connections(trust_of(project, NO_SECRETS, accept_new))
        place = MachinePlace(there.title, there.path, lambda: connections.connect(host))
        try:
            yield place
        finally:
            place.close()
            connections.close()


def _host(there: Destination, project: Project) -> Host:
    """Return the machine of a store: as the project's inventory has it, if it does, else by its
    name or address alone.
    """
    from orchestrator.inventory import Host, open_inventory
    from orchestrator.inventory.allocation import job_in

    host = Host(there.host, there.host)
    source, _ = project.inventory_source("", os.environ)
    if not job_in(source) and Path(source).exists():
        known = open_inventory(source).hosts
        host = next(
            (
                known_host
                for known_host in known
                if there.host in (known_host.name, known_host.address)
            ),
            host,
        )
    ssh = replace(host.ssh, user=there.user or host.ssh.user, port=there.port or host.ssh.port)
    return replace(host, ssh=ssh)

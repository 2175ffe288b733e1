"""Open the store that a command line names."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.features.store.archives import Listing, Store
    from orchestrator.features.store.destinations import Destination
    from orchestrator.features.store.entries import Entry
    from orchestrator.features.store.place import Place
    from orchestrator.inventory import Host
    from orchestrator.record import Project
    from orchestrator.transport import Transport

_LEAST_DIGITS = 4


@contextmanager
def open_store(where: str, accept_new: bool) -> Iterator[Store]:
    """Open the place of a store, which need not be one yet, and close its connection in the end."""
    from orchestrator.api.sealing import contents
    from orchestrator.cli.signals import interrupt_on_signal
    from orchestrator.features.store.archives import Store
    from orchestrator.features.store.destinations import destination
    from orchestrator.record import Project

    cache = Project.here(os.environ).cache(f"store-{sha256(where.encode()).hexdigest()[:16]}")
    with interrupt_on_signal("whatever is in the store is complete"), ExitStack() as stack:
        yield Store(_place(destination(where), accept_new, stack), contents, cache)


def is_store(where: str) -> bool:
    """Return True for a text that names a store, and no archive, packed or unpacked."""
    from orchestrator.features.store.archives import Store
    from orchestrator.features.store.destinations import destination
    from orchestrator.files import is_file

    if is_file(Path(where)):
        return False
    there = destination(where)
    return there.kind != "directory" or Store.marks(Path(there.path))


def find_entry(listing: Listing, name: str, where: str) -> Entry:
    """Return the archive that a name, a label or the first digits of a seal mean; the name of a
    stage means its acceptance.

    Raises ConfigError for none or several."""
    from orchestrator.errors import ConfigError

    entries = listing.entries.values()
    matches = [entry for entry in entries if name in (entry.id, entry.seal)]
    matches = matches or [entry for entry in entries if name in entry.benches]
    matches = matches or [entry for entry in entries if name and name == entry.label]
    if not matches and len(name) >= _LEAST_DIGITS:
        matches = [entry for entry in entries if entry.seal.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        seals = ", ".join(entry.seal[:12] for entry in matches)
        hint = f"name one by its seal: {seals}"
        raise ConfigError(f"{len(matches)} archives are {name!r}", where=where, hint=hint)
    hint = f"orch pull {where} lists them; the first {_LEAST_DIGITS} digits of a seal are enough"
    raise ConfigError(f"no archive {name!r}", where=where, hint=hint)


def _place(there: Destination, accept_new: bool, stack: ExitStack) -> Place:
    """Return the place of a store; a machine is connected to when it is first asked, as the
    inventory of the project says.
    """
    if there.kind == "bucket":
        from orchestrator.features.store.bucket import BucketPlace

        return BucketPlace(there.path)

    from orchestrator.features.store.folder import FolderPlace

    if there.kind == "directory":
        return FolderPlace(there.path, there.path)

    from orchestrator.cli.connection_log import trust_of
    from orchestrator.inventory import NO_SECRETS
    from orchestrator.record import Project
    from orchestrator.transport.connections import Connections

    project = Project.here(os.environ)
    host = _host(there, project)
    connections = Connections(trust_of(project, NO_SECRETS, accept_new))
    stack.callback(connections.close)

    def connect() -> Transport:
        transport = connections.connect(host)
        stack.callback(transport.close)
        return transport

    return FolderPlace(there.title, there.path, connect)


def _host(there: Destination, project: Project) -> Host:
    """Return the machine of a store: as the project's inventory has it, if it does, else by its
    name or address alone.
    """
    from orchestrator.engines.listing import engine_of
    from orchestrator.inventory import Host, open_inventory

    host = Host(there.host, there.host)
    source, _ = project.inventory_source("", os.environ)
    if not engine_of(source) and Path(source).exists():
        known = open_inventory(source).hosts
        host = next((one for one in known if there.host in (one.name, one.address)), host)
    ssh = replace(host.ssh, user=there.user or host.ssh.user, port=there.port or host.ssh.port)
    return replace(host, ssh=ssh)

"""Connections through masters of ssh: what is left of them, and the error of one that is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import TransportError
from orchestrator.inventory.hosts import Host
from orchestrator.procs import cmdline, snapshot
from orchestrator.transport.connections import Connections
from tests.contract.rig import Rig


def left(place: Path) -> list[str]:
    """Folders of masters, and processes that have one on their command line."""
    processes = [str(pid) for pid in snapshot() if f"{place}/".encode() in cmdline(pid)]
    return [*map(str, place.iterdir()), *processes]


def refused(rig: Rig, host: Host, *, accept_new: bool = False) -> TransportError:
    with (
        pytest.raises(TransportError) as caught,
        closing(Connections(rig.trust(accept_new=accept_new))) as connections,
    ):
        connections.connect(host)
    assert caught.value.host == host.name
    return caught.value

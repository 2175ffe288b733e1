"""Spare hosts in mid-bench: which hosts were lost, and which spares can take their places without
mixing hosts in a cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from orchestrator.errors import ConfigError, OrchError, TransportError
from orchestrator.inventory import Host
from orchestrator.plan import RunSpec
from orchestrator.plan.placement import place

_GONE = ("node_lost", "node_rebooted", "host_unreachable", "host_gone")


def find_lost_hosts(hosts: Sequence[Host], errors: Iterable[OrchError]) -> dict[str, OrchError]:
    """Return the hosts that were lost, in their order, each with the first of these errors that
    says so.

    It is empty where the identity of a host is in doubt, which is a reason to stop.
    """
    faults = [fault for error in errors for fault in error.errors]
    if any(isinstance(fault, TransportError) and fault.is_of_identity for fault in faults):
        return {}
    gone = {
        fault.host: fault
        for fault in reversed(faults)
        if isinstance(fault, TransportError) and fault.kind in _GONE
    }
    return {host.name: gone[host.name] for host in hosts if host.name in gone}


def is_on(spec: RunSpec, hosts: Sequence[Host], names: Collection[str]) -> bool:
    """Return True if runs of a spec are placed on one of the hosts with these names."""
    return any(slot.host in names for slot in place(spec, hosts, 0).slots)


def may_move(cells: Sequence[RunSpec], hosts: Sequence[Host], lost: Collection[str]) -> bool:
    """Return True if other hosts may take the places of those that were lost: no cell is about
    these hosts by name.
    """
    return not any(spec.hosts and is_on(spec, hosts, lost) for spec in cells)


def replacements(
    cells: Sequence[RunSpec], hosts: Sequence[Host], lost: Sequence[str], spares: Sequence[Host]
) -> dict[str, Host]:
    """Return a spare for each host that was lost, such that every cell is placed as before but for
    these; empty if there are too few that are of the same device and large enough."""
    before = []
    for spec in cells:
        before.append([slot.host for slot in place(spec, hosts, 0).slots])
    places: dict[str, Host] = {}
    for name in lost:
        (device,) = {host.device for host in hosts if host.name == name}
        for spare in spares:
            tried = {**places, name: spare}
            if (
                spare not in places.values()
                and spare.device == device
                and _place(cells, hosts, tried)
                == [
                    [tried[host].name if host in tried else host for host in names]
                    for names in before
                ]
            ):
                places = tried
                break
        else:
            return {}
    return places


def _place(
    cells: Sequence[RunSpec], hosts: Sequence[Host], places: Mapping[str, Host]
) -> list[list[str]]:
    """Return the hosts of every cell with spares in their places; empty lists for cells that cannot
    be placed so.
    """
    changed = [places.get(host.name, host) for host in hosts]
    placed = []
    for spec in cells:
        try:
            placed.append([slot.host for slot in place(spec, changed, 0).slots])
        except ConfigError:
            placed.append([])
    return placed

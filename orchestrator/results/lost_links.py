"""Network interfaces that lost their link while a run was made, as each node's kernel counted.

A link that is lost for less than the timeouts of TCP breaks no connection and moves no median of
many transfers; the count shows it all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.checks.facts import node_facts
from orchestrator.checks.interfaces import route_interfaces
from orchestrator.errors import OrchError
from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold
from orchestrator.notes import Note
from orchestrator.plural import times
from orchestrator.record import RunDir
from orchestrator.record.node_record import ExitRecord, exit_record
from orchestrator.results.notes import LOST_LINK


def count_lost_links(records: Mapping[str, ExitRecord]) -> dict[str, Mapping[str, int]]:
    """Return by host and interface how often a link was lost, without zeros."""
    return {
        host: record.meter.links_lost for host, record in records.items() if record.meter.links_lost
    }


def read_lost_links(run: RunDir, hosts: Iterable[str]) -> dict[str, Mapping[str, int]]:
    """Return the lost links of a run with any outcome, as far as its nodes' exit records can be
    read.
    """
    records = {}
    for host in hosts:
        try:
            record = exit_record(run, host)
        except OrchError:
            continue
        if record:
            records[host] = record
    return count_lost_links(records)


def lost_link_notes(lost: Mapping[str, Mapping[str, int]]) -> list[Note]:
    """Return a text for the hosts that lost a link by the same name equally often.

    >>> lost_link_notes({"node3": {"eth0": 2}, "node4": {"eth0": 1}, "node5": {"eth0": 1}})
    ['eth0 of node3 lost its link 2 times', 'eth0 of node[4-5] lost its link once']
    """
    hosts = group_pairs((named, host) for host, counts in lost.items() for named in counts.items())
    return [
        LOST_LINK(interface=interface, hosts=fold(names), times=times(count))
        for (interface, count), names in hosts.items()
    ]


def reaches_nodes(interface: str, facts: Mapping[str, Any]) -> bool:
    """Claim that other nodes are reached through an interface: a route leads to one over it, or it
    has an address for them.
    """
    known = node_facts(facts)
    names = [network.name for network in known.networks]
    return interface in (*route_interfaces(known), *names)

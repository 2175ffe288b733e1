"""Fitness of hosts for the runs of a bench: the facts that preflight captures, and its findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.checks import Check, same_machine, unfit
from orchestrator.checks.interfaces import with_interfaces
from orchestrator.checks.judge import among, judge
from orchestrator.errors import OrchError, RunError
from orchestrator.grouping import group_pairs
from orchestrator.inventory import Host
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.preflight import capture
from orchestrator.plan import Framework
from orchestrator.plan.bench import PlannedRun
from orchestrator.plan.placement import most_ranks


@dataclass(frozen=True, slots=True)
class Kind:
    """The runs of one framework, as far as preflight distinguishes them.

    ``ranks`` are the most ranks on each host that they are placed on. ``with_data``: the runs read a
    data set. ``container`` replaces the hosts' container, one choice for all runs of a bench.
    """

    framework: Framework
    ranks: Mapping[str, int]
    with_data: bool
    container: str

    def ranks_on(self, host: str) -> int:
        """Return the most ranks on a host. A spare may take any place."""
        return self.ranks.get(host, max(self.ranks.values()))


@dataclass(frozen=True, slots=True)
class Look:
    """The facts of hosts for one framework, the checks on these, and by host what keeps it from a
    run.
    """

    framework: str
    facts: dict[str, dict[str, Any]]
    checks: list[Check]
    faults: dict[str, list[OrchError]]

    @property
    def errors(self) -> list[OrchError]:
        """All faults."""
        return [error for errors in self.faults.values() for error in errors]

    def against(self, host: str) -> list[OrchError]:
        """Return the errors that keep a host from a run now: its faults, and another run that holds
        it.
        """
        holder = self.facts.get(host, {}).get("held_by")
        busy = []
        if holder:
            busy = [RunError(f"another run holds this node: {holder}", kind="node_busy", host=host)]
        return [*self.faults.get(host, ()), *busy]


def kinds_of(runs: Iterable[PlannedRun], hosts: Sequence[Host]) -> list[Kind]:
    """Return the kinds of runs that are placed on these hosts, one for each framework."""
    by_name = group_pairs((run.folder.framework.name, run) for run in runs)
    kinds = []
    for alike in by_name.values():
        kinds.append(
            Kind(
                alike[0].folder.framework,
                most_ranks([run.spec for run in alike], hosts),
                any(run.spec.loader != "synthetic" for run in alike),
                alike[0].spec.container,
            )
        )
    return kinds


def look_at(
    cluster: Cluster,
    kind: Kind,
    hosts: Sequence[Host],
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> Look:
    """Return the findings of preflight on hosts.

    Connected hosts are asked, except the ones whose facts are ``known``.
    """
    known = known or {}
    facts = {host.name: dict(known[host.name]) for host in hosts if host.name in known}
    names = [host.name for host in hosts if host.name in cluster.nodes and host.name not in facts]
    errors: dict[str, OrchError] = {}
    if names:
        asked, errors = capture(
            cluster, kind.framework, with_data=kind.with_data, container=kind.container, names=names
        )
        facts = with_interfaces(
            hosts,
            {host.name: (facts | asked)[host.name] for host in hosts if host.name in facts | asked},
        )
    faults: dict[str, list[OrchError]] = {name: [error] for name, error in errors.items()}
    checks = [
        check
        for host in hosts
        if host.name in facts
        for check in judge(host, facts[host.name], kind.framework, kind.ranks_on(host.name))
    ]
    checks += among(facts, hosts)
    for error in [*same_machine(facts), *unfit(checks)]:
        faults.setdefault(error.host, []).append(error)
    return Look(kind.framework.name, facts, checks, faults)

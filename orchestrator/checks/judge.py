"""The checks of a machine before a run: pure functions of the facts that preflight has captured.

Nothing is repaired silently. Every check states what it found, what was expected and what to do;
nodes with equal results are folded when they are printed. `docs/preflight.md` lists the checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.checks.check import Check
from orchestrator.checks.cross_node import alike, find_shared_workdirs, local_routes, unlike
from orchestrator.checks.expected import check_expectations
from orchestrator.checks.facts import node_facts
from orchestrator.checks.gpus import gpu_checks
from orchestrator.checks.host import host_checks, slots_check
from orchestrator.checks.infiniband import unlike_pkeys
from orchestrator.checks.load import load_checks
from orchestrator.checks.network import network_checks
from orchestrator.errors import OrchError, RunError
from orchestrator.inventory import Host
from orchestrator.plan import Framework


def judge(
    host: Host, facts: Mapping[str, Any], framework: Framework | None, ranks: int | None
) -> list[Check]:
    """Return every check of one host. ``ranks`` is the number of ranks that a run would place on
    it, None if not known.
    """
    known = node_facts(facts)
    devices = (
        [slots_check(host, known, ranks)] if host.gpus == 0 else gpu_checks(host, known, ranks)
    )
    return [
        *host_checks(host, known, framework),
        *devices,
        *network_checks(host, known),
        *check_expectations(host, known),
    ]


def among(facts: Mapping[str, Mapping[str, Any]], hosts: Sequence[Host] = ()) -> list[Check]:
    """Return every check that compares several hosts, some of them by the variables of ``hosts``."""
    known = {host: node_facts(values) for host, values in facts.items()}
    return [
        *local_routes(known),
        *find_shared_workdirs(known),
        *unlike(known),
        *load_checks(known),
        *unlike_pkeys(hosts, known),
        *alike(known),
    ]


def unfit(checks: Sequence[Check]) -> list[OrchError]:
    """Return an error for every failed check."""
    return [
        RunError(
            f"{check.name}: expected {check.expected}, found {check.found}",
            kind="node_unfit",
            host=check.host,
            phase="preflight",
            hint=check.hint,
        )
        for check in checks
        if check.verdict == "failed"
    ]

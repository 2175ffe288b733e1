"""The extension point of audits. It loads nothing until one is made: completion reads the list."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.features.audit import catalogue

if TYPE_CHECKING:
    from orchestrator.checks import Check
    from orchestrator.nodes.cluster import Cluster

CATALOGUE = catalogue.CATALOGUE


def audit(
    cluster: Cluster, facts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Check]]:
    """Return what every connected node says about itself, by host, and the checks of it.

    ``facts``: those of preflight. Raises Faults for nodes that do not answer.
    """
    from orchestrator.features.audit.audit import audit_hosts

    return audit_hosts(cluster, facts)


def misspelt_variables(names: Collection[str]) -> dict[str, str]:
    """Return those names that are almost variables of NCCL, each with the one that is meant."""
    own = sorted(name for name in names if name.upper().startswith("NCCL"))
    if not own:
        return {}
    from orchestrator.features.audit.nccl import nearest_variable

    meant = {name: nearest_variable(name) for name in own}
    return {name: close for name, close in meant.items() if close}

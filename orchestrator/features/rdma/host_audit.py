"""What the audit of hosts takes from here: the check `rdma`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.checks.catalogue import Entry

if TYPE_CHECKING:
    from orchestrator.checks import Check
    from orchestrator.nodes.cluster import Cluster

CATALOGUE = (
    Entry(
        "rdma", "RDMA between nodes",
        "messages of `ibv_rc_pingpong` between the active ports of all pairs of nodes, one to one"
        " in their order, with the GID of NCCL_IB_GID_INDEX, or of RoCE v2 with an IPv4 address",
        must="each pair exchanges them",
        should="all ports of a link layer have one MTU; each node has an active port, and the"
        " program; counters of a port that sent messages have moved",
        cure="VLAN, partition, GID index, firewall (UDP 4791), `ip link set … mtu`; `apt-get install ibverbs-utils`",
    ),
)  # fmt: skip


def audit(
    cluster: Cluster, facts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Check]]:
    """Return the check of every node, and nothing that nodes told."""
    from orchestrator.checks.facts import node_facts
    from orchestrator.features.rdma.ping import ping_all

    return {}, ping_all(cluster, {host: node_facts(values) for host, values in facts.items()})

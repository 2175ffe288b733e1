"""The audit of all hosts of a command: one look at each, by a program of its own, and its checks.

A bench does not know it, so what it reads costs no bench anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.checks.check import Check
from orchestrator.checks.facts import NodeFacts, node_facts
from orchestrator.errors import RunError
from orchestrator.features.audit.advisories import check_advisories
from orchestrator.features.audit.hardware import HARDWARE
from orchestrator.features.audit.kubernetes import audit_pods
from orchestrator.features.audit.nccl import check_nccl
from orchestrator.features.audit.report import HostReport, host_report
from orchestrator.features.audit.tenancy import check_tenancy
from orchestrator.inventory import Host
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.fanout import each_or_raise
from orchestrator.nodes.node import LEADER, boot_arguments
from orchestrator.plan.payload import booted_program

_MARK = b"ORCH-AUDIT "
_LOOK_S = 120
_FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")


def audit_hosts(
    cluster: Cluster, facts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Check]]:
    """Look at every connected node at the same time, and judge what it said."""
    told = each_or_raise(cluster.nodes, lambda name: _look(cluster, name))
    known = {host.name: node_facts(facts.get(host.name, {})) for host in cluster.hosts}
    reports = {name: host_report(said) for name, said in told.items()}
    hosts = [host for host in cluster.hosts if host.name in reports]
    checks = [check for host in hosts for check in judge_host(host, known, reports[host.name])]
    of_pods, checks_of_pods = audit_pods(hosts, reports)
    for name, said in of_pods.items():
        told[name] = {**told[name], "kubernetes": said}
    return told, [*checks, *checks_of_pods]


def judge_host(host: Host, facts: Mapping[str, NodeFacts], report: HostReport) -> list[Check]:
    """Return the checks of one host, in the order of the list. ``facts``: those of all hosts."""
    hardware = [check(host.name, report) for check in HARDWARE]
    others = [values for name, values in facts.items() if name != host.name]
    return [
        *filter(None, hardware),
        *check_tenancy(host.name, report),
        *check_advisories(host.name, report),
        *check_nccl(host, facts[host.name], others, report),
    ]


def _look(cluster: Cluster, name: str) -> dict[str, Any]:
    """Run the program of the audit on a node, and return its answer."""
    node = cluster.nodes[name]
    program = booted_program("host_audit")
    files = [node.host.env[key] for key in _FILES if key in node.host.env]
    request = json.dumps({"files": files}).encode() + b"\n"
    done = node.transport.run(
        [*node.host.runner_python, *boot_arguments(program)],
        input=LEADER + program + request,
        timeout_s=_LOOK_S,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    try:
        told = json.loads(answers[-1].removeprefix(_MARK))
    except (IndexError, ValueError, RecursionError):
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-200:]
        raise RunError(
            f"expected the answer of an audit, got {said or 'nothing'}",
            kind="result_invalid",
            host=name,
        ) from None
    value: dict[str, Any] = cluster.redaction.value(told)
    return value

"""Deploy payloads and remember the state of each node; a node that has not changed since is sent
nothing, and the remembered facts are used.

`orch deploy` only shows these facts: a bench captures its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.checks import same_machine
from orchestrator.checks.interfaces import with_interfaces
from orchestrator.errors import Faults, OrchError
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.fanout import each_or_raise
from orchestrator.nodes.node import Node, Upload
from orchestrator.nodes.preflight import capture
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import payload_path
from orchestrator.record.deploys import Deployed, Memory

_LOOK_S = 30.0


def deploy(
    cluster: Cluster, folders: Sequence[FrameworkFolder], memory: Memory
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, Any]], dict[str, float]]:
    """Send payloads to every node that misses them and capture its facts; an unchanged node is only
    checked.

    Returns (bytes sent, facts), each by framework and host, and for unchanged nodes the time at
    which their facts were captured. Raises Faults if a node does not answer, or two names are the
    same machine.
    """
    hosts = {host.name: host for host in cluster.hosts}
    remembered = {name: deployed for name, host in hosts.items() if (deployed := memory.of(host))}
    unchanged = each_or_raise(
        remembered, lambda name: is_unchanged(cluster.nodes[name], remembered[name])
    )
    kept = {name: remembered[name] for name, same in unchanged.items() if same}
    changed = [name for name in hosts if name not in kept]
    sent: dict[str, dict[str, int]] = {}
    facts: dict[str, dict[str, Any]] = {}
    for folder in folders:
        name = folder.framework.name

        def stage(host: str, folder: FrameworkFolder = folder) -> int:
            return stage_payload(cluster.nodes[host], folder)

        fresh = each_or_raise(changed, stage)
        new, errors = capture(cluster, folder.framework, names=changed, briefly=True)
        all_facts = {
            host: new[host] if host in new else kept[host].facts[name]
            for host in hosts
            if host not in errors
        }
        facts[name] = with_interfaces(cluster.hosts, all_facts)
        sent[name] = {host: fresh.get(host, 0) for host in hosts}
        wrong = [*errors.values(), *same_machine(facts[name])]
        if wrong:
            raise Faults(wrong)
    for host in changed:
        standing = [by_host[host].pop("standing") for by_host in facts.values()][-1]
        lasting = {name: {**by_host[host], "held_by": None} for name, by_host in facts.items()}
        memory.note(hosts[host], lasting, standing)
    if changed:
        memory.save()
    return sent, facts, {host: deployed.at for host, deployed in kept.items()}


def stage_payload(node: Node, folder: FrameworkFolder) -> int:
    """Send the rank wrapper and the framework's payload to a node as one set, named by its digest.

    Returns the number of bytes sent: files that the node has in another set are copied on the node.
    """
    digest = folder.payload_digest
    files = [
        Upload(payload_path(name, digest), content, elsewhere=payload_path(name, "*"))
        for name, content in folder.payload.items()
    ]
    return node.put(files, timeout_s=60)


def is_unchanged(node: Node, deployed: Deployed) -> bool:
    """Return whether a node is as it was when it was deployed to. Any other output, or a node without
    these programs, counts as changed.
    """
    try:
        done = node.transport.run(["sh", "-c", deployed.question], timeout_s=_LOOK_S)
    except OrchError:
        return False  # the next request to the node reports the cause
    return done.code == 0 and done.stdout.endswith(deployed.answer)

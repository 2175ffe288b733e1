"""Checks across nodes: that no machine is listed twice, and that all nodes are equal in what
determines the speed of a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.checks.check import Check, failure, ok, warning
from orchestrator.checks.differences import same_sizes
from orchestrator.checks.facts import NodeFacts, node_facts
from orchestrator.checks.network import training_interface
from orchestrator.devices.nvidia_smi import pairs
from orchestrator.errors import OrchError, RunError
from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold


def same_machine(facts: Mapping[str, Mapping[str, Any]]) -> list[OrchError]:
    """Return an error for every pair of names that are one machine: same host key, if the transport
    tells it, and same boot.
    """
    seen: dict[tuple[str, str], str] = {}
    errors: list[OrchError] = []
    for name, values in facts.items():
        node = node_facts(values)
        identity = (node.host_key, node.boot_id)
        if identity in seen and identity[0]:
            message = f"{seen[identity]} and {name} are one machine (same host key, same boot)"
            errors.append(
                RunError(
                    message, kind="node_unfit", host=name, hint="name it once in the inventory"
                )
            )
        seen.setdefault(identity, name)
    return errors


def local_routes(facts: Mapping[str, NodeFacts]) -> list[Check]:
    """Return a failed check for every node that finds itself at the address of another one, as at
    ``localhost``.

    Its ranks would wait for a master on their own machine. Where several nodes are one machine, as
    in a rehearsal, it is right.
    """
    boots = Counter(values.boot_id for values in facts.values())
    hint = (
        "give the other host an address that every node can reach (address: in the "
        "inventory), and see /etc/hosts on the node"
    )
    checks = []
    for host, values in facts.items():
        addresses = [peer for peer, name in values.routes.items() if name == "lo"]
        if not addresses and values.route and values.route.local:
            addresses = [values.route.to]
        if addresses and boots[values.boot_id] > 1:
            checks.append(
                ok(host, "route", "to the master through lo: several nodes are this machine")
            )
        elif addresses:
            found = f"{', '.join(addresses)} leads to this node itself, through lo"
            checks.append(failure(host, "route", found, "a way to another node", hint))
    return checks


def find_shared_workdirs(facts: Mapping[str, NodeFacts]) -> list[Check]:
    """Return a passed check for every node whose work directory other nodes see too, as on an NFS
    home.
    """
    by_first = group_pairs((values.workdir_first, host) for host, values in facts.items())
    by_first.pop("", None)
    return [
        ok(
            host,
            "shared",
            f"{facts[host].workdir} is one directory on {fold(hosts)}; each node has its own folder in it",
        )
        for hosts in by_first.values()
        if len(hosts) > 1
        for host in hosts
    ]


def unlike(facts: Mapping[str, NodeFacts]) -> list[Check]:
    """Return a failed check for every node whose copy of the third-party program, image of a
    container, or data set of ``orch dataset make`` is not the first node's. Of other data sets a
    node may hold its own part: `alike` compares those."""
    digests = {host: tuple(values.programs.values()) for host, values in facts.items()}
    programs = {}
    for host, copies in digests.items():
        if all(isinstance(digest, str) for digest in copies):
            programs[host] = copies
    hint = "copy one version to every node"
    checks = [
        failure(host, "program", "a different one", f"the same bytes as on {first}", hint)
        for first, host in _others(programs)
    ]
    images = {
        host: container_digest(values) for host, values in facts.items() if container_digest(values)
    }
    hint = "copy one image to every node, for example with docker save and docker load"
    for first, host in _others(images):
        image = f"image {images[host][7:19]}"
        checks.append(
            failure(host, "container", image, f"image {images[first][7:19]} as on {first}", hint)
        )
    data_sets = {host: data_set_digest(values) for host, values in facts.items() if values.data_dir}
    if any(values.data_made for values in facts.values()):
        hint = "copy one version to every node, or delete them and run orch dataset make again"
        for first, host in _others(data_sets):
            checks.append(
                failure(host, "data", "a different one", f"the same data set as on {first}", hint)
            )
    return checks


def container_digest(facts: NodeFacts) -> str:
    """Return the digest of the image of a node's container; empty without one, and where the engine
    knows none.
    """
    return facts.container.digest if facts.container else ""


def data_set_digest(facts: NodeFacts) -> str | None:
    """Return the digest of a node's data set; None if it has none or could not be read."""
    return facts.data_set.digest if facts.data_set else None


def _others(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (first host, host) for every host whose value differs from the first host's."""
    first = next(iter(values), "")
    return [(first, host) for host, value in values.items() if value != values[first]]


def alike(facts: Mapping[str, NodeFacts]) -> list[Check]:
    """Return a warning for every node that differs from the majority in anything that may change
    its speed or its results.
    """
    by_host = {host: characteristics(values) for host, values in facts.items()}
    sizes = {
        host: str(values.memory_bytes)
        for host, values in facts.items()
        if values.memory_bytes is not None
    }
    for host, size in same_sizes(sizes).items():
        gib = int(size) / 2**30
        by_host[host]["memory"] = f"{gib:.0f} GiB" if gib >= 100 else f"{gib:.3g} GiB"
    checks = []
    for name in dict.fromkeys(name for texts in by_host.values() for name in texts):
        values = {host: texts.get(name, "none") for host, texts in by_host.items()}
        usual = Counter(values.values()).most_common(1)[0][0]  # on a tie, the first value
        others = fold(host for host, value in values.items() if value == usual)
        for host, value in values.items():
            if value != usual:
                hint = "make the nodes equal, or exclude this one with -x; a job is as slow as its slowest node"
                checks.append(
                    warning(
                        host, "alike", f"{name} {value}", f"{name} {usual} as on {others}", hint
                    )
                )
    return checks


def characteristics(facts: NodeFacts) -> dict[str, str]:
    """Return the facts that must be equal on all nodes of a job, as text by name.

    Free disk space, load and the like may differ.
    """
    values: dict[str, Any] = {
        name: getattr(facts, name) for name in ("cpu", "cores", "kernel", "machine")
    }
    for name, key, unit in _OF_GPUS:
        found = [getattr(gpu, key) for gpu in facts.gpus or ()]
        texts = {f"{_format_value(value)}{unit}" for value in found if value}
        values[name] = " and ".join(sorted(texts))
    kinds = Counter(pairs(facts.topology).values())
    values["GPU links"] = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    if gbit := facts.infiniband_gbit:
        values["InfiniBand"] = f"{gbit:g} Gb/s"
    interface = training_interface(facts)
    values["MTU"] = interface.mtu if interface else None
    if digest := data_set_digest(facts):
        values["data set"] = digest[:12]
    versions = facts.framework
    if "error" not in versions:
        values |= {name: value for name, value in versions.items() if name != "gpus"}
    return {str(name): str(value) for name, value in values.items() if value not in (None, "")}


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


_OF_GPUS = (
    ("gpu", "name", ""),
    ("driver", "driver", ""),
    ("ECC", "ecc", ""),
    ("MIG", "mig", ""),
    ("partition", "partition", ""),
    ("memory partition", "memory_partition", ""),
    ("power limit", "power_limit_w", " W"),
)

"""Pods as hosts: ``--hosts pods:LABEL=VALUE[,namespace=…]`` as an inventory file in orch's own format.

A host is named after its place in its job, which another pod may take later, else after its pod.
The GPUs are those that its container requests, the address is the pod's, and its machine is the
node of the cluster that it runs on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.engines.kubernetes.pods import obstacle
from orchestrator.errors import ConfigError
from orchestrator.inventory import fold, in_order
from orchestrator.plural import plural

WORD = "pods"
JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")
INDEX = "batch.kubernetes.io/job-completion-index"
_PLACE = ("namespace", "context", "container")
_GPU = re.compile(r".+/gpu|nvidia\.com/mig-.+|gpu\.intel\.com/.+")
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]*=[A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods by a selector of labels, in a namespace; commands are run in ``container``."""

    selector: str
    namespace: Namespace
    container: str = ""

    def listed(self) -> list[PodHost]:
        """Return the pods as hosts, in their order. Raises ConfigError if there are none, or some of
        them do not run yet.
        """
        query = f"pods?labelSelector={quote(self.selector)}"
        where = f"pods with {self.selector} in namespace {self.namespace.name}"
        found, waiting = {}, []
        for pod in self.namespace.items(query):
            is_over = pod["status"].get("phase") in ("Succeeded", "Failed")
            if is_over or "deletionTimestamp" in pod["metadata"]:
                continue  # another pod may have its place
            host = _host(pod, self)
            found[host.name] = host
            if why := obstacle(pod, host.container):
                waiting.append(f"{host.pod} {why}")
        if waiting:
            hint = f"kubectl --namespace={self.namespace.name} describe pod says more"
            raise ConfigError(
                f"expected running pods: {'; '.join(waiting[:8])}", where=where, hint=hint
            )
        if not found:
            hint = f"kubectl --namespace={self.namespace.name} get pods --show-labels lists labels"
            raise ConfigError("expected pods that run, got none", where=where, hint=hint)
        return [found[name] for name in in_order(found)]


@dataclass(frozen=True, slots=True)
class PodHost:
    """A pod as a host. ``machine`` is the node of the cluster that it runs on."""

    name: str
    pod: str
    container: str
    address: str
    machine: str
    gpus: int


def parse_source(text: str) -> Pods:
    """Return the pods that ``LABEL=VALUE,…,namespace=…,context=…,container=…`` means."""
    place: dict[str, str] = {}
    terms = []
    for word in text.split(","):
        name, equals, value = word.partition("=")
        if equals and value and name in _PLACE:
            place[name] = value
        elif _TERM.fullmatch(word):
            terms.append(word)
        else:
            hint = "as in pods:app=trainer,namespace=bench; also context= and container="
            message = f"expected LABEL=VALUE, got {word[:60]!r}"
            raise ConfigError(message, where=f"--hosts {WORD}:", hint=hint)
    if not terms:
        hint = "as in pods:app=trainer"
        raise ConfigError("expected a label, got none", where=f"--hosts {WORD}:", hint=hint)
    namespace = Namespace.of(place.get("namespace", ""), place.get("context", ""))
    return Pods(",".join(terms), namespace, place.get("container", ""))


def _host(pod: Mapping[str, Any], pods: Pods) -> PodHost:
    meta, spec = pod["metadata"], pod["spec"]
    container = _container(meta, spec, pods.container)
    labels = meta.get("labels", {})
    job = next((labels[label] for label in JOB_LABELS if label in labels), "")
    index = labels.get(INDEX, meta.get("annotations", {}).get(INDEX, ""))
    name = f"{job}-{index}" if job and index else meta["name"]
    address = pod["status"].get("podIP", "")
    return PodHost(
        name, meta["name"], container["name"], address, spec.get("nodeName", ""), gpus_of(container)
    )


def gpus_of(container: Mapping[str, Any]) -> int:
    """Return the GPUs, or parts of GPUs, that a container requests."""
    limits = container.get("resources", {}).get("limits", {})
    return sum(int(count) for name, count in limits.items() if _GPU.fullmatch(name))


def _container(meta: Mapping[str, Any], spec: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
    """Return the container of a pod with this name, else the one that kubectl takes by default."""
    default = meta.get("annotations", {}).get("kubectl.kubernetes.io/default-container", "")
    by_name: dict[str, Mapping[str, Any]] = {one["name"]: one for one in spec["containers"]}
    if wanted and wanted not in by_name:
        message = f"expected the container {wanted}, got {fold(by_name)}"
        raise ConfigError(message, where=f"pod {meta['name']}")
    chosen: Mapping[str, Any] = by_name.get(wanted or default, spec["containers"][0])
    return chosen


def one_for_each_machine(hosts: Sequence[PodHost]) -> tuple[list[PodHost], list[str]]:
    """Return the first pod on each machine, and a sentence for each other one: a node is a machine."""
    first: dict[str, PodHost] = {}
    said = []
    for host in hosts:
        other = first.setdefault(host.machine or host.name, host)
        if other is not host:
            said.append(
                f"{host.name} is left out: it is on {host.machine}, as {other.name}, and one machine is one node"
            )
    return list(first.values()), said


def inventory_text(pods: Pods, hosts: Sequence[PodHost], base: str) -> str:
    """Return the inventory of pods; ``base`` is the inventory that lists them, empty without one."""
    lines = [f"# Written by orch: pods with {pods.selector} in {pods.namespace.name}.", "schema: 1"]
    lines += [f"base: {json.dumps(base)}"] if base else []
    lines.append("hosts:")
    for host in hosts:
        known = {
            "pod": host.pod,
            "pod_labels": pods.selector,
            "pod_namespace": pods.namespace.name,
            "pod_container": host.container,
            "pod_node": host.machine,
            "kube_context": pods.namespace.context,
        }
        settings: dict[str, Any] = {"address": host.address, "transport": "kubectl"}
        if host.gpus or not base:
            settings["gpus"] = host.gpus
        settings["vars"] = {name: value for name, value in known.items() if value}
        lines.append(f"  {json.dumps(host.name)}: {json.dumps(settings)}")
    return "\n".join(lines) + "\n"


def describe(hosts: Sequence[PodHost]) -> str:
    """Return pods and their GPUs in words."""
    counts = sorted({host.gpus for host in hosts})
    gpus = " or ".join(plural(count, "GPU") if count else "no GPU" for count in counts)
    return f"{fold(host.name for host in hosts)}, {gpus} each"

"""Pods as hosts: ``--hosts pods:LABEL=VALUE[,namespace=…]`` as an inventory file in orch's own format.

A host is named after its place in its job, which another pod may take later, else after its pod.
The GPUs are those that its container requests, the address is the pod's, and its machine is the
node of the cluster that it runs on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.engines.kubernetes.pods import container_name, obstacle
from orchestrator.errors import ConfigError, OrchError
from orchestrator.inventory import fold, in_order
from orchestrator.plural import plural

WORD = "pods"
JOB_LABEL = "job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
"""The label and the annotation of a job's pod, as all versions set them; newer ones set others, too."""
_GLOBAL_INDEX = "jobset.sigs.k8s.io/job-global-index"
"""The place of a job among all of a JobSet, since 0.6; else jobs are ordered by their names."""
_ROLES = (
    "training.kubeflow.org/job-role",  # of an MPIJob
    "training.kubeflow.org/replica-type",  # of a PyTorchJob, and of an MPIJob before v2
    "jobset.sigs.k8s.io/replicatedjob-name",  # of a TrainJob
)
_PLACE = ("namespace", "context", "container")
_CLOSE = 0.85
"""A label that is so near to one of these is a slip."""
_GPU = re.compile(r".+/gpu(\.shared)?|nvidia\.com/mig-.+|gpu\.intel\.com/.+")
_COUNT_GPUS = "ls -d /dev/nvidia[0-9]* || { ls /dev/kfd && ls -d /dev/dri/renderD*; } | tail -n +2"
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]*=[A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods by a selector of labels, in a namespace; commands are run in ``container``."""

    selector: str
    namespace: Namespace
    container: str = ""

    def items(self) -> list[dict[str, Any]]:
        """Return the pods as Kubernetes describes them."""
        return self.namespace.items(f"pods?labelSelector={quote(self.selector)}")

    def list_hosts(self, needed: Collection[str] = ()) -> tuple[list[PodHost], list[str]]:
        """Return the pods that run as hosts, in their order, and what each other one is that has not
        ended. Raises ConfigError if none runs, or one of the hosts that are ``needed`` does not.
        """
        where = f"pods with {self.selector} in namespace {self.namespace.name}"
        found, waiting = {}, {}
        for pod in self.items():
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue  # another pod may have its place
            host = _host(pod, self)
            why = obstacle(pod, host.container)
            if why and not host.is_launcher:
                waiting[host.name] = f"{host.pod} {why}"
            else:
                found[host.name] = host
        for name in found:
            waiting.pop(name, None)
        if waiting and (not found or not waiting.keys().isdisjoint(needed)):
            hint = f"kubectl --namespace={self.namespace.name} describe pod says more"
            words = "; ".join(list(waiting.values())[:8])
            raise ConfigError(f"expected running pods: {words}", where=where, hint=hint)
        if not found:
            hint = f"kubectl --namespace={self.namespace.name} get pods --show-labels lists labels"
            raise ConfigError("expected pods that run, got none", where=where, hint=hint)
        named = [found[name] for name in in_order(found)]
        return sorted(named, key=lambda host: host.job_index), list(waiting.values())


@dataclass(frozen=True, slots=True)
class PodHost:
    """A pod as a host. ``machine`` is the node of the cluster that it runs on; ``is_launcher``: it
    starts the ranks of a job in other pods, and has no GPUs for any.
    """

    name: str
    pod: str
    container: str
    address: str
    machine: str
    gpus: int
    is_launcher: bool = False
    job_index: int = 0


def parse_source(text: str) -> Pods:
    """Return the pods that ``LABEL=VALUE,…,namespace=…,context=…,container=…`` means."""
    place: dict[str, str] = {}
    terms = []
    for word in text.split(","):
        name, equals, value = word.partition("=")
        meant = get_close_matches(name, _PLACE, 1, _CLOSE)
        if equals and value and name in _PLACE:
            place[name] = value
        elif meant:
            message = f"expected {', '.join(_PLACE)} or a label, got {word[:60]!r}"
            hint = f"did you mean {meant[0]}={value}?"
            raise ConfigError(message, where=f"--hosts {WORD}:", hint=hint)
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
    container = _container(pod, pods.container)
    labels = meta.get("labels", {})
    job = labels.get(JOB_LABEL)
    index = meta.get("annotations", {}).get(INDEX)
    name = f"{job}-{index}" if job and index else meta["name"]
    gpus = gpus_of(container)
    return PodHost(
        name,
        meta["name"],
        container["name"],
        address=pod["status"].get("podIP", ""),
        machine=spec.get("nodeName", ""),
        gpus=gpus,
        is_launcher=not gpus and "launcher" in map(labels.get, _ROLES),
        job_index=int(labels.get(_GLOBAL_INDEX, 0)),
    )


def find_gpus(pods: Pods, hosts: Sequence[PodHost], given: Collection[str]) -> list[PodHost]:
    """Return hosts with the GPUs that pods have without a request that names them, as by a claim of
    a device, or by the runtime's default; but for hosts whose number is ``given``.
    """

    def ask(host: PodHost) -> PodHost:
        if host.gpus or host.name in given:
            return host
        try:
            found = pods.namespace.run(host.pod, host.container, _COUNT_GPUS)
        except OrchError:  # it is told when it is connected to
            return host
        return replace(host, gpus=len(found.split()))

    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(ask, hosts))


def gpus_of(container: Mapping[str, Any], kind: str = "limits") -> int:
    """Return the GPUs, or parts of GPUs, that a container requests, by its ``limits``."""
    limits = container.get("resources", {}).get(kind, {})
    counts = {name: str(count) for name, count in limits.items() if _GPU.fullmatch(name)}
    for name, count in counts.items():
        if not count.isdecimal():
            message = f"expected a whole number for {name}, got {count[:60]!r}"
            raise ConfigError(message, where=f"container {container['name']}: resources.{kind}")
    return sum(map(int, counts.values()))


def _container(pod: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
    """Return the container of a pod in which ranks run. Raises ConfigError if there is none."""
    by_name: dict[str, Mapping[str, Any]] = {one["name"]: one for one in pod["spec"]["containers"]}
    if wanted and wanted not in by_name:
        message = f"expected the container {wanted}, got {fold(by_name)}"
        raise ConfigError(message, where=f"pod {pod['metadata']['name']}")
    return by_name[container_name(pod, wanted)]


def one_for_each_machine(hosts: Sequence[PodHost]) -> tuple[list[PodHost], list[str]]:
    """Return the first pod on each machine, and a sentence for each other one: a node is a machine."""
    first: dict[str, PodHost] = {}
    said = []
    for host in hosts:
        if host.is_launcher:
            said.append(f"{host.name} is left out: it is a launcher without GPUs")
            continue
        other = first.setdefault(host.machine or host.name, host)
        if other is not host:
            said.append(
                f"{host.name} is left out: it is on {host.machine}, as {other.name}, and one machine is one node"
            )
    return list(first.values()), said


def inventory_text(
    pods: Pods, hosts: Sequence[PodHost], base: str, given: Collection[str] = ()
) -> str:
    """Return the inventory of pods; ``base`` is the inventory that lists them, empty without one,
    and ``given`` are the hosts whose number of GPUs it has.
    """
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
        if host.gpus or host.name not in given:
            settings["gpus"] = host.gpus
        settings["vars"] = {name: value for name, value in known.items() if value}
        lines.append(f"  {json.dumps(host.name)}: {json.dumps(settings)}")
    return "\n".join(lines) + "\n"


def describe(hosts: Sequence[PodHost]) -> str:
    """Return pods and their GPUs in words."""
    counts = sorted({host.gpus for host in hosts})
    gpus = " or ".join(plural(count, "GPU") if count else "no GPU" for count in counts)
    return f"{fold(host.name for host in hosts)}, {gpus} each"

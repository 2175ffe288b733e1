"""What separates the tenants of a Kubernetes cluster, as the login of this command sees it: its
rights, its namespace, and what the cluster's API offers. Nothing is created: a review of rights is
an answer and no object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.checks.check import Check, ok, unknown, warning
from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.errors import Interrupted, RunError
from orchestrator.features.audit.catalogue import CATALOGUE
from orchestrator.features.audit.report import HostReport
from orchestrator.inventory import Host

_CURES = {entry.name: entry.cure for entry in CATALOGUE}
_RBAC = "rbac.authorization.k8s.io"
_BEYOND = (
    ("list", "secrets", "", ""),
    ("create", "pods", "", ""),
    ("get", "nodes", "proxy", ""),
    ("create", "clusterrolebindings", "", _RBAC),
    ("impersonate", "users", "", ""),
)
"""Rights in all namespaces, which no tenant of a shared cluster needs."""
_OWN = (
    ("create", "secrets", "", ""),
    ("create", "deployments", "", "apps"),
    ("create", "roles", "", _RBAC),
)
"""Rights in the own namespace, by which a tenant serves itself: charts of helm, roles of its users."""
_ENFORCE = "pod-security.kubernetes.io/enforce"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def audit_pods(
    hosts: Sequence[Host], reports: Mapping[str, HostReport]
) -> tuple[dict[str, dict[str, Any]], list[Check]]:
    """Return what each pod's cluster says, by host, and the checks of pods. A cluster is asked once
    for each namespace.
    """
    told: dict[str, dict[str, Any]] = {}
    checks: list[Check] = []
    asked: dict[Namespace, tuple[dict[str, Any], list[Check]]] = {}
    for host in hosts:
        if host.transport != "kubectl" or host.name not in reports:
            continue
        named = (str(host.vars.get(name, "")) for name in ("pod_namespace", "kube_context"))
        namespace = Namespace.of(*named)
        if namespace not in asked:
            asked[namespace] = _ask(namespace)
        told[host.name], judged = asked[namespace]
        token = reports[host.name].tenant.token
        found = "the token of a service account is mounted" if token else "none is mounted"
        checks.append(_judge(host.name, "pod_token", found, "none" if token else ""))
        checks += [replace(check, host=host.name) for check in judged]
    return told, checks


def _judge(host: str, name: str, found: str, expected: str) -> Check:
    if expected:
        return warning(host, name, found, expected, _CURES[name])
    return ok(host, name, found)


def _ask(namespace: Namespace) -> tuple[dict[str, Any], list[Check]]:
    """Return what a cluster says of itself and of a namespace, and the checks of it."""
    told: dict[str, Any] = {}
    readers: dict[str, Callable[[], Any]] = {
        "beyond": lambda: _rights(namespace, _BEYOND, everywhere=True),
        "own": lambda: _rights(namespace, _OWN),
        "labels": lambda: _labels(namespace),
        "policies": lambda: _names(namespace, "networking.k8s.io/v1", "networkpolicies"),
        "powers": lambda: sorted({p for pod in namespace.items("pods") for p in _powers(pod)}),
        "groups": lambda: _groups(namespace),
        "storage_classes": lambda: _names(namespace, "storage.k8s.io/v1", "storageclasses"),
        "node_labels": lambda: _node_labels(namespace),
        "ingress_classes": lambda: _names(namespace, "networking.k8s.io/v1", "ingressclasses"),
    }
    refused: dict[str, str] = {}
    for name, read in readers.items():
        try:
            told[name] = read()
        except Interrupted:
            raise
        except RunError as error:
            refused[name] = error.message[:200]
    return told, list(_checks(told, refused))


def _checks(told: Mapping[str, Any], refused: Mapping[str, str]) -> Iterator[Check]:
    """Yield the checks of what a cluster says; what it refuses to say is unknown."""
    judges = {
        "pod_rights": ("beyond", _judge_rights),
        "pod_admission": ("powers", _judge_admission),
        "pod_network": ("policies", _judge_policies),
    }
    for name, (key, judge) in judges.items():
        if key in refused:
            yield unknown("", name, refused[key], "a login that may read it; else ask the provider")
        else:
            yield _judge("", name, *judge(told))


def _judge_rights(told: Mapping[str, Any]) -> tuple[str, str]:
    if told["beyond"]:
        return f"may {', '.join(told['beyond'])} in all namespaces", "none of these"
    return "none in other namespaces", ""


def _judge_admission(told: Mapping[str, Any]) -> tuple[str, str]:
    level = told.get("labels", {}).get(_ENFORCE, "")
    found = f"{_ENFORCE}={level}" if level else f"no label {_ENFORCE}"
    if powers := told["powers"]:
        found += f"; pods with {', '.join(powers)}"
    is_strict = level in ("baseline", "restricted")
    return found, "" if is_strict or not powers else "baseline or restricted"


def _judge_policies(told: Mapping[str, Any]) -> tuple[str, str]:
    if told["policies"]:
        return ", ".join(told["policies"]), ""
    return "no NetworkPolicy", "one for the pods of the namespace"


def _rights(
    namespace: Namespace, rights: Sequence[tuple[str, str, str, str]], *, everywhere: bool = False
) -> list[str]:
    return [
        f"{verb} {resource}{f'/{sub}' if sub else ''}"
        for verb, resource, sub, group in rights
        if namespace.has_right(verb, resource, sub, group, everywhere)
    ]


def _labels(namespace: Namespace) -> dict[str, str]:
    found = namespace.get(f"/api/v1/namespaces/{namespace.name}") or {}
    return {
        name: value
        for name, value in found.get("metadata", {}).get("labels", {}).items()
        if name.startswith("pod-security.kubernetes.io/")
    }


def _names(namespace: Namespace, group: str, resource: str) -> list[str]:
    """Return the names of objects, of networkpolicies those of the namespace; the default of
    storage classes with a mark.
    """
    within = f"namespaces/{namespace.name}/" if resource == "networkpolicies" else ""
    found = [item["metadata"] for item in namespace.items(f"/apis/{group}/{within}{resource}")]
    return sorted(
        meta["name"] + " (default)" * (meta.get("annotations", {}).get(_DEFAULT_CLASS) == "true")
        for meta in found
    )


def _node_labels(namespace: Namespace) -> list[str]:
    """Return the names of labels that machines of the cluster have."""
    nodes = namespace.items("/api/v1/nodes")
    return sorted({name for node in nodes for name in node["metadata"].get("labels", {})})


def _groups(namespace: Namespace) -> list[str]:
    found = namespace.get("/apis") or {}
    return sorted(group["name"] for group in found.get("groups", ()))


def _powers(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a pod has that makes it as strong as its machine."""
    spec = pod.get("spec", {})
    yield from (name for name in ("hostPID", "hostIPC") if spec.get(name))
    yield from ("hostPath" for volume in spec.get("volumes", ()) if "hostPath" in volume)
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        if (container.get("securityContext") or {}).get("privileged"):
            yield "privileged"

"""Pods as Kubernetes reports them: what stands in the way of using one, and what became of it.

>>> obstacle({"status": {"phase": "Pending", "conditions": [
...     {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}]}})
'is Pending: 0/4 nodes are available'
>>> obstacle({"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}})
'is Failed: Evicted, low on memory'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.errors import OrchError

_STARTS = ("ContainerCreating", "PodInitializing")


def obstacle(pod: Mapping[str, Any], container: str = "") -> str:
    """Return why no command can be run in a pod, as what the pod is; empty if one can."""
    status = pod.get("status", {})
    phase = status.get("phase", "Unknown")
    reasons = _reasons(status, container)
    if "deletionTimestamp" in pod.get("metadata", {}):
        return _words("is being deleted", reasons)
    state = _container_state(status, container)
    if phase == "Running" and (not state or "running" in state):
        return ""
    return _words(f"is {phase}" if phase != "Running" else "has no running container", reasons)


def deletion(namespace: Namespace, name: str) -> str:
    """Return what happened to a pod that is not there, as far as Kubernetes remembers it."""
    return _words("was deleted, or never existed", last_event(namespace, name))


def last_event(namespace: Namespace, name: str) -> list[str]:
    """Return what happened to an object last; nothing if its user may not read events."""
    try:
        events = namespace.items(f"events?fieldSelector=involvedObject.name={name}")
    except OrchError:
        return []
    return [f"{event.get('reason', '')}, {event.get('message', '')}" for event in events[-1:]]


def _words(text: str, reasons: list[str]) -> str:
    return f"{text}: {'; '.join(reasons)}" if reasons else text


def _container_state(status: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    for one in status.get("containerStatuses", ()):
        if container in ("", one.get("name")):
            state: Mapping[str, Any] = one.get("state", {})
            return state
    return {}


def _reasons(status: Mapping[str, Any], container: str) -> list[str]:
    """Return the reasons that Kubernetes gives for the state of a pod, the weightiest first."""
    found = [status]
    for condition in status.get("conditions", ()):
        is_gone = condition.get("type") == "DisruptionTarget"
        if is_gone or condition.get("status") == "False" and condition.get("message"):
            found.append(condition)
    for name, state in _container_state(status, container).items():
        if name != "running" and state.get("reason") not in _STARTS:
            found.append(state)
    texts = []
    for item in found:
        reason = "" if item.get("reason") == "Unschedulable" else item.get("reason", "")
        if words := [word for word in (reason, item.get("message", "")) if word]:
            texts.append(", ".join(words).rstrip("."))
    return list(dict.fromkeys(texts))

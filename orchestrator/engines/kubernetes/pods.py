r"""Pods as Kubernetes reports them: what stands in the way of using one, and what became of it.

>>> obstacle({"status": {"phase": "Pending", "conditions": [
...     {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}]}})
'is Pending: 0/4 nodes are available'
>>> obstacle({"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}})
'is Failed: Evicted, low on memory'
>>> ended = {"exitCode": 3, "reason": "Error", "message": "start\nno such license\n"}
>>> states = [{"name": "log", "state": {"running": {}}}, {"name": "main", "state": {"terminated": ended}}]
>>> obstacle({"spec": {"containers": [{"name": "main"}, {"name": "log"}]},
...     "status": {"phase": "Failed", "containerStatuses": states}})
'is Failed: its command has ended, main exited with 3: no such license'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.errors import OrchError

_DEFAULT = "kubectl.kubernetes.io/default-container"
_STARTS = ("ContainerCreating", "PodInitializing")
_ENDS = ("", "Completed", "Error")


def container_name(pod: Mapping[str, Any], wanted: str = "") -> str:
    """Return the container of a pod, or of a template, in which ranks run: the one that is wanted,
    else the one that kubectl takes by default.
    """
    names = [one["name"] for one in pod.get("spec", {}).get("containers", ())]
    default = pod.get("metadata", {}).get("annotations", {}).get(_DEFAULT, "")
    return wanted or (default if default in names else "".join(names[:1]))


def obstacle(pod: Mapping[str, Any], container: str = "") -> str:
    """Return why no command can be run in a pod, as what the pod is; empty if one can."""
    status = pod.get("status", {})
    phase = status.get("phase", "Unknown")
    reasons = _reasons(pod, container)
    meta = pod.get("metadata", {})
    if "deletionTimestamp" in meta:
        grace_s = meta.get("deletionGracePeriodSeconds")
        grace = [f"grace period {grace_s} s"] if grace_s else []
        return _words("is being deleted", [*grace, *reasons])
    state = _container_state(pod, container)
    if phase == "Running" and (not state or "running" in state):
        return ""
    return _words(f"is {phase}" if phase != "Running" else "has no running container", reasons)


def ending(pod: Mapping[str, Any], container: str = "") -> str:
    """Return how the command of a pod has ended, with its last line if it is known; empty if it has
    not.
    """
    state = _container_state(pod, container).get("terminated")
    if not state:
        return ""
    reason, lines = state.get("reason", ""), state.get("message", "").strip().splitlines()
    why = [] if reason in _ENDS else [reason]
    words = f"{container_name(pod, container)} exited with {state.get('exitCode')}"
    return ": ".join([", ".join([words, *why]), *lines[-1:]])


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


def _container_state(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    name = container_name(pod, container)
    for one in pod.get("status", {}).get("containerStatuses", ()):
        if name in ("", one.get("name")):
            state: Mapping[str, Any] = one.get("state", {})
            return state
    return {}


def _reasons(pod: Mapping[str, Any], container: str) -> list[str]:
    """Return the reasons that Kubernetes gives for the state of a pod, the weightiest first."""
    status, ended = pod.get("status", {}), ending(pod, container)
    found = [status]
    for condition in status.get("conditions", ()):
        is_gone = condition.get("type") == "DisruptionTarget"
        is_false = condition.get("status") == "False" and condition.get("message")
        if is_gone or is_false and not ended:
            found.append(condition)
    for name, state in _container_state(pod, container).items():
        if name == "waiting" and state.get("reason") not in _STARTS:
            found.append(state)
    texts = []
    for item in found:
        reason = "" if item.get("reason") == "Unschedulable" else item.get("reason", "")
        if words := [word for word in (reason, item.get("message", "")) if word]:
            texts.append(", ".join(words).rstrip("."))
    if ended:
        texts.append(f"its command has ended, {ended}")
    return list(dict.fromkeys(texts))

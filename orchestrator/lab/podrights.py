"""Rights in the stand-in for a Kubernetes cluster: what a role may do, and reviews that ask for it.

A right is a verb and what it is about, as RBAC says it:

>>> of_route("POST", "/api/v1/namespaces/{ns}/pods/{name}/exec")
('create', 'pods/exec')
>>> of_route("GET", "/apis/batch/v1/namespaces/{ns}/jobs")
('list', 'jobs.batch')
>>> of_route("GET", "/version")
('get', '/version')
"""

from __future__ import annotations

from typing import Any

Right = tuple[str, str]

_VERBS = {"PUT": "update", "POST": "create", "DELETE": "delete", "PATCH": "patch"}
_ATTRIBUTES = {
    1: (
        "resourceAttributes",
        {1: "namespace", 2: "verb", 3: "group", 5: "resource", 6: "subresource"},
    ),
    2: ("nonResourceAttributes", {1: "path", 2: "verb"}),
}
"""The parts of a review's spec that matter here, and their fields, by their numbers in protobuf."""


def of_route(method: str, path: str) -> Right:
    """Return the right that a route of the API needs."""
    prefix, _, rest = path.partition("/namespaces/{ns}/")
    if not rest:
        return _VERBS.get(method, "get"), path
    group = prefix.split("/")[2] if prefix.startswith("/apis/") else ""
    verb = _VERBS.get(method, "get" if "{name}" in rest else "list")
    return verb, _name_target(rest.replace("/{name}", ""), group)


def _name_target(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def has_right(role: str, right: Right, *, everywhere: bool = False) -> bool:
    """Whether a role has a right that exists: ``admin`` has all, ``viewer`` those to read,
    ``tenant`` all in its namespace and none in others, and everybody those that are about no
    resource.
    """
    verb, target = right
    is_read = verb in ("get", "list") and target != "pods/exec"
    if target.startswith("/") or role == "admin":
        return True
    return role == "viewer" and is_read or role == "tenant" and not everywhere


def is_everywhere(spec: dict[str, Any]) -> bool:
    """Whether a SelfSubjectAccessReview asks about all namespaces."""
    return not spec.get("resourceAttributes", {}).get("namespace")


def of_review(spec: dict[str, Any]) -> Right:
    """Return the right that a SelfSubjectAccessReview asks for."""
    asked = spec.get("resourceAttributes")
    if asked is None:
        path = spec.get("nonResourceAttributes", {})
        return path.get("verb", ""), path.get("path", "")
    named = [asked.get("resource", ""), asked.get("subresource", "")]
    return asked.get("verb", ""), _name_target(
        "/".join(filter(None, named)), asked.get("group", "")
    )


def read_protobuf(body: bytes) -> dict[str, Any]:
    """Return the spec of a SelfSubjectAccessReview that kubectl has sent as protobuf."""
    envelope = _fields(body.removeprefix(b"k8s\0"))
    spec = _fields(_fields(envelope[2])[2])
    found = {}
    for number, data in spec.items():
        part, names = _ATTRIBUTES[number]
        values = _fields(data)
        found[part] = {name: values.get(i, b"").decode() for i, name in names.items()}
    return found


def _fields(data: bytes) -> dict[int, bytes]:
    """Return the fields of a message of protobuf by number; all of them have a length."""
    found, at = {}, 0
    while at < len(data):
        number, length, shift = data[at] >> 3, 0, 0
        more = True
        while more:
            at += 1
            length |= (data[at] & 0x7F) << shift
            shift, more = shift + 7, data[at] > 0x7F
        found[number] = data[at + 1 : at + 1 + length]
        at += 1 + length
    return found

"""The container in which a host runs launch scripts: ``container:`` of a host, a group or the
defaults, and ``--container``.

One of three says what it is: an ``image`` that an engine starts for each run, the ``name`` of a
container that runs already, or ``wrap``, any command that is put in front. Everything else is how
it is started. More specific values override others key by key, except these three, of which the
most specific one counts alone.

>>> general = {"engine": "docker", "image": "a", "limits": {"memlock": "unlimited"}}
>>> merge_values([general, {"name": "b"}])
{'engine': 'docker', 'limits': {'memlock': 'unlimited'}, 'name': 'b'}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.errors import ConfigError, nearest

OBJECTS = ("docker", "podman")
"""Engines whose containers are objects of their own: with a name, labels, and processes that are
not the client's children.
"""
ENGINES = (*OBJECTS, "apptainer", "enroot")
NO_CONTAINER = "none"
"""The choice of ``--container`` that runs on the nodes themselves, whatever the inventory says."""
_KINDS = ("image", "name", "wrap")
_OF_OBJECTS = ("network", "ipc", "pid", "shm_gib", "limits", "devices", "user")
_OF_A_START = ("network", "ipc", "pid", "shm_gib", "limits", "devices", "mounts", "gpus")
IMAGE = re.compile(r"[A-Za-z0-9/._~][^\s,]*")
"""An image: of a registry, of this node, or a file or folder."""


def merge_values(values: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of a container from the most general to the most specific ones."""
    result: dict[str, Any] = {}
    for value in values:
        if any(kind in value for kind in _KINDS):
            result = {key: old for key, old in result.items() if key not in _KINDS}
        result |= value
    return result


def chosen(text: str, where: str) -> dict[str, Any]:
    """Return the values that ``ENGINE:IMAGE`` stands for, a choice of the command line or a run
    file. Raises ConfigError.

    >>> chosen("podman:registry.example/pt:24.05", "--container")
    {'engine': 'podman', 'image': 'registry.example/pt:24.05'}
    """
    engine, colon, image = text.partition(":")
    if engine in ENGINES and IMAGE.fullmatch(image):
        return {"engine": engine, "image": image}
    hint = f"ENGINE is one of {', '.join(ENGINES)}{nearest(engine, ENGINES)}; name a running container in the inventory instead"
    raise ConfigError(
        f"expected ENGINE:IMAGE or {NO_CONTAINER}, got {text!r}", where=where, hint=hint
    )


def check_choice(text: str, where: str) -> None:
    """Raise ConfigError unless a text is ``ENGINE:IMAGE`` or ``none``."""
    if text != NO_CONTAINER:
        chosen(text, where)


def check(values: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError if values that are written together contradict each other."""
    kinds = [kind for kind in _KINDS if kind in values]
    if len(kinds) > 1:
        raise ConfigError(
            f"expected one of {', '.join(_KINDS)}, got {' and '.join(kinds)}", where=where
        )
    if "wrap" in values and (others := [key for key in values if key not in ("wrap", "python")]):
        hint = "put everything into the command itself"
        raise ConfigError(
            f"expected only python: beside wrap:, got {', '.join(others)}", where=where, hint=hint
        )
    if "name" in values and (others := [key for key in _OF_A_START if key in values]):
        hint = "set them where the container is started"
        raise ConfigError(f"expected no {', '.join(others)} beside name:", where=where, hint=hint)
    if values.get("engine", OBJECTS[0]) not in OBJECTS and (
        others := [key for key in _OF_OBJECTS if key in values]
    ):
        hint = (
            f"programs in {values['engine']} have the user, network, limits and devices of the node"
        )
        raise ConfigError(
            f"expected engine: docker or podman for {', '.join(others)}", where=where, hint=hint
        )
    if "shm_gib" in values and values.get("ipc") != "private":
        hint = "with ipc: host the container uses the node's /dev/shm"
        raise ConfigError("expected ipc: private beside shm_gib:", where=where, hint=hint)


def check_whole(values: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError if the merged values of a host do not say which engine runs its image or
    container.
    """
    kind = next((kind for kind in ("image", "name") if kind in values), None)
    if kind and "engine" not in values:
        hint = f"one of {', '.join(ENGINES)}"
        raise ConfigError(f"expected engine: beside {kind}:, got none", where=where, hint=hint)
    if kind == "name" and values["engine"] not in OBJECTS:
        hint = "give the image: each run starts a container of its own"
        raise ConfigError(
            f"expected engine: docker or podman beside name:, got {values['engine']}",
            where=where,
            hint=hint,
        )

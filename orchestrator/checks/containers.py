"""Checks of the container in which runs start: whether it does, what it was given, and what earlier
runs have left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from orchestrator.checks.check import Check, failure, ok, warning
from orchestrator.checks.facts import ContainerFacts, NodeFacts
from orchestrator.devices.vendor import vendor_of
from orchestrator.inventory import Host
from orchestrator.plural import plural

_NO_FOLDER = re.compile(
    r"\bchdir\b|\bcwd\b|\bworkdir\b.*not exist|working directory", re.IGNORECASE
)
"""What docker, podman, runc and crun say of a folder of the host that a container does not have."""
_NO_IDS = re.compile(r"\bsub[ug]id|\bnew[ug]idmap\b|(?:IDs|UIDs or GIDs) available", re.IGNORECASE)
"""What podman and its helpers say if the login user has no user ids to give to a container."""


def container_checks(host: Host, facts: NodeFacts) -> list[Check]:
    """Return the checks of a host's container; none for a host whose runs start in none."""
    container = facts.container
    if container is None:
        return []
    return [
        _check_start(host, facts, container)
        or _check_devices(host, facts, container)
        or _fit(host, container),
        *_leftovers(host, container, facts.containers_left),
    ]


def _cure(error: str, container: ContainerFacts) -> str:
    """Return advice for a container in which nothing could be run."""
    if _NO_IDS.search(error):
        return (
            "give the login user ids for containers: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
            " on the node, then podman system migrate as that user"
        )
    get = "run it by hand on the node"
    if container.image:
        get = f"get the image onto the node ({container.engine} pull)"
    return f"{get}, or set container.python to an interpreter inside"


def _check_start(host: Host, facts: NodeFacts, container: ContainerFacts) -> Check | None:
    """Return a failed check if no program could be run inside, or runs would not find their files
    there.
    """
    if _NO_FOLDER.search(
        container.error
    ):  # the engine starts nothing in a folder that is not there
        folder = facts.workdir or "the work directory"
        hint = f"start it with that folder mounted at the same path (--volume {folder}:{folder}), as the login user"
        return failure(
            host.name, "container", f"no {folder} inside", "the work directory of the host", hint
        )
    if error := container.error:
        hint = _cure(error, container)
        return failure(
            host.name,
            "container",
            error,
            f"{container.what} that starts, with Python 3.6 or newer",
            hint,
        )
    if not container.workdir:
        hint = "start it with the host's work directory mounted at the same path, as the login user"
        return failure(
            host.name,
            "container",
            "no writable work directory inside",
            "the work directory of the host",
            hint,
        )
    if not container.same_user:
        hint = "set user: login; a container that runs already must have been started for the login user"
        owner = f"files made inside belong to user {container.owner}"
        return failure(
            host.name, "container", owner, "the login user, who reads and removes them", hint
        )
    return None


def _check_devices(host: Host, facts: NodeFacts, container: ContainerFacts) -> Check | None:
    """Return a check if devices of the node are missing inside."""
    devices, gpus, vendor = container.devices, facts.gpus, vendor_of(facts.gpu_tool)
    inside = devices.get(vendor.name, 0)
    if host.device == "cuda" and gpus is not None and inside < len(gpus):
        return failure(
            host.name,
            "container",
            f"{plural(round(inside), 'GPU')} inside",
            plural(len(gpus), "GPU"),
            vendor.hints.container,
        )
    if facts.infiniband_gbit and not devices.get("infiniband"):
        hint = "add /dev/infiniband to container: devices:; without it NCCL falls back to sockets"
        return warning(
            host.name, "container", "no InfiniBand devices inside", "those of the node", hint
        )
    return None


def _fit(host: Host, container: ContainerFacts) -> Check:
    words = [
        container.what,
        *([container.digest[:19]] if container.digest else []),
    ]
    words += [f"Python {container.python}"] + ([f"NCCL {container.nccl}"] if container.nccl else [])
    return ok(host.name, "container", ", ".join(words))


def _leftovers(host: Host, container: ContainerFacts, left: Sequence[Sequence[Any]]) -> list[Check]:
    """Return a check of containers with the label of a run: failed if one still runs, as it holds
    what it was given.
    """
    if not left:
        return []
    listed = ", ".join(f"{name} ({state})" for name, state in left)
    engine = container.engine
    hint = f"orch cancel removes what a run has left; if that fails, {engine} rm -f {' '.join(str(name) for name, _ in left)}"
    verdict = warning
    if any(str(state).lower().startswith(("running", "up", "paused")) for _, state in left):
        verdict = failure
    return [verdict(host.name, "leftovers", listed, "no containers of earlier runs", hint)]

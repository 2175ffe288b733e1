"""Control groups of a lab's nodes on this machine: one in which each node starts, and those that
freeze or limit a node.

A group is made below the caller's own group, so that a lab stays within the limits that are set for
it; in the unified hierarchy below the closest group that delegates the controller. Its name
contains the lab's marker, so that `release` finds it even if the process that made it was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import ConfigError, RunError
from orchestrator.lab.state import Lab
from orchestrator.procs import own_groups

_HOUSING = "pids"
_SETTLE_S = 5.0


def release(lab: Lab) -> None:
    """Remove every group of a lab, so that its processes have no limits and can be ended."""
    for controller in ("freezer", "memory", "cpu"):
        with suppress(OSError, ConfigError):
            parent, unified = parent_group(controller)
            for group in parent.glob(group_name(lab, "*")):
                if controller == "freezer":
                    thaw_group(group, unified)
                dissolve(group)


def house(lab: Lab, node: str) -> Path | None:
    """Make the group in which a node starts and makes groups of its own, empty as after a boot;
    return None if impossible.

    Not made in the unified hierarchy, where it would get in the way of groups that freeze or limit
    a node.
    """
    try:
        parent, unified = parent_group(_HOUSING)
        if unified:
            return None
        _remove_empty(parent / group_name(lab, node))
        (parent / group_name(lab, node)).mkdir(exist_ok=True)
    except (OSError, ConfigError):
        return None
    return parent / group_name(lab, node)


def clear(lab: Lab) -> None:
    """Remove the groups of a lab's nodes and the groups that the nodes made; their processes must
    have ended.
    """
    with suppress(ConfigError):
        for group in parent_group(_HOUSING)[0].glob(group_name(lab, "*")):
            _remove_empty(group)


def _remove_empty(group: Path) -> None:
    for path, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()


def group_name(lab: Lab, node: str) -> str:
    """Return the name of a node's group."""
    return f"orch-lab-{lab.marker}-{node}"


def move_processes(pids: Iterable[int], group: Path) -> None:
    """Put processes into a group."""
    for pid in pids:
        with suppress(OSError):  # it has ended
            (group / "cgroup.procs").write_text(str(pid))


def thaw_group(group: Path, unified: bool) -> None:
    """Let the frozen processes of a group go on."""
    file, text = ("cgroup.freeze", "0") if unified else ("freezer.state", "THAWED")
    (group / file).write_text(text)


def dissolve(group: Path) -> None:
    """Move the processes of a group to its parent, and remove the group."""

    def is_gone() -> bool:
        move_processes(
            map(int, (group / "cgroup.procs").read_text(encoding="ascii").split()),
            group.parent,
        )
        with suppress(OSError):
            group.rmdir()
        return not group.is_dir()

    wait_until(is_gone, f"{group} did not become empty")


def wait_until(condition: Callable[[], bool], failure: str) -> None:
    """Wait until a group is as it should be. Raises RunError after some seconds."""
    deadline = time.monotonic() + _SETTLE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RunError(f"{failure} within {_SETTLE_S:g} s", kind="node_unfit", where="lab")
        time.sleep(0.005)


def parent_group(controller: str) -> tuple[Path, bool]:
    """Return the group under which a node's group is made, and whether it is in the unified
    hierarchy.
    """
    groups = sorted(
        own_groups(controller), key=lambda group: group[2]
    )  # a hierarchy of the controller's own comes first
    for current, top, unified in groups:
        if not unified:
            return current, False
        for group in (current, *current.parents):
            if controller == "freezer" or controller in _delegated_controllers(group):
                return group, True
            if group == top:
                break
    raise ConfigError(
        "this machine has no control group hierarchy for it, or does not delegate one to this process"
    )


def _delegated_controllers(group: Path) -> list[str]:
    try:
        return (group / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return []

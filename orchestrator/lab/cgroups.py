"""Control groups of a lab's nodes on this machine: one in which each node starts, and those that
freeze or limit a node, or limit a pod.

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
PERIOD_US, LEAST_QUOTA_US = 100_000, 1000
"""In which a limit of processor time is counted, the kernel's own default; the least that it takes."""


def release(lab: Lab) -> None:
    """Remove every group of a lab, so that its processes have no limits and can be ended."""
    for controller in ("freezer", "memory", "cpu"):
        with suppress(OSError, ConfigError):
            parent, unified = parent_group(controller)
            for group in parent.glob(group_name(lab, "*")):
                if controller == "freezer":
                    thaw_group(group, unified)
                dissolve_all(group)


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
    """Remove the groups of a lab's nodes and pods and the groups that these made; their processes
    must have ended.
    """
    for controller in (_HOUSING, "cpu"):
        with suppress(ConfigError):
            for group in parent_group(controller)[0].glob(group_name(lab, "*")):
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


def pod_group(lab: Lab, pod: str) -> Path | None:
    """Return the group that limits a pod, made or not; None if this machine can have none."""
    with suppress(ConfigError):
        return parent_group("cpu")[0] / group_name(lab, pod)
    return None


def limit_group(group: Path, quota_us: int, period_us: int = PERIOD_US) -> None:
    """Limit the processor time of a group's processes in each period."""
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def hierarchy_of(group: Path) -> Path:
    """Return where the hierarchy of a group is mounted."""
    return next(path for path in group.parents if path.is_mount())


def starting_in(group: Path) -> list[str]:
    """Return the argv prefix that runs a program in a group."""
    return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group)]


def dissolve_all(group: Path) -> None:
    """Dissolve a group and those that its processes have made in it."""
    for path, _, _ in os.walk(group, topdown=False):
        dissolve(Path(path))


def dissolve(group: Path) -> None:
    """Move the processes of a group to its parent, and remove the group."""

    def is_gone() -> bool:
        with suppress(OSError):  # another process has removed it
            words = (group / "cgroup.procs").read_text(encoding="ascii").split()
            move_processes(map(int, words), group.parent)
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

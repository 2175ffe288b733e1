"""A node's processes as one control group of this machine: frozen by the kernel, or limited in
memory or processor time.

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

__all__ = [
    "PERIOD_US",
    "clear",
    "freeze",
    "house",
    "limit_cpu",
    "limit_memory",
    "obstacle",
    "release",
    "thaw",
]

PERIOD_US = 100_000
"""In which a limit of processor time is counted; the kernel's own default."""
_HOUSING = "pids"
_SETTLE_S = 5.0


def obstacle(controller: str) -> str:
    """Return the reason why ``freezer``, ``memory`` or ``cpu`` cannot be used on this machine;
    empty if it can.
    """
    try:
        trial = _parent(controller)[0] / f"orch-lab-trial-{os.getpid()}"
        trial.mkdir()
        trial.rmdir()
    except (OSError, ConfigError) as error:
        return f"no control group for {controller}: {error}"
    return ""


def freeze(lab: Lab, node: str, members: Callable[[], Iterable[int]]) -> None:
    """Freeze a node's processes, without a signal that any of them could notice."""
    group, unified = _enter(lab, node, "freezer", members)
    if unified:
        _write(group / "cgroup.freeze", "1")
        _settle(
            lambda: "frozen 1" in (group / "cgroup.events").read_text(encoding="ascii"),
            f"{node} did not freeze",
        )
    else:
        _write(group / "freezer.state", "FROZEN")
        _settle(
            lambda: (group / "freezer.state").read_text(encoding="ascii").strip() == "FROZEN",
            f"{node} did not freeze",
        )


def thaw(lab: Lab, node: str) -> None:
    """Resume a frozen node and remove its group. Does nothing without a group."""
    if obstacle("freezer"):
        return
    parent, unified = _parent("freezer")
    group = parent / _name(lab, node)
    if group.is_dir():
        _thaw(group, unified)
        _dissolve(group)


def limit_memory(
    lab: Lab, node: str, size_bytes: int, members: Callable[[], Iterable[int]]
) -> None:
    """Limit the total memory of a node's processes; beyond it the kernel kills one of them."""
    group, unified = _enter(lab, node, "memory", members)
    _write(group / ("memory.max" if unified else "memory.limit_in_bytes"), str(size_bytes))
    with suppress(OSError):  # a kernel that does not account for swap
        _write(
            group / ("memory.swap.max" if unified else "memory.memsw.limit_in_bytes"),
            "0" if unified else str(size_bytes),
        )


def limit_cpu(
    lab: Lab,
    node: str,
    percent: float,
    members: Callable[[], Iterable[int]],
    period_us: int = PERIOD_US,
) -> None:
    """Limit all processes of a node together to ``percent`` of one core in each period; the kernel
    takes 1 ms or more.
    """
    group, unified = _enter(lab, node, "cpu", members)
    quota = round(period_us * percent / 100)
    if unified:
        _write(group / "cpu.max", f"{quota} {period_us}")
    else:
        _write(group / "cpu.cfs_period_us", str(period_us))
        _write(group / "cpu.cfs_quota_us", str(quota))


def release(lab: Lab) -> None:
    """Remove every group of a lab, so that its processes have no limits and can be ended."""
    for controller in ("freezer", "memory", "cpu"):
        with suppress(OSError, ConfigError):
            parent, unified = _parent(controller)
            for group in parent.glob(_name(lab, "*")):
                if controller == "freezer":
                    _thaw(group, unified)
                _dissolve(group)


def house(lab: Lab, node: str) -> Path | None:
    """Make the group in which a node starts and makes groups of its own, empty as after a boot;
    return None if impossible.

    Not made in the unified hierarchy, where it would get in the way of `freeze`, `limit_memory` and
    `limit_cpu`.
    """
    try:
        parent, unified = _parent(_HOUSING)
        if unified:
            return None
        _remove_empty(parent / _name(lab, node))
        (parent / _name(lab, node)).mkdir(exist_ok=True)
    except (OSError, ConfigError):
        return None
    return parent / _name(lab, node)


def clear(lab: Lab) -> None:
    """Remove the groups of a lab's nodes and the groups that the nodes made; their processes must
    have ended.
    """
    with suppress(ConfigError):
        for group in _parent(_HOUSING)[0].glob(_name(lab, "*")):
            _remove_empty(group)


def _remove_empty(group: Path) -> None:
    for path, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()


def _name(lab: Lab, node: str) -> str:
    return f"orch-lab-{lab.marker}-{node}"


def _enter(
    lab: Lab, node: str, controller: str, members: Callable[[], Iterable[int]]
) -> tuple[Path, bool]:
    """Put a node's processes into its group, which is made if necessary; their later children start
    in it.
    """
    try:
        parent, unified = _parent(controller)
        group = parent / _name(lab, node)
        group.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"no control group for {controller}: {error}") from error
    for _ in range(2):  # twice, for a child that was forked while the first list was made
        _move(members(), group)
    return group, unified


def _move(pids: Iterable[int], group: Path) -> None:
    for pid in pids:
        with suppress(OSError):  # it has ended
            _write(group / "cgroup.procs", str(pid))


def _thaw(group: Path, unified: bool) -> None:
    _write(group / ("cgroup.freeze" if unified else "freezer.state"), "0" if unified else "THAWED")


def _dissolve(group: Path) -> None:
    """Move the processes of a group to its parent, and remove the group."""

    def gone() -> bool:
        _move(
            (int(word) for word in (group / "cgroup.procs").read_text(encoding="ascii").split()),
            group.parent,
        )
        with suppress(OSError):
            group.rmdir()
        return not group.is_dir()

    _settle(gone, f"{group} did not become empty")


def _settle(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + _SETTLE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RunError(f"{failure} within {_SETTLE_S:g} s", kind="node_unfit", where="lab")
        time.sleep(0.005)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def _parent(controller: str) -> tuple[Path, bool]:
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
            if controller == "freezer" or controller in _delegated(group):
                return group, True
            if group == top:
                break
    raise ConfigError(
        "this machine has no control group hierarchy for it, or does not delegate one to this process"
    )


def _delegated(group: Path) -> list[str]:
    try:
        return (group / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return []

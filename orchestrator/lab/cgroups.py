"""A node's processes as one control group of this machine: frozen by the kernel, short of memory, or short of processor time.

A group lies under the one that the caller is in, so that a lab never leaves the bounds that somebody set for it; with the
unified hierarchy under the nearest one that hands the controller on. It carries the lab's marker in its name, by which
`release` finds it also when whoever made it was killed.
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

__all__ = ["clear", "freeze", "house", "limit_cpu", "limit_memory", "obstacle", "release", "thaw"]

_HOUSING = "pids"
_PERIOD_US = 100_000
_SETTLE_S = 5.0


def obstacle(controller: str) -> str:
    """Say why ``freezer``, ``memory`` or ``cpu`` cannot be used on this machine; empty where it can."""
    try:
        trial = _parent(controller)[0] / f"orch-lab-trial-{os.getpid()}"
        trial.mkdir()
        trial.rmdir()
    except (OSError, ConfigError) as error:
        return f"no control group for {controller}: {error}"
    return ""


def freeze(lab: Lab, node: str, members: Callable[[], Iterable[int]]) -> None:
    """Stop a node's processes where they are, without a signal that any of them could see."""
    group, unified = _enter(lab, node, "freezer", members)
    if unified:
        _write(group / "cgroup.freeze", "1")
        _settle(lambda: "frozen 1" in (group / "cgroup.events").read_text(encoding="ascii"), f"{node} does not freeze")
    else:
        _write(group / "freezer.state", "FROZEN")
        _settle(lambda: (group / "freezer.state").read_text(encoding="ascii").strip() == "FROZEN", f"{node} does not freeze")


def thaw(lab: Lab, node: str) -> None:
    """Let a frozen node go on, and take its group away. Does nothing where there is none."""
    if obstacle("freezer"):
        return
    parent, unified = _parent("freezer")
    group = parent / _name(lab, node)
    if group.is_dir():
        _thaw(group, unified)
        _dissolve(group)


def limit_memory(lab: Lab, node: str, size_bytes: int, members: Callable[[], Iterable[int]]) -> None:
    """Let a node's processes have no more memory than this in all; the kernel kills one of them for more."""
    group, unified = _enter(lab, node, "memory", members)
    _write(group / ("memory.max" if unified else "memory.limit_in_bytes"), str(size_bytes))
    with suppress(OSError):  # a kernel that does not count what is swapped out
        _write(group / ("memory.swap.max" if unified else "memory.memsw.limit_in_bytes"), "0" if unified else str(size_bytes))


def limit_cpu(lab: Lab, node: str, percent: float, members: Callable[[], Iterable[int]]) -> None:
    """Let a node's processes have no more than this share of one core in all."""
    group, unified = _enter(lab, node, "cpu", members)
    quota = round(_PERIOD_US * percent / 100)
    if unified:
        _write(group / "cpu.max", f"{quota} {_PERIOD_US}")
    else:
        _write(group / "cpu.cfs_period_us", str(_PERIOD_US))
        _write(group / "cpu.cfs_quota_us", str(quota))


def release(lab: Lab) -> None:
    """Take every group of a lab away, so that its processes are under no limit and can be ended."""
    for controller in ("freezer", "memory", "cpu"):
        with suppress(OSError, ConfigError):
            parent, unified = _parent(controller)
            for group in parent.glob(_name(lab, "*")):
                if controller == "freezer":
                    _thaw(group, unified)
                _dissolve(group)


def house(lab: Lab, node: str) -> Path | None:
    """Make the group that a node starts in and makes groups of its own in, empty as after a boot; None where that cannot be.

    In the unified hierarchy it would stand in the way of `freeze` and its like, so there is none.
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
    """Remove the groups that a lab's nodes lived in, and those that were made there; nothing may live in them any more."""
    with suppress(ConfigError):
        for group in _parent(_HOUSING)[0].glob(_name(lab, "*")):
            _remove_empty(group)


def _remove_empty(group: Path) -> None:
    for path, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()


def _name(lab: Lab, node: str) -> str:
    return f"orch-lab-{lab.marker}-{node}"


def _enter(lab: Lab, node: str, controller: str, members: Callable[[], Iterable[int]]) -> tuple[Path, bool]:
    """Put a node's processes into its group, made if need be; what they start later is in it by itself."""
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
    """Send the processes of a group back to the one above, and remove it."""

    def gone() -> bool:
        _move((int(word) for word in (group / "cgroup.procs").read_text(encoding="ascii").split()), group.parent)
        with suppress(OSError):
            group.rmdir()
        return not group.is_dir()

    _settle(gone, f"{group} keeps processes")


def _settle(claim: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _SETTLE_S
    while not claim():
        if time.monotonic() > deadline:
            raise RunError(f"{otherwise} within {_SETTLE_S:g} s", kind="node_unfit", where="lab")
        time.sleep(0.005)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def _parent(controller: str) -> tuple[Path, bool]:
    """Return the group under which a node's is made, and whether it is of the unified hierarchy."""
    found = sorted(own_groups(controller), key=lambda group: group[2])  # a hierarchy of the controller's own comes first
    for here, top, unified in found:
        if not unified:
            return here, False
        for group in (here, *here.parents):
            if controller == "freezer" or controller in _handed_on(group):
                return group, True
            if group == top:
                break
    raise ConfigError("the machine has no such hierarchy, or hands it to nobody here")


def _handed_on(group: Path) -> list[str]:
    try:
        return (group / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return []

"""Freeze a node of a lab, or limit its memory or processor time, by a control group of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.lab.cgroups import (
    PERIOD_US,
    dissolve,
    group_name,
    limit_group,
    move_processes,
    parent_group,
    thaw_group,
    wait_until,
)
from orchestrator.lab.state import Lab


def obstacle(controller: str) -> str:
    """Return the reason why ``freezer``, ``memory`` or ``cpu`` cannot be used on this machine;
    empty if it can.
    """
    try:
        trial = parent_group(controller)[0] / f"orch-lab-trial-{os.getpid()}"
        trial.mkdir()
        trial.rmdir()
    except (OSError, ConfigError) as error:
        return f"no control group for {controller}: {error}"
    return ""


def freeze(lab: Lab, node: str, members: Callable[[], Iterable[int]]) -> None:
    """Freeze a node's processes, without a signal that any of them could notice."""
    group, unified = _enter(lab, node, "freezer", members)
    if unified:
        write(group / "cgroup.freeze", "1")
        wait_until(
            lambda: "frozen 1" in (group / "cgroup.events").read_text(encoding="ascii"),
            f"{node} did not freeze",
        )
    else:
        write(group / "freezer.state", "FROZEN")
        wait_until(
            lambda: (group / "freezer.state").read_text(encoding="ascii").strip() == "FROZEN",
            f"{node} did not freeze",
        )


def thaw(lab: Lab, node: str) -> None:
    """Resume a frozen node and remove its group. Does nothing without a group."""
    if obstacle("freezer"):
        return
    parent, unified = parent_group("freezer")
    group = parent / group_name(lab, node)
    if group.is_dir():
        thaw_group(group, unified)
        dissolve(group)


def limit_memory(
    lab: Lab, node: str, size_bytes: int, members: Callable[[], Iterable[int]]
) -> None:
    """Limit the total memory of a node's processes; beyond it the kernel kills one of them."""
    group, unified = _enter(lab, node, "memory", members)
    write(group / ("memory.max" if unified else "memory.limit_in_bytes"), str(size_bytes))
    with suppress(OSError):  # a kernel that does not account for swap
        write(
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
    group, _ = _enter(lab, node, "cpu", members)
    limit_group(group, round(period_us * percent / 100), period_us)


def _enter(
    lab: Lab, node: str, controller: str, members: Callable[[], Iterable[int]]
) -> tuple[Path, bool]:
    """Put a node's processes into its group, which is made if necessary; their later children start
    in it.
    """
    try:
        parent, unified = parent_group(controller)
        group = parent / group_name(lab, node)
        group.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"no control group for {controller}: {error}") from error
    for _ in range(2):  # twice, for a child that was forked while the first list was made
        move_processes(members(), group)
    return group, unified


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")

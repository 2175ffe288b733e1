"""Break the machines of a lab from outside, by qemu's control socket, and from inside as their root.

`reboot`, `panic`, `freeze` and `link` need nothing of the machine. A panicked machine stays so until
`reboot`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.lab import Lab, Machines
from orchestrator.lab.machines import require
from orchestrator.lab.programs import choose_kind
from tests.support import faultlab, judge

_LOGINS, _NO_LOGIN = 10, 255
"""On a busy computer a machine may not answer a login in time; a login is then made again."""


def wanted(*, nfs: bool = False) -> Machines:
    """Return machines with the kernel of ORCH_TEST_KERNEL, that which the Makefile has downloaded,
    or the newest installed one.
    """
    named = os.environ.get("ORCH_TEST_KERNEL")
    downloaded = sorted(Path(sys.prefix, "kernel").glob("linux-image-*.deb"))
    return Machines(Path(named) if named else next(iter(downloaded), None), nfs)


def no_machines(*, nfs: bool = False) -> str:
    """Return why this computer cannot have a lab of machines; empty if it can."""
    try:
        choose_kind("machines")
        require(wanted(nfs=nfs), nodes=2, gpus=0)
    except ConfigError as error:
        return str(error)
    return ""


def control(lab: Lab, node: str, command: str, /, **arguments: Any) -> Any:
    """Give a command to the qemu of a machine (QMP), and return its answer."""
    # By a descriptor of its folder: a socket's path must have fewer than 108 bytes.
    folder = os.open(lab.node(node).folder, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(judge.LIMIT_S)
            line.connect(f"/proc/self/fd/{folder}/qmp")
            with line.makefile("rw", encoding="utf-8") as stream:
                stream.readline()  # its greeting
                _ask(stream, {"execute": "qmp_capabilities"})
                return _ask(stream, {"execute": command, "arguments": arguments})
    finally:
        os.close(folder)


def _ask(stream: Any, request: dict[str, Any]) -> Any:
    stream.write(json.dumps(request) + "\n")
    stream.flush()
    while True:
        answer = json.loads(stream.readline())
        assert "error" not in answer, answer
        if "return" in answer:  # else it is an event
            return answer["return"]


def reboot(lab: Lab, name: str) -> None:
    """Press a machine's reset button. Nothing is written to its disk first."""
    control(lab, name, "system_reset")


def panic(lab: Lab, name: str) -> None:
    """Have a machine's kernel panic, by an interrupt that it takes for a failure of the hardware."""
    control(lab, name, "inject-nmi")


def freeze(lab: Lab, name: str) -> None:
    """Stop a machine, its clock included; connections stay open, but nothing answers."""
    control(lab, name, "stop")


def thaw(lab: Lab, name: str) -> None:
    """Let a frozen machine go on."""
    control(lab, name, "cont")


def link(lab: Lab, name: str, *, up: bool, interface: str = "eth0") -> None:
    """Plug in the cable of an interface (``up``), or pull it out. The RoCE device is on eth1."""
    control(lab, name, "set_link", name=interface, up=up)


def read_only(lab: Lab, name: str) -> None:
    """Have a machine's disk fail: its file system, /disk, goes read-only under open files."""
    inside(lab, name, "echo lab >/sys/fs/ext4/vda/trigger_fs_error")


def step_clock(lab: Lab, name: str, seconds: float) -> None:
    """Set the time of day of a machine ahead of what it is."""
    code = f"import time; time.clock_settime(0, time.clock_gettime(0) + {seconds})"
    inside(lab, name, f"python3 -c '{code}'")


def inside(lab: Lab, name: str, command: str) -> str:
    """Return what a command prints on a machine, by ssh; fails with what it says if it does."""
    for _ in range(_LOGINS):
        done = faultlab.ssh(lab, name, command)
        if done.returncode != _NO_LOGIN:
            break
    assert done.returncode == 0, done
    return done.stdout.decode()


def boot_id(lab: Lab, name: str) -> str:
    """Return the number of a machine's boot; empty while it does not answer."""
    return faultlab.ssh(lab, name, "cat /proc/sys/kernel/random/boot_id").stdout.decode()


def rebooted(lab: Lab, name: str, before: str) -> Callable[[], bool]:
    """Return the claim that a machine answers in another boot than the one ``before``."""
    return lambda: boot_id(lab, name) not in ("", before)


def left(lab: Lab, name: str) -> list[str]:
    """Return the command lines of what the tool has running on a machine."""
    listed = inside(lab, name, "ps -eo args=").splitlines()
    marks = ("rank_wrapper.py", "train_", "exec(compile(", "orch-")
    return [line for line in listed if any(mark in line for mark in marks)]

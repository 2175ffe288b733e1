"""Faults of a machine's RoCE port, and the check that is to name each: what is done to a node as its
root, or said of it in the inventory.

The lab's MTU is `MTU`, so that ports have an active MTU of 4096. Soft RoCE has one PKey, which cannot
be taken from it: a stand-in is mounted over its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from orchestrator.lab import Lab
from orchestrator.lab.machines import guest
from tests.support import judge, machines

MTU = 4500
_PKEY = "/sys/class/infiniband/rxe0/ports/1/pkeys/0"
_STATE = "cat /sys/class/infiniband/rxe0/ports/1/state"
_UNLOCKED = "/usr/bin/prlimit --memlock=65536:65536 /usr/bin/setpriv --bounding-set -ipc_lock"


def _restart_sshd(limit: str) -> str:
    """Let init read what it is to run anew, and wait until sshd listens with a limit of memlock."""
    pid = r"pid=$(ss -ltnpH sport = :22 | sed 's/.*pid=\([0-9]*\).*/\1/;q')"
    is_there = f"grep -qs 'locked memory *{limit} ' /proc/$pid/limits"
    return f"kill -HUP 1; until {pid}; {is_there}; do sleep 0.1; done"


@dataclass(frozen=True, slots=True)
class Fault:
    """``check`` and ``words`` that name it; what ``breaks`` the node and ``mends`` it, with the
    address of another node as {peer}; variables of it in the inventory.
    """

    check: str
    words: str
    breaks: str = ""
    mends: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


FAULTS = {
    "port_down": Fault("infiniband", "rxe0:1 DOWN", "ip link set eth1 down", "ip link set eth1 up"),
    "gid_empty": Fault(
        "infiniband",
        "NCCL_IB_GID_INDEX=9: no GID on rxe0:1",
        env={"NCCL_IB_GID_INDEX": "9"},
    ),
    "gid_link_local": Fault(
        "infiniband",
        "NCCL_IB_GID_INDEX=0: a link-local GID on rxe0:1",
        env={"NCCL_IB_GID_INDEX": "0"},
    ),
    "mtu": Fault(
        "rdma", "rxe0:1 with 1024", "ip link set eth1 mtu 1500", f"ip link set eth1 mtu {MTU}"
    ),
    "pkey": Fault(
        "infiniband",
        "rxe0:1 has PKey 0x8001 at index 0",
        f"echo 0x8001 >/run/pkey; mount --bind /run/pkey {_PKEY}",
        f"umount {_PKEY}",
    ),
    "memlock": Fault(
        "limits",
        "memlock 64 KiB",
        f"sed -i.bak 's#:respawn:#:respawn:{_UNLOCKED} #' /etc/inittab; {_restart_sshd('65536')}",
        f"mv /etc/inittab.bak /etc/inittab; {_restart_sshd('unlimited')}",
    ),
    "no_device_file": Fault(
        "infiniband",
        "no /dev/infiniband/uverbs*",
        "mv /dev/infiniband/uverbs0 /dev/infiniband/away",
        "mv /dev/infiniband/away /dev/infiniband/uverbs0",
    ),
    "mute_pair": Fault(
        "rdma",
        "rxe0:1 and ",
        "ip neigh replace {peer} lladdr 02:ff:00:00:00:01 dev eth1 nud permanent",
        "ip neigh del {peer} dev eth1",
    ),
}


@contextmanager
def broken(lab: Lab, fault: Fault, node: str, peer: str) -> Iterator[None]:
    """Break a node, and mend it in the end; ``peer`` is the node that it does not reach if the
    fault is about a pair.
    """
    address = guest.roce_address(lab.node(peer))
    with _in_inventory(lab, fault.env, node):
        if fault.breaks:
            machines.inside(lab, node, fault.breaks.format(peer=address))
        try:
            if fault.breaks.endswith("down"):
                _wait_for_port(lab, node, "1: DOWN\n")
            yield
        finally:
            if fault.mends:
                machines.inside(lab, node, fault.mends.format(peer=address))
            _wait_for_port(lab, node, "4: ACTIVE\n")


def _wait_for_port(lab: Lab, node: str, state: str) -> None:
    judge.wait_for(lambda: machines.inside(lab, node, _STATE) == state, 60, f"port not {state}")


@contextmanager
def _in_inventory(lab: Lab, env: Mapping[str, str], node: str) -> Iterator[None]:
    """Give a host variables in the lab's inventory for a while."""
    before = lab.inventory.read_text()
    lines = [f"    env: {{{name}: '{value}'}}\n" for name, value in env.items()]
    lab.inventory.write_text(before.replace(f"  {node}:\n", f"  {node}:\n{''.join(lines)}"))
    try:
        yield
    finally:
        lab.inventory.write_text(before)

"""Limits of this process, and the shared memory that it finds."""

import os
import resource

CAP_IPC_LOCK = 14


def limits():
    """Return {name: [soft, hard]} of the limits of this process: as ssh or a container gives them
    to a run; None: unlimited. A capability frees a process from that of locked memory.
    """
    pairs = {}
    for name in ("memlock", "nofile", "nproc", "core", "stack"):
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        pairs[name] = [None if value == resource.RLIM_INFINITY else value for value in pair]
    if has_ipc_lock():
        pairs["memlock"] = [None, None]
    return pairs


def has_ipc_lock():
    """Return True if the kernel lets this process lock any amount of memory. In a user namespace of
    its own the capability does not count.
    """
    with open("/proc/self/status") as file:
        (held,) = (int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    with open("/proc/self/uid_map") as file:
        return file.read().split() == ["0", "0", "4294967295"] and bool(held >> CAP_IPC_LOCK & 1)


def shared_memory_bytes():
    """Return the size of /dev/shm in bytes, where loaders and NCCL keep shared memory; None if it
    does not exist.
    """
    try:
        disk = os.statvfs("/dev/shm")
    except OSError:
        return None
    return disk.f_blocks * disk.f_frsize

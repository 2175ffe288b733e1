"""Limits of this process, and the shared memory that it finds."""

import os
import resource


def limits():
    """Return {name: [soft, hard]} of the limits of this process: as ssh or a container gives them
    to a run; None: unlimited.
    """
    pairs = {}
    for name in ("memlock", "nofile", "nproc", "core", "stack"):
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        pairs[name] = [None if value == resource.RLIM_INFINITY else value for value in pair]
    return pairs


def shared_memory_bytes():
    """Return the size of /dev/shm in bytes, where loaders and NCCL keep shared memory; None if it
    does not exist.
    """
    try:
        disk = os.statvfs("/dev/shm")
    except OSError:
        return None
    return disk.f_blocks * disk.f_frsize

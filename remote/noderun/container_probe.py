"""Probe of a container: a program that preflight starts inside, as it would start a run."""

import glob
import json
import os
import re
import sys

from noderun.installed import framework_facts
from noderun.limits import limits, shared_memory_bytes
from noderun.vendors import VENDORS

DEVICES = dict(
    {vendor.name: vendor.devices for vendor in VENDORS}, infiniband="/dev/infiniband/uverbs*"
)
LIBRARIES = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/opt/*/lib",
)


def probe_main():
    """Read a one-line request from standard input, and print the findings as one line of JSON."""
    request = json.loads(sys.stdin.buffer.readline().decode())
    os.umask(0o077)
    facts = {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "limits": limits(),
        "shm_bytes": shared_memory_bytes(),
        "devices": {name: len(glob.glob(pattern)) for name, pattern in DEVICES.items()},
        "nccl": nccl_library(),
        "workdir": left_mark(request["mark"]),
        "framework": framework_facts(
            request["python"], request["probe"], request["probe_timeout_s"], request["environment"]
        ),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


def left_mark(path):
    """Return True if a file could be made in the work directory: outside it shows whether it is the
    same one, and whose.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except OSError:
        return False
    return True


def nccl_library():
    """Return the version in the name of the first NCCL library in the usual folders; None without
    one. A framework may bring its own, and says so itself."""
    for folder in LIBRARIES:
        for path in sorted(glob.glob(os.path.join(folder, "libnccl.so.*"))):
            version = re.search(r"libnccl\.so\.(\d+\.\d+\S*)$", os.path.realpath(path))
            if version:
                return version.group(1)
    return None


if __name__ == "__main__":
    probe_main()

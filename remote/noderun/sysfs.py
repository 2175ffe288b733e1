"""Names in folders and first lines of small files, as of sysfs; empty for missing ones."""

import os

VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cali", "cni", "flannel", "tap", "tun")
"""How names of network interfaces begin that have no cable and come and go with programs."""


def first_line(*path):
    """Return the first line of a small file of the kernel; empty if it cannot be read."""
    try:
        with open(os.path.join(*path), errors="replace") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""


def names_in(folder):
    """Return the names in a folder; empty if there is no such folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []

"""The log folder of a run: which files count as logs, and their order."""

import os

from noderun.files import NAME

MAX_FILES = 4096


def log_files(directory):
    """Return {name: bytes} of the regular files in a run's log folder; links and special files are left out."""
    sizes = {}
    for entry in os.scandir(os.path.join(directory, "logs")):
        try:
            if NAME.match(entry.name) and entry.is_file(follow_symlinks=False):
                sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
    return sizes


def in_order(sizes):
    """Return names of logs, those of node and ranks first: a program that writes many files must not displace them."""
    return sorted(sizes, key=lambda name: (not name.startswith(("node.", "rank-")), name))


def odd_files(directory):
    """Return up to 20 names in a run's log folder that are never opened or sent: links, special files, invalid names."""
    names = []
    for entry in os.scandir(os.path.join(directory, "logs")):
        if not (NAME.match(entry.name) and entry.is_file(follow_symlinks=False)):
            names.append(entry.name[:200])
            if len(names) == 20:
                break
    return sorted(names)

"""The log folder of a run: which files count as logs, and their order."""

import hashlib
import os
import stat

from noderun.files import NAME, open_regular

MAX_FILES = 4096
SETUP_LOG = "setup.out"
"""What the setup lines of a run print; no line of it is one of the program."""
TELEMETRY = "telemetry.jsonl"
"""What a node was sampled to be like during a run; it comes to the logs at the end."""


def entries_of(directory):
    """Return the entries of a run's log folder; None if something else has taken its place, as a
    link that leads to files of somebody else.
    """
    folder = os.path.join(directory, "logs")
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return None
    except FileNotFoundError:
        return None
    return list(os.scandir(folder))


def log_files(directory):
    """Return {name: bytes} of the regular files in a run's log folder; links and special files are
    left out.
    """
    sizes = {}
    for entry in entries_of(directory) or ():
        try:
            # Not entry.stat(): it stops all threads of this process while a server does not answer.
            status = os.lstat(entry.path)
            if NAME.match(entry.name) and stat.S_ISREG(status.st_mode):
                sizes[entry.name] = status.st_size
        except FileNotFoundError:
            continue
    return sizes


def in_order(sizes):
    """Return names of logs, first those that every run has: a program that writes many files must
    not displace them.
    """
    return sorted(
        sizes,
        key=lambda name: (not name.startswith(("node.", "rank-", SETUP_LOG, TELEMETRY)), name),
    )


def within(sizes, budget):
    """Return {name: bytes} to keep of logs: the smallest in full, so that a giant displaces none of
    the others.
    """
    kept = {}
    for name in sorted(in_order(sizes)[:MAX_FILES], key=sizes.get):
        kept[name] = min(sizes[name], budget)
        budget -= kept[name]
    return kept


def digests(sizes, budget, samples=None):
    """Yield (name, bytes, "") for every block that is hashed, and at the end of each log its
    SHA-256 in place of "".

    If logs are larger than a run may write, only the first bytes of the largest are kept and
    hashed: a program can create a sparse file of any size at no cost. ``samples`` are {name: bytes}
    of the node's own, which do not count against that.
    """
    kept = dict(within(sizes, budget), **(samples or {}))
    for name in in_order(kept):
        digest, offset = hashlib.sha256(), 0
        with open_regular(os.path.join("logs", name)) as log:
            while log is not None and offset < kept[name]:
                block = os.pread(log, min(1 << 20, kept[name] - offset), offset)
                if not block:
                    break
                digest.update(block)
                offset += len(block)
                yield name, offset, ""
        yield name, kept[name], digest.hexdigest()


def odd_files(directory):
    """Return up to 20 names in a run's log folder that are never opened or sent: links, special
    files, invalid names; ``logs`` itself if it is no folder any more.
    """
    names, entries = [], entries_of(directory)
    if entries is None:
        return ["logs"]
    for entry in entries:
        if not (NAME.match(entry.name) and entry.is_file(follow_symlinks=False)):
            names.append(entry.name[:200])
            if len(names) == 20:
                break
    return sorted(names)

"""A digest of a data set, equal on nodes with equal data, in a time that hardly grows with the
number and size of its files.
"""

import hashlib
import os
import stat
import time

# The first names, folder by folder; the sizes of some of these files; blocks of fewer of them, at
# start, middle and end.
LOOK_NAMES = 200000
LOOK_SIZES = 1000
LOOK_FILES = 64
LOOK_BYTES = 1 << 14
LOOK_S = 30.0


def look_at_data(directory):
    """Describe this node's copy of a data set.

    ``digest`` and the counts ``names``, ``sizes`` and ``bytes`` describe it; ``whole``: these are
    all names. {"error": …} if the folder cannot be listed in LOOK_S.

    The digest depends on names relative to the folder, sizes and bytes only, not on times, owners
    or the order of the disk. The first names in order count, the outer folders before the inner
    ones, and the same files on every node. Hidden names do not count: loaders and file systems
    leave some.
    """
    deadline = time.monotonic() + LOOK_S
    digest = hashlib.sha256()
    try:
        files, names, whole = list_files(directory, digest, deadline)
        looked = 0
        for path in spread(files, LOOK_SIZES):
            digest.update(b"%d\n" % os.stat(os.path.join(os.fsencode(directory), path)).st_size)
        for path in spread(files, LOOK_FILES):
            if time.monotonic() > deadline:
                raise OSError(0, "not read in %g s" % LOOK_S)
            looked += sample_of(os.path.join(os.fsencode(directory), path), digest)
    except OSError as error:
        return {"error": "%s: %s" % (directory, error.strerror)}
    sizes = min(len(files), LOOK_SIZES)
    return {
        "digest": digest.hexdigest(),
        "names": names,
        "sizes": sizes,
        "bytes": looked,
        "whole": whole,
    }


def list_files(directory, digest, deadline):
    """Add the first LOOK_NAMES names to a digest. Return (files, number of names, whether these are
    all).
    """
    root, files, count = os.fsencode(directory), [], 0
    folders, visited = [b""], set()
    for folder in folders:  # grows while it is read
        status = os.stat(os.path.join(root, folder))
        if (status.st_dev, status.st_ino) in visited:
            continue  # a link to a folder that was listed
        visited.add((status.st_dev, status.st_ino))
        entries = sorted(
            (entry.name, entry.is_dir())
            for entry in os.scandir(os.path.join(root, folder))
            if not entry.name.startswith(b".")
        )
        for name, is_folder in entries:
            if time.monotonic() > deadline:
                raise OSError(0, "not listed in %g s" % LOOK_S)
            if count == LOOK_NAMES:
                return files, count, False
            path = os.path.join(folder, name)
            digest.update(path + (b"/\n" if is_folder else b"\n"))
            count += 1
            (folders if is_folder else files).append(path)
    return files, count, True


def spread(files, most):
    """Return up to ``most`` of the files at equal distances."""
    return (
        [files[len(files) * number // most] for number in range(most)]
        if len(files) > most
        else files
    )


def sample_of(path, digest):
    """Add blocks of a regular file to a digest: its start, its middle and its end. Return their
    bytes.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return 0
        blocks = [os.pread(handle, LOOK_BYTES, start) for start in sorted(starts(status.st_size))]
    finally:
        os.close(handle)
    for block in blocks:
        digest.update(block)
    return sum(map(len, blocks))


def starts(size):
    """Return the starts of the blocks of a file of this size."""
    return {0, max(0, size // 2 - LOOK_BYTES // 2), max(0, size - LOOK_BYTES)}

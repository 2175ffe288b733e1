"""Files below the work directory, the error that refuses a request, and small files of the kernel."""

import contextlib
import errno
import hashlib
import os
import re
import stat

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
CHUNK = 1 << 18
TAIL_BYTES = 16384
LEAST_FREE_BYTES = 1 << 20
LEAST_FREE_INODES = 8
MOST_SYMLINKS = 40  # more than this the kernel does not follow either


class Refused(Exception):
    """A request that cannot be fulfilled; sent to the controller as an error event with ``kind``
    and ``message``.
    """

    def __init__(self, kind, message, **context):
        super().__init__(message)
        self.fields = dict(context, kind=kind, message=message)


def why(error, doing):
    """Return the reason of a failure: the error's path, or ``doing`` if it has none, and the
    system's message.
    """
    return "%s: %s" % (
        doing if error.filename is None else os.fsdecode(error.filename),
        error.strerror or error,
    )


def root_directory(path):
    """Return the work directory as an absolute path; create it if missing. Refuse it if other users
    could write to it.
    """
    home = os.path.expanduser("~")
    if path.startswith("~") and not os.path.isdir(home):
        raise Refused(
            "node_unfit",
            "work directory %s: %s does not exist; create it, or set vars.workdir" % (path, home),
        )
    path = os.path.abspath(os.path.expanduser(path))
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        raise Refused("node_unfit", "work directory %s: %s" % (path, error.strerror))
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise Refused(
            "node_unfit", "work directory %s: expected a directory of user %d" % (path, os.getuid())
        )
    if status.st_mode & 0o022:
        raise Refused(
            "node_unfit",
            "work directory %s: expected mode 0700, got %04o" % (path, status.st_mode & 0o7777),
        )
    return path


def who_may_rename(path):
    """Return the folder above a path that lets another user rename it and put another in its place.

    Empty if there is none. In a sticky folder such as /tmp, others may only rename their own files.
    """
    for place in [above for way in ways_to(path) for above in folders_above(way)]:
        status = os.lstat(place)
        if status.st_uid not in (0, os.getuid()):
            return "%s belongs to %s" % (place, user_name(status.st_uid))
        if (
            not stat.S_ISLNK(status.st_mode)
            and is_open_to_others(status)
            and not status.st_mode & stat.S_ISVTX
        ):
            return "others may write to %s (mode %04o)" % (place, status.st_mode & 0o7777)
    return ""


def ways_to(path):
    """Return a path, and what it becomes as the links above it are followed one after the other:
    each folder that decides where the path leads is above one of these.
    """
    ways = [path]
    while len(ways) <= MOST_SYMLINKS:
        links = [above for above in folders_above(ways[-1]) if os.path.islink(above)]
        if not links:
            break
        target = os.path.join(os.path.dirname(links[-1]), os.readlink(links[-1]))
        ways.append(os.path.normpath(target + ways[-1][len(links[-1]) :]))
    return ways


def folders_above(path):
    """Return the folders above a path, the innermost first."""
    folders = []
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        folders.append(path)
    return folders


def is_open_to_others(status):
    """Return True if others may write to a folder. A group that has no member but this user is
    nobody else.
    """
    if status.st_mode & stat.S_IWOTH or not status.st_mode & stat.S_IWGRP:
        return bool(status.st_mode & stat.S_IWOTH)
    import grp

    try:
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    user = user_name(os.getuid())
    return group.gr_name != user or bool(set(group.gr_mem) - {user})


def user_name(number):
    """Return the name of a user, or the number of one without a name here."""
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def inside(root, relative):
    """Return root/relative. Refuses names that lead out of the work directory, and hidden ones."""
    parts = relative.split("/")
    if not all(NAME.match(part) for part in parts):
        raise Refused("unsafe_path", "unsafe path %r" % relative)
    return os.path.join(root, *parts)


def own_directory(request):
    """Return this node's own folder of the work directory that a request names. Other nodes may
    share the work directory.

    The folder has the node's name in the inventory: this name differs between the nodes of a run
    and survives a reboot, which is true of neither host names nor machine ids.
    """
    return inside(root_directory(request["root"]), "nodes/" + request["node"])


def run_directory(request):
    """Return the directory of the run that a request names, on this node."""
    return inside(own_directory(request), "runs/" + request["run"])


def digest_of(path, size=float("inf")):
    """Return the SHA-256 of a file, or of its first ``size`` bytes, as hexadecimal text."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(int(min(size, 1 << 20)))
            if not block:
                break
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def free_bytes(path):
    """Return the free space on the disk that holds a path, in bytes."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def free_inodes(path):
    """Return how many more files the disk that holds a path can have; None if it has no such limit."""
    disk = os.statvfs(path)
    return disk.f_favail if disk.f_files else None


def lacking(directory):
    """Return the disk space that a run's directory lacks for the rest of its record; empty if it
    has enough.
    """
    free, inodes = free_bytes(directory), free_inodes(directory)
    if free < LEAST_FREE_BYTES:
        return "No space left on device for %s; needed %d bytes, free %d" % (
            directory,
            LEAST_FREE_BYTES,
            free,
        )
    if inodes is not None and inodes < LEAST_FREE_INODES:
        return "No space left on device for %s; needed %d inodes, free %d" % (
            directory,
            LEAST_FREE_INODES,
            inodes,
        )
    return ""


def remove_unless_read_only(path):
    """Remove a file, if there is one. A disk that has gone read-only keeps it, but can still be
    read.
    """
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EROFS):
            raise


def why_read_only(directory):
    """Return why nothing new can be made in a directory, whose disk has failed; empty if it can.

    After an error ext4 may go on to take what is written to open files, and lose it, and its flags
    still say that it can be written to.
    """
    probe = os.path.join(directory, ".orch-probe")
    try:
        os.mkdir(probe, 0o700)
        os.rmdir(probe)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EIO):
            return "%s: %s; what is written there is lost" % (directory, error.strerror)
    return ""


def unwritten(error, path, disk, needed):
    """Return the refusal for an error while writing to a path; for a full disk, with the needed and
    the free space.
    """
    message = "%s: %s" % (path, error.strerror or error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return Refused("node_unfit", message)
    if free_inodes(disk) == 0:
        return Refused("storage_full", "%s; needed an inode, free 0" % message)
    return Refused(
        "storage_full", "%s; needed %d bytes, free %d" % (message, needed, free_bytes(disk))
    )


@contextlib.contextmanager
def open_regular(path):
    """Open a regular file; yield None if it is missing or not a regular file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    try:
        yield handle if stat.S_ISREG(os.fstat(handle).st_mode) else None
    finally:
        os.close(handle)


def read_slice(path, offset, limit):
    """Return up to ``limit`` bytes of a regular file from ``offset``; empty if the file is missing."""
    with open_regular(path) as handle:
        return b"" if handle is None else os.pread(handle, limit, offset)

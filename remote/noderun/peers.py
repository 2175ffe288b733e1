"""The process at the other end of a Unix socket, by the kernel's word.

Abstract sockets have no permissions: any user may take a name that is free.
"""

import errno
import os
import socket
import sys

from noderun.files import user_name
from noderun.sysfs import names_in

SUPERVISOR = "orch-supervisor"


def peer_of(connection):
    """Return (process number, user number) of the process that listens at the other end, or
    connected.

    The number was valid at that time; it is 0 if this process namespace cannot see the process.
    """
    ids = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 8)
    return int.from_bytes(ids[:4], sys.byteorder), int.from_bytes(ids[4:], sys.byteorder)


def is_own(connection):
    """Return True if the process at the other end is of this user."""
    return peer_of(connection)[1] == os.getuid()


def refuse_others(connection):
    """Raise ConnectionRefusedError, which names who is at the other end, unless it is a process of
    this user.
    """
    if not is_own(connection):
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, "%s holds its address" % who_is(*peer_of(connection))
        )


def who_is(pid, user):
    """Return a process and its user in words. The user is certain; a number that another process
    has by now is left out.
    """
    return "%s of user %s" % (
        "process %d" % pid if user_of(pid) == user else "a process",
        user_name(user),
    )


def user_of(pid):
    """Return the user number of a process; None if it has ended."""
    try:
        return os.stat("/proc/%d" % pid).st_uid if pid else None
    except OSError:
        return None


def own_supervisor_has(address):
    """Return True if a supervisor of this user has the datagram socket that is bound to an abstract
    address.

    Such a socket tells nothing of its owner, so its number is looked for among the open files of
    this user's supervisors.
    """
    bound = bound_sockets(address, socket.SOCK_DGRAM)
    if bound is None:
        return True  # nothing here tells whose it is
    links = {"socket:[%s]" % number for number in bound}
    return any(
        has_one_of(links, pid)
        for pid in names_in("/proc")
        if pid.isdigit() and is_own_supervisor(pid)
    )


def bound_sockets(address, kind):
    """Return the numbers of the sockets of a kind that are bound to an abstract address; None where
    they are not listed.
    """
    kind, name = b"%04X" % kind, b"@" + address[1:].encode()
    try:
        with open("/proc/self/net/unix", "rb") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    # Num RefCount Protocol Flags Type St Inode Path
    return [row[6].decode() for row in rows if len(row) == 8 and row[4] == kind and row[7] == name]


def is_own_supervisor(pid):
    """Return True if a process is of this user, and has the name of a supervisor, which only
    narrows the search.
    """
    try:
        with open("/proc/%s/comm" % pid) as file:
            return (
                file.read().strip() == SUPERVISOR and os.stat("/proc/" + pid).st_uid == os.getuid()
            )
    except OSError:
        return False


def has_one_of(links, pid):
    """Return True if a process has one of these sockets open, or does not let its open files be
    seen.
    """
    folder = "/proc/%s/fd" % pid
    try:
        descriptors = os.listdir(folder)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM)
    for descriptor in descriptors:
        try:
            if os.readlink(os.path.join(folder, descriptor)) in links:
                return True
        except OSError:
            continue
    return False

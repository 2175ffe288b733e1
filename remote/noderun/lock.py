"""One run at a time has a node: the lock of its work directory, and the node's name."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import sys
import time

from noderun.files import Refused
from noderun.processes import owners


def wait_for(run_id, take):
    """Call what takes a lock until it returns None, for a while; refuse with what it returns, the record of who has it."""
    began = time.monotonic()
    while True:
        holder = take()
        if holder is None:
            return
        # The keeper of the run before this one may need a moment to leave. Of two runs that want the same nodes at the
        # same moment, each may hold some: the later one gives up first, so that one of them gets all.
        if time.monotonic() - began > (1.0 if run_of(holder) < run_id else 4.0):
            if run_of(holder) == run_id:
                raise Refused("node_unfit", "another node of this run is this machine: name it once in the inventory")
            raise Refused("node_busy", "another run holds this node", owner=holder)
        time.sleep(0.02)


def locked_by(handle, how):
    """Lock a work directory by its open file and return None; where that is taken, return the record of who has it."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except OSError:
        return os.pread(handle, 4096, 0).decode("utf-8", "replace").strip()
    return None


def named_by(door):
    """Give a socket the name that stands for this node, return None; where that is taken, return the record of who has it."""
    try:
        door.bind(node_name())
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return introduction() or ""
    return None


def node_name():
    """Return the name that stands for this node, of an abstract socket: the system takes it back from a process that ends.

    A node is what shares a network and sees each other's processes, whatever the user. So containers with process numbers of
    their own are nodes of their own, and so are those of a lab without namespaces, which bear its mark.
    """
    marks = [os.readlink("/proc/self/ns/pid")] + [os.environ.get(name) for name in ("ORCH_LAB", "ORCH_LAB_NODE")]
    return "\0orch-node-" + hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:32]


def introduction():
    """Return what the process that has this node's name says of its run, else whose process it is; None where nobody has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(0.5)
        try:
            asking.connect(node_name())
        except ConnectionRefusedError:
            return None
        except OSError as error:
            return "it does not answer: %s" % error.strerror
        pid = int.from_bytes(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
        said = b""
        with contextlib.suppress(OSError):
            said = asking.recv(4096)
        user = owners([str(pid)]).get(str(pid), "another user")
        return said.decode("utf-8", "replace").strip() or "process %d of %s, which does not answer" % (pid, user)


def holder_of(root):
    """Return the record of who holds this node, by a work directory's lock or by the node's name; None where nobody does."""
    try:
        lock = os.open(os.path.join(root, "node.lock"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return introduction()
    try:
        holder = locked_by(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)
    return introduction() if holder is None else holder


def run_of(holder):
    """Return the run id in a lock's owner record; nothing where the owner has not written it yet."""
    try:
        return json.loads(holder)["run_id"]
    except (ValueError, KeyError, TypeError):
        return ""

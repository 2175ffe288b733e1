"""One run per node at a time: the lock of a work directory, and the node's name."""

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
    """Call ``take`` until it returns None, for a few seconds; then refuse with its result, the record of the lock's holder."""
    began = time.monotonic()
    while True:
        holder = take()
        if holder is None:
            return
        # The supervisor of the previous run may need a moment to exit. If two runs want the same nodes at the same moment, each
        # may hold some of them: the later run gives up first, so that the other gets all.
        if time.monotonic() - began > (1.0 if run_of(holder) < run_id else 4.0):
            if run_of(holder) == run_id:
                raise Refused("node_unfit", "two nodes of this run are the same machine: list it once in the inventory")
            raise Refused("node_busy", "another run holds this node", owner=holder)
        time.sleep(0.02)


def locked_by(handle, how):
    """Lock a work directory through its open file and return None; if it is locked, return the record of its holder."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except OSError:
        return os.pread(handle, 4096, 0).decode("utf-8", "replace").strip()
    return None


def named_by(door):
    """Bind a socket to this node's name and return None; if the name is in use, return the record of its holder."""
    try:
        door.bind(node_name())
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return introduction() or ""
    return None


def node_name():
    """Return this node's name, an abstract socket address: the system frees it when the process that holds it ends.

    A node is a set of processes that share a network and see each other, whatever the user. So containers with a process
    namespace of their own are separate nodes, and so are those of a lab without namespaces, which sets its own marks.
    """
    marks = [os.readlink("/proc/self/ns/pid")] + [os.environ.get(name) for name in ("ORCH_LAB", "ORCH_LAB_NODE")]
    return "\0orch-node-" + hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:32]


def introduction():
    """Return the run record of the process that holds this node's name, else what process it is; None if the name is free."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(0.5)
        try:
            client.connect(node_name())
        except ConnectionRefusedError:
            return None
        except OSError as error:
            return "it does not answer: %s" % error.strerror
        pid = int.from_bytes(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
        record = b""
        with contextlib.suppress(OSError):
            record = client.recv(4096)
        user = owners([str(pid)]).get(str(pid), "another user")
        return record.decode("utf-8", "replace").strip() or "process %d of %s, which does not answer" % (pid, user)


def holder_of(root):
    """Return the record of this node's holder, from a work directory's lock or from the node's name; None if it is free."""
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
    """Return the run id in a lock's owner record; empty if the owner has not written it yet."""
    try:
        return json.loads(holder)["run_id"]
    except (ValueError, KeyError, TypeError):
        return ""

"""One run per node at a time: the name that stands for a node, and the record of the run that holds
it.
"""

import contextlib
import errno
import hashlib
import json
import os
import socket
import time

from noderun.files import Refused, read_slice
from noderun.peers import bound_sockets, peer_of, user_of, who_is
from noderun.processes import LAB_MARKS
from noderun.sysfs import first_line

OWNER_RECORD = "owner.json"
CLOSED = "a process that takes no connections (ss -xap, as root, shows it)"


def hold_node(name_socket, run_id):
    """Bind a socket to this node's name, for a run; refuse after a few seconds, with the record of
    the run that holds it.
    """
    began = time.monotonic()
    while True:
        record = named_by(name_socket)
        if record is None:
            return
        # The supervisor of the previous run may need a moment to exit. If two runs want the same
        # nodes at the same moment, each may hold some of them: the later run gives up first, so
        # that the other gets all. A run that has started keeps them. A holder that does not answer
        # may be one that is just exiting.
        is_lost = "" != run_of(record) < run_id or value_of(record, "state").strip() == "running"
        if time.monotonic() - began > (1.0 if is_lost else 3.0):
            if run_of(record) == run_id and not value_of(record, "held_by"):
                raise Refused(
                    "node_unfit",
                    "two nodes of this run are the same machine: list it once in the inventory",
                )
            raise Refused("node_busy", "another run holds this node", owner=record)
        time.sleep(0.02)


def named_by(name_socket):
    """Bind a socket to this node's name and return None; if the name is in use, return the record
    of its holder.
    """
    try:
        name_socket.bind(node_name())
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return holder() or ""
    return None


def node_name():
    """Return this node's name, an abstract socket address: the system frees it when the process
    that holds it ends.

    It is no file, so work directories, users and nodes that share a directory have nothing to do
    with it.
    """
    return abstract_name("node", node_marks())


def node_marks():
    """Return the marks that tell this node from others of its network namespace.

    A node is a set of processes that share a network and see each other, whatever the user. So
    containers with a process namespace of their own are separate nodes, and so are the nodes of a
    lab without namespaces, which sets its own marks.
    """
    return [os.readlink("/proc/self/ns/pid")] + [os.environ.get(name) for name in LAB_MARKS]


def abstract_name(kind, marks):
    """Return an abstract socket address for some marks of any length: at most 107 bytes."""
    return "\0orch-%s-%s" % (kind, hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:32])


def holder():
    """Return the record of the run that holds this node's name; None if the name is free.

    Without a record it is text that says which process has the name. Whatever a process of another
    user says of itself, its record has ``held_by``: who it is by the kernel's word.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(0.5)
        try:
            client.connect(node_name())
        except ConnectionRefusedError:  # nobody listens, but the name may be bound
            return CLOSED if bound_sockets(node_name(), socket.SOCK_STREAM) else None
        except OSError:
            return CLOSED
        pid, user = peer_of(client)
        record = b""
        if user_of(pid) == user == os.getuid():
            # A supervisor that is busy or stopped does not answer; its record can be read by its
            # own user.
            record = read_slice("/proc/%d/cwd/%s" % (pid, OWNER_RECORD), 0, 4096)
        with contextlib.suppress(OSError):
            record = record or client.recv(4096)
        text = record.decode("utf-8", "replace").strip()
        if user == os.getuid() and text:
            return text
        held_by = who_is(pid, user)
        if run_of(text):
            return json.dumps(dict(fields_of(text), held_by=held_by))
        return held_by + (", which names no run" if text else ", which does not answer")


def fields_of(record):
    """Return the fields of an owner record: texts and numbers alone, as another user may have
    written it.
    """
    try:
        return {
            str(key): value
            for key, value in json.loads(record).items()
            if isinstance(value, (str, int))
        }
    except (ValueError, AttributeError, RecursionError):
        return {}


def this_machine():
    """Return the marks of this machine that survive a reboot: host name and machine id. Clones may
    share the id, and containers both, so they only confirm what the name of a node's own folder
    says."""
    return [socket.gethostname(), first_line("/etc/machine-id")]


def run_of(record):
    """Return the run id in an owner record; empty if it has none."""
    return value_of(record, "run_id")


def value_of(record, key):
    """Return one text of an owner record; empty if it is missing."""
    return str(fields_of(record).get(key, ""))

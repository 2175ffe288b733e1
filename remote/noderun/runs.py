"""The runs of this node, whether their supervisors are alive, and the processes that belong to
them.

A supervisor listens on an abstract socket, which exists on its own machine only and as long as the
supervisor. A file could not stand for it: other nodes that share the directory would see it too,
sockets do not work over NFS, and file locks only on some mounts.
"""

import glob
import json
import os
import socket

from noderun.containers import CONTAINER, container_of
from noderun.files import read_slice, remove_unless_read_only
from noderun.groups import group_of, members, remove_group
from noderun.lock import OWNER_RECORD, abstract_name, node_marks, this_machine
from noderun.peers import own_supervisor_has, refuse_others
from noderun.processes import bearers
from noderun.sysfs import names_in


def runs_of(own, run_id=None):
    """Return the directories of all runs in a node's own folder, or where the one of ``run_id`` is."""
    runs = os.path.join(own, "runs")
    if run_id is not None:
        return [os.path.join(runs, run_id)]
    return (
        [os.path.join(runs, name) for name in sorted(os.listdir(runs))]
        if os.path.isdir(runs)
        else []
    )


def living_runs(root):
    """Return the directories of the runs of a work directory with a live supervisor on this node,
    under any name of this node in an inventory.
    """
    return [
        path
        for path in on_all_nodes(root, "*")
        if supervisor_lives(path) and not os.path.islink(path)
    ]


def on_all_nodes(root, run_id):
    """Return the directories of a run below the folders of all nodes that share a work directory,
    and links to them.
    """
    return sorted(glob.glob(os.path.join(glob.escape(root), "nodes", "*", "runs", run_id)))


def remove_run(root, directory):
    """Remove a run's directory, its control group, and the links to it that its launch script has
    made.
    """
    import shutil

    remove_group(group_of(directory))
    links = [
        path for path in on_all_nodes(root, os.path.basename(directory)) if os.path.islink(path)
    ]
    own_links = [path for path in links if os.path.realpath(path) == os.path.realpath(directory)]
    shutil.rmtree(directory)
    for path in own_links:
        os.unlink(path)


def address_of(directory):
    """Return the address at which the supervisor of a run directory listens on this node."""
    return abstract_name("run", [os.getuid(), os.path.realpath(directory)] + node_marks())


def supervisor_lives(directory):
    """Return True if a run's supervisor is alive on this node.

    It holds its address with a datagram socket too: connecting to that one has no effect on it. Any
    user may take the address of one that has ended.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address_of(directory))
        except OSError:
            return False
    return own_supervisor_has(address_of(directory))


def connect(directory, timeout_s=None):
    """Return a connection to the supervisor of a run directory. Raises OSError if there is none of
    this user.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address_of(directory))
        refuse_others(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def sweep(own):
    """Remove variables and empty control groups of runs whose supervisor is gone: if it was killed,
    nothing else does.

    Only of this machine: inventories may give one name to several machines that share the
    directory.
    """
    for directory in runs_of(own):
        # Also a copy that was being written when its supervisor was killed.
        group, variables = (
            group_of(directory),
            [name for name in names_in(directory) if name.startswith("env.sh")],
        )
        if (group or variables) and not supervisor_lives(directory) and ran_here(directory):
            remove_group(group)
            for name in variables:
                remove_unless_read_only(os.path.join(directory, name))


def ran_here(directory):
    """Return True if a run's supervisor was a process of this machine, or left no record."""
    try:
        return (
            json.loads(read_slice(os.path.join(directory, OWNER_RECORD), 0, 4096).decode())[
                "machine"
            ]
            == this_machine()
        )
    except (ValueError, KeyError, TypeError):
        return True


def belonging(own, run_id=None):
    """Return {pid: (start time, run id)} of the processes of one run, or of all: by its marker or
    by its control group.
    """
    owned = bearers(run_id)
    for directory in runs_of(own, run_id):
        for pid, start in members(group_of(directory)).items():
            owned.setdefault(pid, (start, os.path.basename(directory)))
    for container in open_containers(own, run_id):
        for pid, start in container.processes().items():
            owned.setdefault(pid, (start, os.path.basename(container.directory)))
    return owned


def open_containers(own, run_id=None):
    """Return the containers of runs that are over, or have lost their supervisor, and whose end is
    not proved.
    """
    unproved = []
    for directory in runs_of(own, run_id):
        has_one = os.path.exists(os.path.join(directory, CONTAINER))
        started = has_one and os.path.lexists(os.path.join(directory, "logs", "node.out"))
        over = started and (
            os.path.exists(os.path.join(directory, "exit.json")) or not supervisor_lives(directory)
        )
        if over and ran_here(directory) and container_of(directory).read_proof()["left"]:
            unproved.append(container_of(directory))
    return unproved


def remove_containers(own, run_id=None):
    """Remove the containers that such runs have left, and prove their end."""
    for container in open_containers(own, run_id):
        container.remove()


def find_unproved_containers(own, run_id=None):
    """Return {run id: [certain or possible leftovers]} of containers without a proof, after another
    look.
    """
    doubtful = {}
    for container in open_containers(own, run_id):
        container.look()
        if container.read_proof()["left"]:
            doubtful[os.path.basename(container.directory)] = container.read_proof()["left"]
    return doubtful

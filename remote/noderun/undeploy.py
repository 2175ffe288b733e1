"""Removal of what orch has put on a node: its payload and the runs whose logs are collected; and
what remains.
"""

import os
import time

from noderun.channel import reply
from noderun.facts import CAPTURE_S
from noderun.files import own_directory, root_directory
from noderun.runs import belonging, remove_run, runs_of, supervisor_lives
from noderun.sysfs import names_in

MOST_NAMES = 1000


def op_undeploy(request):
    """Remove the runs that the controller has collected and the payload, or only report what would
    be removed.

    A run in progress always stays, and with it the payload. ``force``: other runs go too, collected
    or not.
    """
    if not os.path.isdir(os.path.expanduser(request["root"])):
        reply(absent=True)
        return
    root, own = root_directory(request["root"]), own_directory(request)
    dropped, kept = [], {}
    for directory in runs_of(own):
        reason = reason_to_keep(own, directory, request)
        if reason:
            kept[os.path.basename(directory)] = reason
        else:
            dropped.append(directory)
    payload = os.path.join(root, "payload")
    goes = (
        os.path.isdir(payload)
        and "in progress" not in kept.values()
        and not unfinished_elsewhere(root, own)
    )
    answer = {
        "runs": len(dropped),
        "run_bytes": sum(map(bytes_below, dropped)),
        "payload_bytes": bytes_below(payload) if goes else 0,
        "payload": goes,
        "kept": dict(sorted(kept.items())[:MOST_NAMES]),
        "root": root,
    }
    if not request["dry"]:
        for directory in dropped:
            remove_run(root, directory)
        if goes:
            remove_set(root, payload)
        remove_empty(root, own)
        answer["remains"] = remaining(root)
    reply(**answer)


def reason_to_keep(own, directory, request):
    """Return why a run's directory must stay, or an empty text."""
    run_id = os.path.basename(directory)
    if os.path.islink(directory):
        return "of another node" if os.path.isdir(directory) else ""
    if supervisor_lives(directory) or belonging(own, run_id):
        return "in progress"
    started = os.path.exists(os.path.join(directory, "exit.json")) or names_in(
        os.path.join(directory, "logs")
    )
    if started and not request["force"] and run_id not in request["collected"]:
        return "not collected"
    return ""


def unfinished_elsewhere(root, own):
    """Return True if the folder of another node that shares the work directory has a run without an
    exit record.
    """
    others = [os.path.join(root, "nodes", name) for name in names_in(os.path.join(root, "nodes"))]
    return any(
        not os.path.exists(os.path.join(directory, "exit.json"))
        for other in others
        if other != own
        for directory in runs_of(other)
        if not os.path.islink(directory)
    )


def bytes_below(path):
    """Return the size of all files below a folder."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # removed by a node that shares the folder
                continue
    return total


def remove_set(root, folder):
    """Remove a folder. If several nodes share it, the node that renames it does the work."""
    import shutil

    aside = os.path.join(root, ".undeployed-" + os.urandom(8).hex())
    try:
        os.rename(folder, aside)
    except OSError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def remove_empty(root, own):
    """Remove the folders that have become empty, lock files of checks that are over, and with the
    last node the work directory.
    """
    nodes = os.path.join(root, "nodes")
    for folder in (os.path.join(own, "runs"), own, nodes):
        remove_folder(folder)
    for name in names_in(root):
        path = os.path.join(root, name)
        if name.startswith(".capture-") and (not os.path.isdir(nodes) or age_s(path) > CAPTURE_S):
            remove_link(path)
    remove_folder(root)


def age_s(path):
    """Return how long ago a link was made, in seconds; 0 if it is gone."""
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0.0


def remove_folder(folder):
    """Remove a folder if it is empty."""
    try:
        os.rmdir(folder)
    except OSError:
        return


def remove_link(path):
    """Remove a link, unless another node has just done so."""
    try:
        os.unlink(path)
    except OSError:
        return


def remaining(root):
    """Return the names that remain in the work directory and below ``nodes/``."""
    names = [name for name in names_in(root) if name != "nodes"]
    return sorted(names + ["nodes/" + name for name in names_in(os.path.join(root, "nodes"))])[
        :MOST_NAMES
    ]

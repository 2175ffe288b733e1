"""Possible leftovers of a run that lost its supervisor, on a node without control groups, where
some processes have no mark.

A process that left its parents and cleared its environment is known to its supervisor, as an
adopted descendant, and to the run's control group. Without both, a process of this user may belong to
the run if it began after the supervisor, is in the supervisor's own control group, and was adopted
by the local reaper of orphans. It is reported and never signalled.
"""

import os

from noderun.files import read_slice
from noderun.processes import boot_id, marked_by, name_of, processes
from noderun.records import read_record, write_json
from noderun.runs import runs_of, supervisor_lives

ORIGIN = "origin.json"


def write_origin(group):
    """Record, in the run's directory, from where its processes start: this supervisor, which made
    ``group`` or could not.
    """
    pid = os.getpid()
    ticks = processes()[pid][2]
    record = {
        "boot_id": boot_id(),
        "pids": os.readlink("/proc/self/ns/pid"),
        "supervisor": pid,
        "ticks": ticks,
    }
    write_json(ORIGIN, dict(record, group=group, groups=groups_of(pid), reapers=ancestors_of(pid)))


def ancestors_of(pid):
    """Return the process ids of a process's ancestors, its parent first."""
    table, chain = processes(), []
    while pid in table and table[pid][0] not in chain:
        pid = table[pid][0]
        chain.append(pid)
    return chain


def groups_of(pid):
    """Return the lines of /proc/PID/cgroup; an empty list if the process has ended."""
    return read_slice("/proc/%d/cgroup" % pid, 0, 1 << 16).decode("utf-8", "replace").splitlines()


def find_unverified_runs(own, run_id=None):
    """Return {run id: [[process id, name], ...]} of started runs with possible leftovers.

    A run has an empty list where its processes had numbers of another process namespace, so that
    none can be seen from here.
    """
    doubtful = {}
    for directory in runs_of(own, run_id):
        if os.path.exists(os.path.join(directory, ORIGIN)) and not supervisor_lives(directory):
            origin = read_record(os.path.join(directory, ORIGIN))
            # The launch script's child opens this log after the start signal, and before it
            # executes anything.
            started = os.path.lexists(os.path.join(directory, "logs", "node.out"))
            ended = (
                os.path.exists(os.path.join(directory, "exit.json"))
                or origin["boot_id"] != boot_id()
            )
            if started and not ended and not origin["group"]:
                here = origin["pids"] == os.readlink("/proc/self/ns/pid")
                strays = strays_since(origin) if here else []
                if strays or not here:
                    doubtful[os.path.basename(directory)] = strays
    return doubtful


def strays_since(origin):
    """Return [[process id, name], ...] of the processes that began after a supervisor and whose
    origin cannot be told.
    """
    table = processes()
    new = {
        pid for pid, (_, state, start) in table.items() if start >= origin["ticks"] and state != "Z"
    }
    others = (
        set(ancestors_of(os.getpid()))
        | {os.getpid()}
        | set(marked_by("ORCH_RUN_ID", None, os.getuid()))
    )
    strays = []
    for pid in sorted(new):
        lineage = [pid]
        while table[lineage[-1]][0] in new:
            lineage.append(table[lineage[-1]][0])
        top = lineage[-1]
        is_orphan = table[top][0] in origin["reapers"] and name_of(top) not in (
            "orch-supervisor",
            "sshd",
            "sshd-session",
        )
        in_groups = all(below(line, groups_of(pid)) for line in origin["groups"])
        if is_orphan and in_groups and of_this_user(pid) and not others & set(lineage):
            strays.append([pid, name_of(pid)])
    return strays


def of_this_user(pid):
    """Return True if a process is one of this user, or if this user is root, whose programs may
    become any user.
    """
    try:
        return os.getuid() in (0, os.stat("/proc/%d" % pid).st_uid)
    except OSError:
        return False


def below(line, lines):
    """Return True if one of a process's control groups is the group of ``line`` or below it."""
    return any(other == line or other.startswith(line.rstrip("/") + "/") for other in lines)

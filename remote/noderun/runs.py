"""The runs of a work directory, whether their supervisors are alive, and the processes that belong to them."""

import contextlib
import fcntl
import os

from noderun.groups import group_of, members, remove_group
from noderun.processes import bearers


def runs_of(root, run_id=None):
    """Return {run id: its directory} of all runs of a work directory, or of one run only."""
    runs = os.path.join(root, "runs")
    names = sorted(os.listdir(runs)) if os.path.isdir(runs) else []
    return {name: os.path.join(runs, name) for name in names if run_id in (None, name)}


def supervisor_lives(directory):
    """Return True if a run's supervisor is alive. It holds a lock while it lives; a socket file can outlive it."""
    try:
        handle = os.open(os.path.join(directory, "supervisor.alive"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(handle)


def sweep(root):
    """Remove variables and empty control groups of runs whose supervisor is gone: if it was killed, nothing else does."""
    for directory in runs_of(root).values():
        group, variables = group_of(directory), os.path.join(directory, "env.sh")
        if (group or os.path.lexists(variables)) and not supervisor_lives(directory):
            remove_group(group)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(variables)


def belonging(root, run_id=None):
    """Return {pid: (start time, run id)} of the processes of one run, or of all: by its marker or by its control group."""
    owned = bearers(run_id)
    for name, directory in runs_of(root, run_id).items():
        for pid, start in members(group_of(directory)).items():
            owned.setdefault(pid, (start, name))
    return owned

"""The runs of a work directory, whether their keepers live, and the processes that belong to them."""

import contextlib
import fcntl
import os

from noderun.groups import group_of, members, remove_group
from noderun.processes import bearers


def runs_of(root, wanted=None):
    """Return {run id: its directory} of the runs of a work directory, or of the one run that is wanted."""
    runs = os.path.join(root, "runs")
    names = sorted(os.listdir(runs)) if os.path.isdir(runs) else []
    return {name: os.path.join(runs, name) for name in names if wanted in (None, name)}


def keeper_lives(directory):
    """Tell whether a run's keeper lives. It holds a lock for as long as it does; a socket file may outlive its owner."""
    try:
        handle = os.open(os.path.join(directory, "keeper.alive"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
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
    """Remove variables and empty control groups of runs whose keeper is gone: where it was killed, nobody else does."""
    for directory in runs_of(root).values():
        group, variables = group_of(directory), os.path.join(directory, "env.sh")
        if (group or os.path.lexists(variables)) and not keeper_lives(directory):
            remove_group(group)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(variables)


def belonging(root, run_id=None):
    """Return {pid: (start time, run id)} of what is a run's, or any run's: bearers of its marker, members of its group."""
    found = bearers(run_id)
    for name, directory in runs_of(root, run_id).items():
        for pid, start in members(group_of(directory)).items():
            found.setdefault(pid, (start, name))
    return found

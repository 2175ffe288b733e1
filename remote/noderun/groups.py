"""Control groups: one for each run where this user may make one, and the kernel's count of kills for memory."""

import os

from noderun.files import read_slice
from noderun.processes import processes


def own_groups(controller):
    """Return (directory, whether of the unified hierarchy) of the control groups of one controller that this process is in."""
    with open("/proc/self/cgroup") as file:
        groups = [line.rstrip("\n").split(":", 2)[1:] for line in file]
    with open("/proc/self/mounts") as file:
        mounts = [line.split()[1:4] for line in file]
    found = []
    for target, kind, options in mounts:
        for names, group in groups:
            if kind == "cgroup" and controller in names.split(",") and controller in options.split(","):
                found.append((os.path.join(target, group.lstrip("/")), False))
            elif kind == "cgroup2" and not names:
                found.append((os.path.join(target, group.lstrip("/")), True))
    return found


def memory_counters():
    """Return the files that may count kills for memory, the most telling first."""
    names = {True: "memory.events", False: "memory.oom_control"}
    return [os.path.join(path, names[unified]) for path, unified in own_groups("memory")] + ["/proc/vmstat"]


def oom_kills():
    """Return how many processes the kernel has killed for memory so far: in this process's control group, else on the node."""
    for path in memory_counters():
        try:
            with open(path) as file:
                counts = dict(line.split() for line in file if len(line.split()) == 2)
            return int(counts["oom_kill"])
        except (OSError, KeyError, ValueError):
            continue
    return 0


def make_group(name):
    """Make a control group below this process's own and return its directory; an empty text where that is not allowed.

    What is started in it stays in it, whatever it does to its parents, its session and its environment.
    """
    for parent, _ in own_groups("pids"):
        path = os.path.join(parent, name)
        try:
            os.mkdir(path)
        except FileExistsError:
            pass  # of an attempt before, for which a port was taken
        except OSError:
            continue
        if os.path.exists(os.path.join(path, "cgroup.procs")):
            return path
    return ""


def group_of(directory):
    """Return the control group that a run's keeper has noted, if it bears the run's name; an empty text where it has none."""
    path = read_slice(os.path.join(directory, "group"), 0, 4096).decode("utf-8", "replace").strip()
    ours = os.path.basename(path).startswith("orch-%s-" % os.path.basename(directory))
    return path if ours and os.path.isdir(path) else ""


def members(group):
    """Return {pid: start time} of what lives in a control group and in those below it."""
    found = {}
    now = processes() if group else {}
    for path, _, _ in os.walk(group) if group else ():
        try:
            words = read_slice(os.path.join(path, "cgroup.procs"), 0, 1 << 20).split()
        except OSError:  # its keeper has removed it since it was opened: ENODEV
            continue
        for word in words:
            # Zero stands for a process that this process namespace does not show.
            if int(word) in now and now[int(word)][1] != "Z":
                found[int(word)] = now[int(word)][2]
    return found


def remove_group(group):
    """Remove an empty control group and those below it; one that is not empty stays."""
    for path, _, _ in os.walk(group, topdown=False) if group else ():
        try:
            os.rmdir(path)
        except OSError:
            continue

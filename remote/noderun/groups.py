"""Control groups: one per run where this user may create one, and the kernel's count of
out-of-memory kills.
"""

import os

from noderun.files import read_slice
from noderun.processes import processes
from noderun.sysfs import first_line


def own_groups(controller):
    """Return [(directory, is unified)] of the control groups of one controller that contain this
    process. A container may have its own group mounted in place of the hierarchy, and still be told
    the group's name in the whole of it.
    """
    with open("/proc/self/cgroup") as file:
        groups = [line.rstrip("\n").split(":", 2)[1:] for line in file]
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file]
    directories = []
    for words in mounts:
        top, target, kind, options = words[3], words[4], words[-3], words[-1]
        for names, whole in groups:
            group = whole[len(top) :] if (whole + "/").startswith(top + "/") else whole
            if (
                kind == "cgroup"
                and controller in names.split(",")
                and controller in options.split(",")
            ):
                directories.append((os.path.join(target, group.lstrip("/")), False))
            elif kind == "cgroup2" and not names:
                directories.append((os.path.join(target, group.lstrip("/")), True))
    return directories


def memory_counters():
    """Return the files that may count out-of-memory kills, the most specific first."""
    names = {True: "memory.events", False: "memory.oom_control"}
    return [os.path.join(path, names[unified]) for path, unified in own_groups("memory")] + [
        "/proc/vmstat"
    ]


def usable_memory_bytes():
    """Return the bytes that this process and its children may use: the machine's memory, or the
    limit of a control group.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path, unified in own_groups("memory"):
        while unified and len(path) > 1:
            words = first_line(path, "memory.max")
            limits += [int(words)] if words.isdigit() else []
            path = os.path.dirname(path)
        if not unified:  # the lowest limit of this group and its ancestors
            stat = (
                read_slice(os.path.join(path, "memory.stat"), 0, 65536)
                .decode("utf-8", "replace")
                .split()
            )
            values = dict(zip(stat[::2], stat[1::2]))
            limits += (
                [int(values["hierarchical_memory_limit"])]
                if "hierarchical_memory_limit" in values
                else []
            )
    return min(limits)


def usable_cpus():
    """Return how many processors' time the control groups leave to this process and its children
    together; None without a limit.
    """
    limits = []
    for path, unified in own_groups("cpu"):
        names = ["cpu.max"] if unified else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        while len(path) > 1:
            words = " ".join(first_line(path, name) for name in names).split()
            if len(words) == 2 and words[0].isdigit():
                limits.append(round(int(words[0]) / int(words[1]), 2))
            path = os.path.dirname(path)
    return min(limits) if limits else None


def oom_kills():
    """Return the number of out-of-memory kills so far: in this process's control group, else on the
    whole node.
    """
    for path in memory_counters():
        try:
            with open(path) as file:
                counts = dict(line.split() for line in file if len(line.split()) == 2)
            return int(counts["oom_kill"])
        except (OSError, KeyError, ValueError):
            continue
    return 0


def make_group(name):
    """Create a control group below this process's own and return its directory; empty if that is
    not allowed.

    Processes started in it stay in it, whatever they do to their parents, their session and their
    environment.
    """
    for parent, _ in own_groups("pids"):
        path = os.path.join(parent, name)
        try:
            os.mkdir(path)
        except FileExistsError:
            pass  # left by an earlier attempt whose port was taken
        except OSError:
            continue
        if os.path.exists(os.path.join(path, "cgroup.procs")):
            return path
    return ""


def group_of(directory):
    """Return the control group noted by a run's supervisor if its name is the run's; empty if there
    is none.
    """
    path = read_slice(os.path.join(directory, "group"), 0, 4096).decode("utf-8", "replace").strip()
    is_of_run = os.path.basename(path).startswith("orch-%s-" % os.path.basename(directory))
    return path if is_of_run and os.path.isdir(path) else ""


def find_groups(number, controllers=("pids", "name=systemd")):
    """Return the control groups of the container with this id, in the first hierarchy of these
    controllers that has any.

    Engines name them after the id: ``docker/ID``, ``docker-ID.scope``, ``libpod-ID``. The group of
    podman's own conmon is left out.
    """
    with open("/proc/self/mounts") as file:
        mounts = [line.split()[1:4] for line in file]
    for target, kind, options in mounts:
        if kind == "cgroup2" or kind == "cgroup" and set(controllers) & set(options.split(",")):
            paths = [
                path
                for path, _, _ in os.walk(target)
                if number in os.path.basename(path) and "conmon" not in path
            ]
            if paths:
                return paths
    return []


def can_be_seen(group):
    """Return True if this control group can be looked at from here, or, where it is gone, what it
    was in.

    Where its file system is hidden or no longer mounted nothing is there, and that shows no end.
    """
    while not os.path.isdir(group):
        group = os.path.dirname(group)
    return os.path.exists(os.path.join(group, "cgroup.procs"))


def seconds_used(group):
    """Return the processor seconds that a control group counts; None if it counts none, or is gone."""
    words = read_slice(os.path.join(group, "cpuacct.usage"), 0, 64).split()
    if words:
        return int(words[0]) / 1e9
    for line in read_slice(os.path.join(group, "cpu.stat"), 0, 4096).decode().splitlines():
        if line.startswith("usage_usec "):
            return int(line.split()[1]) / 1e6
    return None


def members(group):
    """Return {pid: start time} of the live processes in a control group and in those below it."""
    living = {}
    now = processes() if group else {}
    for path, _, _ in os.walk(group) if group else ():
        try:
            words = read_slice(os.path.join(path, "cgroup.procs"), 0, 1 << 20).split()
        except OSError:  # ENODEV: its supervisor has removed it since it was opened
            continue
        for word in words:
            # Zero stands for a process outside this process namespace.
            if int(word) in now and now[int(word)][1] != "Z":
                living[int(word)] = now[int(word)][2]
    return living


def remove_group(group):
    """Remove an empty control group and those below it; groups that are not empty stay."""
    for path, _, _ in os.walk(group, topdown=False) if group else ():
        try:
            os.rmdir(path)
        except OSError:
            continue

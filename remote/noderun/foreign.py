"""Processes on this node that are not of the run: which of them use the processors, and which are
on its GPUs.
"""

import os

from noderun.files import read_slice
from noderun.processes import name_of, owners

BUSY_CORES = 0.25
"""A process that uses less than this share of one core is not looked at."""
MOST_TOLD = 8


class Foreign:
    """Foreign processes on the processors.

    ``foreign_s``: processor seconds of processes outside the run since the first look; each look
    counts processes that live at both of its ends. The first times that one of them uses more than
    half a core, it is reported by name.
    """

    columns = ["foreign_s"]

    def __init__(self, settings, tell):
        self.run = OwnProcesses(settings)
        self.tell = tell
        self.ticks = os.sysconf("SC_CLK_TCK")
        self.before = {}
        self.looked = 0.0
        self.total_s = 0.0
        self.told = set()

    def read(self, now):
        """Look at all processes."""
        table = busy_ticks()
        elapsed_s = now - self.looked
        if self.before:
            own = self.run.tree(table)
            for pid, (_, start, used) in table.items():
                known = self.before.get(pid)
                if known and known[1] == start and pid not in own:
                    used_s = (used - known[2]) / self.ticks
                    if used_s >= BUSY_CORES * elapsed_s and not self.run.has(pid):
                        self.total_s += used_s
                        self.say(pid, used_s / elapsed_s)
        self.before, self.looked = table, now
        return [round(self.total_s, 2)]

    def say(self, pid, cores):
        """Tell of a process once."""
        if pid not in self.told and len(self.told) < MOST_TOLD and cores > 2 * BUSY_CORES:
            self.told.add(pid)
            user = owners([str(pid)]).get(str(pid), "")
            self.tell(event="busy", pid=pid, name=name_of(pid), user=user, cores=round(cores, 2))


class OwnProcesses:
    """Recognises the processes of the run: they descend from its supervisor, bear its mark, or are
    in its container.
    """

    def __init__(self, settings):
        self.supervisor = settings["supervisor"]
        self.mark = b"ORCH_RUN_ID=%s\0" % settings["run_id"].encode()
        self.container = ""
        self.known = {os.getpid(): True, self.supervisor: True}

    def tree(self, table):
        """Return the descendants of the supervisor, by {pid: (parent, …)}."""
        children = {}
        for pid, entry in table.items():
            children.setdefault(entry[0], []).append(pid)
        own, queue = {self.supervisor}, [self.supervisor]
        while queue:
            for pid in children.get(queue.pop(), ()):
                own.add(pid)
                queue.append(pid)
        return own

    def has(self, pid):
        """Return True if a process is of the run. What cannot be known counts as of the run."""
        if pid not in self.known:
            if len(self.known) > 4096:
                self.known = {os.getpid(): True, self.supervisor: True}
            self.known[pid] = self.look_at(pid)
        return self.known[pid]

    def look_at(self, pid):
        """Look at the ancestors, the environment and the control groups of a process."""
        ancestor = pid
        for _ in range(64):
            if ancestor == self.supervisor:
                return True
            entry = stat_of(ancestor)
            if entry is None or entry[0] <= 1:
                break
            ancestor = entry[0]
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                if self.mark in b"\0" + file.read(1 << 20) + b"\0":
                    return True
        except OSError:
            pass  # of another user
        if not self.container:
            self.container = read_slice("container.id", 0, 128).decode("ascii", "replace").strip()
        groups = read_slice("/proc/%d/cgroup" % pid, 0, 1 << 16).decode("utf-8", "replace")
        is_inside = len(self.container) >= 12 and self.container in groups
        return is_inside or not os.path.isdir("/proc/%d" % pid)


def stat_of(pid):
    """Return (parent, start time, clock ticks on processors) of a process; None if it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read(1024).rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return None


def busy_ticks():
    """Return {pid: (parent, start time, clock ticks on processors)} of all processes."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            entry = stat_of(int(name))
            if entry:
                table[int(name)] = entry
    return table

"""One look at all ranks of a run on this node: what each does or waits for, as the kernel and the
rank itself tell.

Everything is read from /proc, except what our own trainers write when they are asked
(`noderun.stacks`). No process is stopped, traced or changed. What this user may not read is left
out.
"""

import os
import time

from noderun.processes import is_python, lives, numbers_of, processes
from noderun.records import read_record
from noderun.sockets import connections, interfaces
from noderun.stacks import Question, RasQuestion, own_words
from noderun.stall import read_progress
from noderun.sysfs import first_line, names_in
from noderun.vendors import VENDORS

EXAMINE_SCHEMA = 1
WINDOW_S = 0.5
MOST_RANKS = 256
MOST_THREADS = 24
MOST_CHILDREN = 24
MOST_HOLDERS = 4
MOST_LAUNCHERS = 8
GPU_FILES = tuple(path for vendor in VENDORS for path in vendor.opened)
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
# System calls that tell what a thread waits for, by machine: /proc/<pid>/syscall has numbers.
CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select",
        24: "sched_yield", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
        47: "recvmsg", 61: "wait4", 73: "flock", 74: "fsync", 75: "fdatasync", 202: "futex", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
    },
    "aarch64": {
        22: "epoll_pwait", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write", 65: "readv", 66: "writev",
        67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex",
        101: "nanosleep", 115: "clock_nanosleep", 124: "sched_yield", 202: "accept", 203: "connect", 206: "sendto",
        207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 260: "wait4",
    },
}  # fmt: skip
OF_A_DESCRIPTOR = (
    "read", "write", "readv", "writev", "pread64", "pwrite64", "ioctl", "sendto", "recvfrom", "sendmsg", "recvmsg", "connect",
    "accept", "flock", "fsync", "fdatasync",
)  # fmt: skip
WRITING = ("write", "writev", "pwrite64")


def examine(directory, owned):
    """Return the activity of every rank of a run. ``owned``: the process ids of the run on this
    node.

    Takes about a second, some more if ranks do not answer.
    """
    ranks = rank_processes(directory)
    table = processes()
    trees = {rank: tree_of(pid, table) for rank, pid in ranks.items()}
    states = {rank: of_task("/proc/%d" % pid)["state"] for rank, pid in ranks.items()}
    halted = [rank for rank, pid in ranks.items() if states[rank] in ("T", "t") or is_frozen(pid)]
    # They answer before they are watched, so that what an answer costs them is not taken for their
    # own work.
    words = own_words(
        {rank: Question(directory, rank, pid) for rank, pid in ranks.items() if rank not in halted}
    )
    before = {rank: look_at_tree(tree) for rank, tree in trees.items()}
    began, counters = time.monotonic(), interfaces()
    ras = RasQuestion([pid for pid in owned if pid not in {ranks[rank] for rank in halted}])
    time.sleep(max(0.0, began + WINDOW_S - time.monotonic()))
    entries = []
    for rank in sorted(ranks):
        first, (entry, *children) = before[rank], look_at_tree(trees[rank])
        entry.update(
            rank=rank,
            was=first[0]["state"],
            window_s=round(time.monotonic() - began, 3),
            cpu_s=round(spent_between(first[:1], [entry]), 3),
            children_cpu_s=round(spent_between(first[1:], children), 3),
            io_bytes=sum(
                max(0, late["io"] - early["io"]) for early, late in zip(first, [entry] + children)
            ),
            progress=read_progress(os.path.join(directory, "ranks", "%d.progress" % rank)),
            children=[brief(child) for child in children],
            frozen=is_frozen(ranks[rank]),
            connections=connections(ranks[rank]),
        )
        of_threads = {thread["tid"]: thread for thread in first[0]["threads"]}
        for thread in entry["threads"]:
            thread["cpu_s"] = round(
                max(0.0, thread["used_s"] - of_threads.get(thread["tid"], thread)["used_s"]), 3
            )
        entries.append(entry)
    for entry in entries:
        entry["device"] = uses_device(entry["pid"])
        entry.update(words.get(entry["rank"], {}))
        entry["blocked_pipe"] = blocked_pipe(entry)
    return {
        "schema": EXAMINE_SCHEMA,
        "mono": time.monotonic(),
        "ranks": entries,
        "ended": ended_ranks(directory),
        "stopped": stopped_launchers(owned, table, trees),
        "interfaces": {
            name: grown_by(counters.get(name), counts) for name, counts in interfaces().items()
        },
        "ras": ras.words(),
    }


def look_at_tree(tree):
    """Return the states of a process and of its descendants; of the first one with its threads."""
    return [examine_process(tree[0], True)] + [examine_process(child, False) for child in tree[1:]]


def grown_by(before, after):
    """Return the growth of counters; a card that was not there before counts from 0."""
    return [late - early for late, early in zip(after, before or [0] * len(after))]


def rank_records(directory):
    """Yield the records of all ranks of a run."""
    folder = os.path.join(directory, "ranks")
    for name in sorted(names_in(folder)):
        if name.endswith(".json"):
            try:
                record = read_record(os.path.join(folder, name))
            except (OSError, ValueError):
                continue
            yield record


def ended_ranks(directory):
    """Return the ranks that have ended well."""
    return sorted(record["rank"] for record in rank_records(directory) if record.get("code") == 0)[
        :MOST_RANKS
    ]


def rank_processes(directory):
    """Return {rank: pid} of the ranks that still run, as their numbers are here."""
    pids = {}
    for record in rank_records(directory):
        rank, pid = record["rank"], record.get("pid")
        if pid is None or "ended_mono_s" in record or not lives(record):
            continue
        wrapper = record.get("outer", record.get("wrapper"))
        if (
            record.get("outer") is not None
        ):  # in a process namespace of its own it has another number here
            inner = [
                number
                for number in tree_of(wrapper, processes())[1:]
                if numbers_of(number)[-1:] == [pid]
            ]
            pid = inner[0] if inner else None
        if pid is not None and os.path.exists("/proc/%d" % pid) and len(pids) < MOST_RANKS:
            pids[rank] = program_of(pid)
    return pids


def program_of(pid):
    """Return the process that does the work of a rank: a shell, or a launcher in Python, waits for
    its only child.
    """
    table = processes()
    for _ in range(MOST_LAUNCHERS):
        children = [
            number for number, (parent, state, _) in table.items() if parent == pid and state != "Z"
        ]
        if len(children) != 1 or of_task("/proc/%d" % pid)["call"] not in ("wait4", "waitid"):
            break
        if is_python(pid) and not is_python(children[0]):
            break  # a program that waits for one of its tools
        pid = children[0]
    return pid


def stopped_launchers(owned, table, trees):
    """Return [[pid, name]] of the stopped processes of a run that belong to no rank: launch scripts
    and launchers.
    """
    of_ranks = {pid for tree in trees.values() for pid in tree}
    stopped = [pid for pid in owned if pid not in of_ranks and table.get(pid, (0, "", 0))[1] == "T"]
    return [[pid, first_line("/proc/%d" % pid, "comm")] for pid in stopped[:MOST_LAUNCHERS]]


def uses_device(pid):
    """Return True if a process has a GPU open, so that its calls may wait for work that is queued
    there.
    """
    folder = "/proc/%d/fd" % pid
    for descriptor in names_in(folder):
        try:
            if os.readlink(os.path.join(folder, descriptor)).startswith(GPU_FILES):
                return True
        except OSError:
            continue
    return False


def tree_of(pid, table):
    """Return a process and its descendants, itself first."""
    children = {}
    for number, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(number)
    tree, queue = [], [pid]
    while queue and len(tree) <= MOST_CHILDREN:
        number = queue.pop(0)
        tree.append(number)
        queue.extend(sorted(children.get(number, ())))
    return tree


def examine_process(pid, whole):
    """Return the state of a process, and of its threads if ``whole``."""
    entry = {"pid": pid, "threads": []}
    entry.update(of_task("/proc/%d" % pid))
    entry["io"] = 0
    for line in read_text("/proc/%d/io" % pid).splitlines():
        name, _, number = line.partition(":")
        if name in ("rchar", "wchar"):
            entry["io"] += int(number)
    if whole:
        tids = sorted(int(name) for name in names_in("/proc/%d/task" % pid) if name.isdigit())
        entry["stack"] = [
            line.split("] ", 1)[-1].split("+")[0]
            for line in read_text("/proc/%d/stack" % pid).splitlines()[:16]
        ]
        for tid in tids[:MOST_THREADS]:
            entry["threads"].append(dict(of_task("/proc/%d/task/%d" % (pid, tid)), tid=tid))
        entry["thread_count"] = len(tids)
    return entry


def of_task(path):
    """Return name, state, processor seconds, wait channel and system call of a process or thread."""
    stat = read_text(path + "/stat")
    fields = stat.rpartition(")")[2].split()
    used = (int(fields[11]) + int(fields[12])) * TICK_S if len(fields) > 12 else 0.0
    channel = first_line(path, "wchan")
    name, descriptor = system_call(path)
    entry = {
        "name": stat.partition("(")[2].rpartition(")")[0],
        "state": fields[0] if fields else "",
        "used_s": used,
        "wchan": "" if channel == "0" else channel,
        "call": name,
    }
    if descriptor is not None:
        entry["of"] = descriptor
    return entry


def system_call(path):
    """Return (name, what its descriptor is or None) of the system call that a thread is in; an
    empty name if unknown.
    """
    words = first_line(path, "syscall").split()
    if len(words) < 2 or not words[0].isdigit():
        return "", None
    name = CALLS.get(os.uname().machine, {}).get(int(words[0]), "")
    if name not in OF_A_DESCRIPTOR:
        return name, None
    try:
        # A thread's own folder has the same descriptors.
        return name, os.readlink("%s/fd/%d" % (path, int(words[1], 16) & 0xFFFFFFFF))[:200]
    except OSError:
        return name, None


def spent_between(before, after):
    """Return the processor seconds that the same processes used in between."""
    used = {entry["pid"]: entry["used_s"] for entry in before}
    return sum(
        max(0.0, entry["used_s"] - used.get(entry["pid"], entry["used_s"])) for entry in after
    )


def brief(entry):
    """Return the short entry of a process that is not a rank itself."""
    return {key: entry[key] for key in ("pid", "name", "state", "wchan", "call")}


def is_frozen(pid):
    """Return True if the process is in a control group that is frozen."""
    for line in read_text("/proc/%d/cgroup" % pid).splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        base = path.lstrip("/")
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"):
            folder = os.path.join(mount, base)
            if (
                "freezer" in controllers.split(",")
                and first_line(folder, "freezer.state") == "FROZEN"
            ):
                return True
            if not controllers and "frozen 1" in read_text(folder + "/cgroup.events").splitlines():
                return True
    return first_line("/proc/%d" % pid, "wchan") in ("__refrigerator", "do_freezer_trap")


def blocked_pipe(entry):
    """Return who may read the full pipe that a thread of a rank writes to, {"pipe": its name,
    "readers": [[pid, name, state]]}; None if no thread is blocked so."""
    for thread in entry["threads"]:
        target = thread.get("of", "")
        named = thread["call"] in WRITING and (target.startswith("pipe:") or is_fifo(target))
        if thread["state"] == "S" and (
            named or thread["wchan"] in ("pipe_write", "anon_pipe_write")
        ):
            return {"pipe": target, "readers": readers(target, entry["pid"])}
    return None


def is_fifo(path):
    """Return True if a path names a pipe in a folder."""
    import stat

    try:
        return path.startswith("/") and stat.S_ISFIFO(os.lstat(path).st_mode)
    except OSError:
        return False


def readers(target, writer):
    """Return [[pid, name, state]] of the processes that have the other end of a pipe open for
    reading, as far as this user may see them."""
    holders = []
    for pid, (_, state, _) in sorted(processes().items()) if target else ():
        if pid != writer and len(holders) < MOST_HOLDERS and reads(pid, target):
            holders.append([pid, first_line("/proc/%d" % pid, "comm"), state])
    return holders


def reads(pid, target):
    """Return True if a process has a file open for reading."""
    for descriptor in names_in("/proc/%d/fd" % pid):
        try:
            if os.readlink("/proc/%d/fd/%s" % (pid, descriptor)) != target:
                continue
        except OSError:
            continue
        for line in read_text("/proc/%d/fdinfo/%s" % (pid, descriptor)).splitlines():
            if line.startswith("flags:") and int(line.split()[1], 8) & os.O_ACCMODE != os.O_WRONLY:
                return True
    return False


def read_text(path):
    """Return a small file of the kernel; empty if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""

"""Processes from /proc, and signals only to those that are verified to be still the same ones."""

import os
import signal

LAB_MARKS = (
    "ORCH_LAB",
    "ORCH_LAB_NODE",
)  # the variables that tell nodes of a lab without namespaces from each other


def processes():
    """Return {pid: (parent pid, state, start time in clock ticks)} of every process in /proc."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                table[int(name)] = (int(fields[1]), fields[0].decode(), int(fields[19]))
            except (OSError, IndexError):
                continue
    return table


def descendants(ancestor):
    """Return {pid: start time} of all live descendants of a process."""
    table = processes()
    children = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    living, queue = {}, [ancestor]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if table[pid][1] != "Z":
                living[pid] = table[pid][2]
            queue.append(pid)
    return living


def bearers(run_id=None):
    """Return {pid: (start time, run id)} of this user's processes with a run's marker in their
    environment.

    ``run_id`` limits them to one run; without it, they are of any run of this node. Nodes of a lab
    without namespaces, and the machine that they are on, see each other's processes.
    """
    marked = marked_by("ORCH_RUN_ID", run_id, os.getuid())
    for name in LAB_MARKS if run_id is None and marked else ():
        mark, others = os.environ.get(name), marked_by(name, None, os.getuid())
        marked = {pid: marked[pid] for pid in marked if others.get(pid, (0, None))[1] == mark}
    return marked


def marked_by(name, value=None, user=None):
    """Return {pid: (start time, value)} of the processes that have a variable in their environment:
    with this value, or any; of this user, or of all whose environment can be read."""
    marker = b"%s=" % name.encode() + (value.encode() + b"\0" if value else b"")
    marked = {}
    for pid, (_, state, start) in processes().items():
        if pid == os.getpid() or state == "Z":
            continue
        try:
            if user is not None and os.stat("/proc/%d" % pid).st_uid != user:
                continue
            with open("/proc/%d/environ" % pid, "rb") as file:
                environment = b"\0" + file.read() + b"\0"
        except OSError:
            continue
        at = environment.find(b"\0" + marker)
        if at >= 0:
            own_value = environment[at + 1 :].split(b"\0", 1)[0].partition(b"=")[2]
            marked[pid] = (start, own_value.decode("utf-8", "replace"))
    return marked


def identity(pid):
    """Return the identity of a process among all of this boot, also from outside its process
    namespace: its number there, its start time and that namespace.
    """
    return {"wrapper": pid, "ticks": read_start(pid), "pids": os.readlink("/proc/self/ns/pid")}


def lives(known):
    """Return True if the process with this identity exists. In another process namespace it has
    another number here.
    """
    if known.get("pids", "") in ("", os.readlink("/proc/self/ns/pid")):
        return read_start(known["wrapper"]) == known["ticks"]
    if known.get("outer") is not None:  # looked for once: a rank is looked at many times a second
        return read_start(known["outer"]) == known["ticks"]
    for pid, (_, _, start) in processes().items():
        if start == known["ticks"] and numbers_of(pid)[-1:] == [known["wrapper"]]:
            known["outer"] = pid
            return True
    return False


def read_start(pid):
    """Return the start time of a process in clock ticks; None if it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


def numbers_of(pid, thread=None):
    """Return the numbers of a process, or of one of its threads, in its process namespaces, from
    here to the innermost.
    """
    folder = "/proc/%d" % pid if thread is None else "/proc/%d/task/%d" % (pid, thread)
    try:
        with open(folder + "/status") as file:
            return next(
                (
                    [int(word) for word in line.split()[1:]]
                    for line in file
                    if line.startswith("NSpid:")
                ),
                [],
            )
    except OSError:
        return []


def send_signal(targets, number):
    """Signal processes given as {pid: start time}, each only if its start time is still the same."""
    now = processes()
    for pid, start in targets.items():
        if pid in now and now[pid][2] == start:
            try:
                os.kill(pid, number)
            except OSError:
                continue


def ending(status):
    """Return (exit code, signal name) of a wait status; one of the two is None."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, "signal %d" % number
    return os.WEXITSTATUS(status), None


def name_of(pid):
    """Return the name of a process; empty if it has ended."""
    try:
        with open("/proc/%d/comm" % pid, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_python(pid):
    """Return True if a process runs an interpreter of Python."""
    try:
        return "python" in os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return False


def boot_id():
    """Return the kernel's identifier of this boot: process numbers are valid within one boot only."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def in_step():
    """Return True if this process belongs to a step of Slurm, which ends all its processes when it
    ends.
    """
    return "SLURM_STEP_ID" in os.environ


def owners(pids):
    """Return {pid: user name} of the first 1000 processes that exist here; those inside a container
    have other numbers.
    """
    import pwd

    users = {}
    for pid in pids[:1000]:
        try:
            number = os.stat("/proc/" + pid).st_uid
        except OSError:
            continue
        try:
            users[pid] = pwd.getpwuid(number).pw_name
        except KeyError:
            users[pid] = str(number)
    return users

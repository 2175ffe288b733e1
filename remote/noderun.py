"""The node's side of `orch`: one file, standard library only, python3.6 or newer, run with ``-I -S``.

It is called in three ways.

1. From standard input of an ssh channel, so that nothing has to be installed first: the source, then one JSON request line
   ``{"op": …, "nonce": …}``. The answer starts with the line ``ORCH <nonce>``, which tells it from whatever a login script
   prints, and goes on with JSON lines; after a line with ``"bytes": n`` follow n raw bytes. Operations: the ``op_…`` functions.
2. By a fork of its own: the keeper, ``orch-keeper`` among processes, one per run and node. Detached from ssh, it holds the
   node's lock, starts the launch script at the agreed instant, reaps whatever descends from it, and writes ``exit.json``. It
   listens on ``keeper.sock``; the controller speaks to it through `op_line`. Nobody renewing it for one lease means the end of
   the run.
3. ``noderun.py rank -- ARGV…``: one rank. It gives the rank its own log files and records how it ended.

What only some requests need is imported by these: each of many requests on many nodes starts this program anew.

Processes are ended by proven identity only: descendants of the keeper, members of the control group that it made for the run
where it may, or bearers of the run's marker ORCH_RUN_ID.
"""

import base64
import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import itertools
import json
import os
import re
import resource
import select
import signal
import socket
import stat
import sys
import time
import zlib

SCHEMA = 1
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
CHUNK = 1 << 18
PIECE = 1 << 20
LONG_PIECE = 1 << 23
PIPE_BYTES = 1 << 18
F_SETPIPE_SZ = 1031  # in fcntl from Python 3.10 on
SAMPLE = 1 << 16
POLL_S = 0.05
TAIL_BYTES = 16384
STUCK_S = 10.0
IDLE_S = 60
STAY_S = 15
LEAST_FREE_BYTES = 1 << 20
RESERVE_BYTES = 1 << 18
# Why clocks are lowered, as nvidia-smi counts it.
SLOWDOWNS = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
MAX_FILES = 4096
# What other programs say of this machine. They start together, and while others answer.
TOLD = {"smi": ["nvidia-smi", "-q", "-x"], "topology": ["nvidia-smi", "topo", "-m"]}
TOLD_S = 10
MOST_TOLD_BYTES = 1 << 22
MOST_LINES = 40
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


class Refused(Exception):
    """A request that cannot be met; travels to the controller as an error event with ``kind`` and ``message``."""

    def __init__(self, kind, message, **context):
        super().__init__(message)
        self.fields = dict(context, kind=kind, message=message)


def why(error, doing):
    """Return in words what the system did not do, and why: the path, or where there is none what was being done."""
    return "%s: %s" % (doing if error.filename is None else os.fsdecode(error.filename), error.strerror or error)


# ------------------------------------------------------------------ files


def root_directory(path):
    """Return the work directory as an absolute path, made if missing. Refuses one that somebody else could write to."""
    home = os.path.expanduser("~")
    if path.startswith("~") and not os.path.isdir(home):
        raise Refused("node_unfit", "work directory %s: there is no %s; make it, or set vars.workdir" % (path, home))
    path = os.path.abspath(os.path.expanduser(path))
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise Refused("node_unfit", "work directory %s: %s" % (path, error.strerror))
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Refused("node_unfit", "work directory %s: expected a directory of user %d" % (path, os.getuid()))
    if found.st_mode & 0o022:
        raise Refused("node_unfit", "work directory %s: expected mode 0700, got %04o" % (path, found.st_mode & 0o7777))
    return path


def inside(root, relative):
    """Return root/relative. Refuses names that would leave the work directory or hide in it."""
    parts = relative.split("/")
    if not all(NAME.match(part) for part in parts):
        raise Refused("unsafe_path", "unsafe path %r" % relative)
    return os.path.join(root, *parts)


def digest_of(path, size=float("inf")):
    """Return the SHA-256 of a file, or of its first ``size`` bytes, as hexadecimal text."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(int(min(size, 1 << 20)))
            if not block:
                break
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def write_whole(path, blocks, mode=0o600):
    """Write a file under a temporary name, flush it to disk and rename it: it is there whole or not at all."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_json(path, value):
    """Write one JSON value, whole or not at all."""
    write_whole(path, [json.dumps(value, sort_keys=True).encode() + b"\n"])


def free_bytes(path):
    """Return the room that is left on the disk of a path, in bytes."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def unwritten(error, path, disk, needed):
    """Return the refusal that an error on writing to a path stands for; of a full disk, with what was needed and is free."""
    words = "%s: %s" % (path, error.strerror or error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return Refused("node_unfit", words)
    return Refused("storage_full", "%s; needed %d bytes, free %d" % (words, needed, free_bytes(disk)))


def log_files(directory):
    """Return {name: size} of the regular files in a run's log folder; links and special files are left out."""
    found = {}
    for entry in os.scandir(os.path.join(directory, "logs")):
        try:
            if NAME.match(entry.name) and entry.is_file(follow_symlinks=False):
                found[entry.name] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
    return found


def in_order(sizes):
    """Return names of logs, those of node and ranks first: a program that makes many files must not displace them."""
    return sorted(sizes, key=lambda name: (not name.startswith(("node.", "rank-")), name))


def odd_files(directory):
    """Return some names in a run's log folder that are never opened nor sent: links, special files, names not allowed."""
    found = []
    for entry in os.scandir(os.path.join(directory, "logs")):
        if not (NAME.match(entry.name) and entry.is_file(follow_symlinks=False)):
            found.append(entry.name[:200])
            if len(found) == 20:
                break
    return sorted(found)


# ------------------------------------------------------------------ processes


def processes():
    """Return {pid: (parent pid, state, start time in ticks)} of every process that /proc shows."""
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
    """Return {pid: start time} of all living descendants of a process."""
    table = processes()
    children = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, queue = {}, [ancestor]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if table[pid][1] != "Z":
                found[pid] = table[pid][2]
            queue.append(pid)
    return found


def bearers(run_id=None):
    """Return {pid: (start time, run id)} of this user's processes whose environment carries a run's marker."""
    wanted = b"ORCH_RUN_ID=" + (run_id.encode() + b"\0" if run_id else b"")
    found = {}
    for pid, (_, state, start) in processes().items():
        if pid == os.getpid() or state == "Z":
            continue
        try:
            if os.stat("/proc/%d" % pid).st_uid != os.getuid():
                continue
            with open("/proc/%d/environ" % pid, "rb") as file:
                environment = b"\0" + file.read() + b"\0"
        except OSError:
            continue
        at = environment.find(b"\0" + wanted)
        if at >= 0:
            name = environment[at + 1 :].split(b"\0", 1)[0].partition(b"=")[2]
            found[pid] = (start, name.decode("utf-8", "replace"))
    return found


def send_signal(targets, number):
    """Signal processes given as {pid: start time}, each only while its start time is still the same."""
    now = processes()
    for pid, start in targets.items():
        if pid in now and now[pid][2] == start:
            try:
                os.kill(pid, number)
            except OSError:
                continue


def ending(status):
    """Return (exit code, signal name) of a wait status; one of them is None."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, "signal %d" % number
    return os.WEXITSTATUS(status), None


def boot_id():
    """Return the kernel's identity of this boot: process numbers mean nothing beyond it."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


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


def memory_counters():
    """Return the files that may count kills for memory, the most telling first."""
    names = {True: "memory.events", False: "memory.oom_control"}
    return [os.path.join(path, names[unified]) for path, unified in own_groups("memory")] + ["/proc/vmstat"]


# ------------------------------------------------------------------ control groups


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


def runs_of(root, wanted=None):
    """Return {run id: its directory} of the runs of a work directory, or of the one run that is wanted."""
    runs = os.path.join(root, "runs")
    names = sorted(os.listdir(runs)) if os.path.isdir(runs) else []
    return {name: os.path.join(runs, name) for name in names if wanted in (None, name)}


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


# ------------------------------------------------------------------ one rank


def ask_slowdowns():
    """Begin to ask for how many microseconds, since the driver was loaded, each reason has lowered the clocks of each GPU
    of this run; None where there is no nvidia-smi. Its answer waits in a pipe, so that nobody need wait for it."""
    if not any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path()):
        return None  # before the module is imported that would find out: ranks start at once, on many nodes
    import subprocess

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    query = "--query-gpu=" + ",".join("clocks_event_reasons_counters." + name for name in SLOWDOWNS)
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"] + (["--id=" + visible] if visible else [])
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def slowdowns(asked):
    """Return the answer, a row for each GPU; none where the driver does not count, as older ones, or does not answer in 5 s,
    or was not asked."""
    if asked is None:
        return []
    import subprocess

    try:
        text = asked.communicate(timeout=5)[0].decode("utf-8", "replace")
        return [[int(field) for field in line.split(",")] for line in text.splitlines()]
    except ValueError:  # words in place of numbers
        return []
    except subprocess.TimeoutExpired:
        asked.kill()
        return []


def slowed_us(before, after):
    """Return by reason the growth of the GPU whose clocks it lowered longest; without those that lowered none."""
    grown = [[late - early for early, late in zip(*rows)] for rows in zip(before, after)]
    longest = dict(zip(SLOWDOWNS, map(max, zip(*grown))))
    return {name: number for name, number in longest.items() if number > 0}


def rank_main(argv):
    """Run one rank with its own log files and leave ``ranks/<rank>.json``; end with its exit code, or 128 + its signal."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    streams = []
    for ending_name in ("out", "err"):
        path = os.path.join("logs", "rank-%d.%s" % (rank, ending_name))
        streams.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
    record = {"rank": rank, "local_rank": local_rank, "wrapper": os.getpid(), "started_mono_s": time.monotonic()}
    # The launcher ends a rank by signalling its process group; the child dies of it, and the wrapper stays to say so.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    pid = os.fork()
    if pid == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, ("%s: %s\n" % (argv[0], error.strerror)).encode())
            os._exit(127 if error.errno == errno.ENOENT else 126)
    path = os.path.join("ranks", "%d.json" % rank)
    write_json(path, dict(record, pid=pid))
    asked = ask_slowdowns() if local_rank == 0 else None
    code, name = ending(os.waitpid(pid, 0)[1])
    record.update(pid=pid, code=code, signal=name, ended_mono_s=time.monotonic())
    if asked and code == 0:  # a rank that failed is told at once
        record["slowed_us"] = slowed_us(slowdowns(asked), slowdowns(ask_slowdowns()))
    write_json(path, record)
    return code if code is not None else 128 + getattr(signal, name, 0)


# ------------------------------------------------------------------ the keeper


class Keeper:
    """The owner of one run's processes on one node. States: new, armed, running, stopping, ended."""

    def __init__(self, directory):
        self.directory = directory
        self.state = "new"
        self.order = {}
        self.renewed = time.monotonic()
        self.main = 0
        self.main_status = None
        self.gate = None
        self.report = None
        self.started = None
        self.stop_reason = ""
        self.stopped = None
        self.killed_at = None
        self.group = ""
        self.ranks = {}
        self.rank_files = {}
        self.record = None
        self.logs_checked = 0.0
        self.progress = (0, 0.0)
        self.oom_kills = 0
        self.connections = {}
        self.owner = b""
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # of the node's name, once that is ours
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A relative name: the path of a socket holds 107 bytes at most, a work directory may be longer.
        self.listener.bind("keeper.sock")
        self.listener.listen(4)

    def serve(self):
        """Run until there is nothing left to own and nobody left to tell."""
        while self.state != "gone":
            doors = [self.listener, self.door] if self.owner else [self.listener]
            ready = select.select(doors + list(self.connections), [], [], POLL_S)[0]
            # It is in the wait that a frozen node stands still, so lateness is judged after it and before what waited there.
            self.judge_lateness()
            for connection in ready:
                if connection is self.listener:
                    self.accept()
                elif connection is self.door:
                    self.introduce()
                elif connection in self.connections:
                    self.receive(connection)
            self.reap()
            if self.state in ("running", "stopping"):
                self.watch()
        self.listener.close()

    # -- the controller's side

    def accept(self):
        """Take one more connection: the controller's, a re-attached one, or that of somebody who wants the run stopped."""
        connection, _ = self.listener.accept()
        connection.settimeout(5)
        self.connections[connection] = b""
        self.answer(connection, "hello", state=self.state, started=self.started, record=self.record, boot_id=boot_id())

    def introduce(self):
        """Say whose this node is, to somebody who may be of another work directory or user, and hang up."""
        asking, _ = self.door.accept()
        with asking, contextlib.suppress(OSError):
            asking.setblocking(False)
            asking.send(self.owner)

    def tell(self, event, **fields):
        """Send one event to everybody who is connected."""
        for connection in list(self.connections):
            self.answer(connection, event, **fields)

    def answer(self, connection, event, **fields):
        """Send one event to one side. Who does not take it within 5 s has lost the line; the run goes on."""
        try:
            connection.sendall(json.dumps(dict(fields, event=event)).encode() + b"\n")
        except OSError:
            self.hang_up(connection)

    def hang_up(self, connection):
        """Forget a connection. Where it was the last one and nothing runs, go: without a go-word nothing is started."""
        connection.close()
        self.connections.pop(connection, None)
        if not self.connections and self.state in ("new", "armed", "ended"):
            self.state = "gone"

    def receive(self, connection):
        """Read what came and obey each whole line."""
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.hang_up(connection)
            return
        *lines, self.connections[connection] = (self.connections[connection] + data).split(b"\n")
        for line in lines:
            try:
                order = json.loads(line.decode())
                do = getattr(self, "do_" + order["do"])
            except (ValueError, KeyError, TypeError, AttributeError):
                self.hang_up(connection)
                return
            try:
                self.obey(do, order, connection)
            except Refused as refusal:
                self.answer(connection, "error", **refusal.fields)
                self.hang_up(connection)
            if connection not in self.connections:
                return

    def obey(self, do, order, connection):
        """Do as ordered. Before the start an error refuses the run; later nothing that a controller says touches files."""
        try:
            do(order, connection)
        except OSError as error:
            # A write to an open file fails without its name, and other names are as seen from the run's directory.
            path = os.path.join(self.directory, error.filename) if error.filename else self.directory
            raise unwritten(error, path, self.directory, RESERVE_BYTES + len(order.get("variables", "").encode()))

    def do_arm(self, order, connection):
        """Take the node's lock, check every file, say armed. The variables come with the order: without a keeper that
        removes them they are on no disk, whenever a controller dies."""
        self.lock(order["owner"])
        if os.path.exists("exit.json"):
            raise Refused("node_unfit", "%s ended here before; expected a run that is new" % order["run_id"])
        write_whole("env.sh", [order["variables"].encode()])
        for path, expected in order["files"].items():
            if digest_of(path) != expected:
                raise Refused("transfer_corrupt", "%s is not what was sent" % path)
        for port in order["ports"]:
            check_port(port)
        os.makedirs("logs", 0o700, exist_ok=True)
        os.makedirs("ranks", 0o700, exist_ok=True)
        with open("reserve", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        self.order = order
        self.group = make_group("orch-%s-%d" % (order["run_id"], order["node_rank"]))
        if self.group:
            write_whole("group", [self.group.encode()])
        self.prepare()
        self.state = "armed"
        self.tell("armed", pid=os.getpid(), boot_id=boot_id())

    def prepare(self):
        """Fork what will become the launch script, and leave it waiting at a gate: with the go-word nothing is left to do."""
        gate_in, self.gate = os.pipe()
        self.report, report_in = os.pipe()
        self.main = os.fork()
        if self.main == 0:
            os.close(self.gate)
            os.close(self.report)
            launch(self.order, gate_in, report_in, self.group)
        os.close(gate_in)
        os.close(report_in)

    def dismiss(self):
        """Close the gate on a child that still waits there, and see that it went."""
        if self.gate is not None:
            os.close(self.gate)
            self.gate = None
            if self.main_status is None:
                self.main_status = os.waitpid(self.main, 0)[1]

    def lock(self, owner):
        """Hold the node for as long as this process lives: the lock of its work directory, and the name that stands for it in
        all work directories and for all users. Refuses with the owner's record where one of them is taken."""
        record = json.dumps(dict(owner, keeper=os.getpid())).encode() + b"\n"
        root = os.path.dirname(os.path.dirname(self.directory))
        path = os.path.join(root, "node.lock")
        self.lock_file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        wait_for(owner["run_id"], lambda: locked_by(self.lock_file, fcntl.LOCK_EX))
        os.ftruncate(self.lock_file, 0)
        os.pwrite(self.lock_file, record, 0)
        wait_for(owner["run_id"], lambda: named_by(self.door))
        self.door.listen(64)
        self.owner = record

    def do_beat(self, order, connection):
        """Renew the lease and answer with the clock, for liveness and for the offset of the clocks."""
        self.renewed = time.monotonic()
        fields = {"n": order["n"], "mono": time.monotonic(), "state": self.state}
        tail = order.get("tail")
        if tail and self.state in ("running", "stopping"):
            data = read_slice(os.path.join("logs", tail["file"]), tail["offset"], TAIL_BYTES)
            fields.update(data=base64.b64encode(data).decode(), offset=tail["offset"])
        self.answer(connection, "beat", **fields)

    def do_go(self, order, connection):
        """Open the gate: exec at the agreed instant of this node's monotonic clock. Report the true one."""
        self.renewed = time.monotonic()
        if self.state != "armed":
            raise Refused("start_timeout", "go came in state %s" % self.state)
        self.state = "running"
        at = order.get("at")
        with contextlib.suppress(BrokenPipeError):  # it has died at the gate, which shows as a launch script that failed
            os.write(self.gate, b"now" if at is None else b"%.9f" % at)
        os.close(self.gate)
        self.gate = None
        self.oom_kills = oom_kills()
        # The child closes its end by its exec. Only that is waited for, not its report: at the instant of the start, whoever
        # wakes up on a machine that several nodes share delays the others.
        closed = select.poll()
        closed.register(self.report, 0)
        closed.poll()
        data = os.read(self.report, 64)
        os.close(self.report)
        self.progress = (0, time.monotonic())
        if data:
            self.started = float(data)
            self.tell("started", mono=self.started)

    def do_stop(self, order, connection):
        """Stop the run for the given reason."""
        self.renewed = time.monotonic()
        self.stop(order["reason"])

    def do_finish(self, order, connection):
        """End what only waits here because the first node, which started everything, has come to a good end."""
        self.renewed = time.monotonic()
        if self.state == "running":
            self.state, self.killed_at = "stopping", time.monotonic() + self.order["grace_s"]
            send_signal(self.owned(), signal.SIGTERM)

    def do_bye(self, order, connection):
        """The controller has what it wants; go as soon as nothing is left to own."""
        if self.state in ("new", "armed", "ended"):
            self.state = "gone"

    # -- the run's side

    def judge_lateness(self):
        """Expire the lease before any queued beat is read: beats that waited in a frozen node renew nothing."""
        now = time.monotonic()
        if self.state == "ended" and now - self.renewed > self.order["lease_s"]:
            self.state = "gone"
        elif self.state in ("new", "armed") and now - self.renewed > self.order.get("lease_s", 60):
            self.state = "gone"
        elif self.state == "running":
            if now - self.renewed > self.order["lease_s"]:
                self.stop("lease_expired: nobody renewed the run for %g s" % self.order["lease_s"])
            elif self.started and now - self.started > self.order["limit_s"]:
                self.stop("run_timeout: longer than %g s" % self.order["limit_s"])

    def reap(self):
        """Collect ended children, the main process and adopted orphans alike."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.main_status = status

    def owned(self):
        """Return {pid: start time} of what is this run's here: descendants, and where asked for, bearers of its marker."""
        found = descendants(os.getpid())
        found.update(members(self.group))
        if self.order.get("by_marker"):
            found.update((pid, start) for pid, (start, _) in bearers(self.order["run_id"]).items())
        return found

    def watch(self):
        """Look for ranks that ended, logs that grew too long, and for the end of everything."""
        self.read_ranks()
        now = time.monotonic()
        if now - self.logs_checked > 1.0:
            self.logs_checked = now
            sizes = log_files(".")
            if sum(sizes.values()) > self.order["output_limit_bytes"]:
                self.stop("output_limit: more than %d bytes of logs" % self.order["output_limit_bytes"])
            if len(sizes) > MAX_FILES:
                self.stop("output_limit: more than %d files among the logs" % MAX_FILES)
            free = free_bytes(".")
            if free < LEAST_FREE_BYTES:
                words = "storage_full: No space left on device for %s; needed %d bytes, free %d"
                self.stop(words % (self.directory, LEAST_FREE_BYTES, free))
            self.judge_progress(sizes, now)
        if self.main_status not in (None, 0) and self.state == "running":
            # What ends from here on is ended by us; without a word of this it would look like the cause.
            code, name = ending(self.main_status)
            self.stop("rank_failed: its launch script ended with %s" % (name or "exit code %s" % code))
        if self.main_status == 0 and self.state == "running":
            self.state, self.killed_at = "stopping", now + self.order["grace_s"]
            send_signal(self.owned(), signal.SIGTERM)
        if self.state == "stopping":
            left = self.owned()
            if not left and self.main_status is not None:
                self.read_ranks()
                self.end()
            elif now >= self.killed_at + STUCK_S:
                self.end("stuck: processes %s outlive SIGKILL" % sorted(left))
            elif now >= self.killed_at:
                send_signal(left, signal.SIGKILL)

    def judge_progress(self, sizes, now):
        """Stop a run whose logs do not begin, or no longer grow; those logs that hold its samples, on nodes that have such."""
        patterns = self.order.get("progress") or ()
        size = sum(count for name, count in sizes.items() if any(fnmatch.fnmatch(name, one) for one in patterns))
        known, since = self.progress
        if size != known:
            self.progress = (size, now)
        elif patterns:
            limit_s = self.order.get("stall_s" if size else "first_line_s") or 0
            if limit_s and now - since > limit_s:
                words = "no new line for %g s" if size else "no line within %g s of the start"
                self.stop("run_timeout: " + words % limit_s)

    def read_ranks(self):
        """Take in rank records; a failed rank stops this node at once and is told at once."""
        for entry in os.scandir("ranks"):
            known = self.ranks.get(entry.name, {})
            if not entry.name.endswith(".json") or "ended_mono_s" in known:
                continue
            # A wrapper writes twice, the second file beside the first: another number means another record.
            record = known if self.rank_files.get(entry.name) == entry.inode() else read_record(entry.path)
            if "ended_mono_s" not in record and not os.path.exists("/proc/%d" % record["wrapper"]):
                # It may have written its last word and gone since the record was read; only then it is killed.
                record = read_record(entry.path)
                if "ended_mono_s" not in record:
                    record.update(code=None, signal="SIGKILL", ended_mono_s=time.monotonic(), note="its wrapper was killed")
            if record.get("signal") == "SIGKILL" and self.state == "running" and oom_kills() > self.oom_kills:
                record.update(note="the kernel killed it for memory")
            self.ranks[entry.name], self.rank_files[entry.name] = record, entry.inode()
            if "ended_mono_s" in record:
                self.tell("rank", **record)
                if record["code"] != 0 and self.state == "running":
                    how = record["signal"] or "exit code %s" % record["code"]
                    how += ", " + record["note"] if "note" in record else ""
                    self.stop("rank_failed: rank %d ended with %s" % (record["rank"], how))

    def stop(self, reason):
        """Begin to stop: terminate now, kill after the grace period."""
        if self.state == "running":
            self.stop_reason = reason
            self.state = "stopping"
            self.stopped = time.monotonic()
            self.killed_at = self.stopped + self.order["grace_s"]
            self.tell("stopping", reason=reason, mono=self.stopped)
            send_signal(self.owned(), signal.SIGTERM)
        elif self.state in ("new", "armed"):
            self.state = "gone"

    def digests(self):
        """Return size and digest of every log; of much more than a run may write, those of the first bytes: a sparse file
        of any size costs a program nothing."""
        sizes, room, found = log_files("."), 4 * self.order["output_limit_bytes"], {}
        for name in in_order(sizes)[:MAX_FILES]:
            size = min(sizes[name], room)
            room -= size
            found[name] = {"bytes": size, "sha256": digest_of(os.path.join("logs", name), size)}
        return found

    def end(self, stuck=""):
        """Write the exit record: what happened, size and digest of every log. ``stuck``: what could not be ended."""
        code, name = (None, None) if self.main_status is None else ending(self.main_status)
        self.stop_reason = stuck or self.stop_reason
        failed = code != 0 or any(rank.get("code") != 0 for rank in self.ranks.values())
        state = "failed" if failed else "finished"
        if self.stop_reason and not self.stop_reason.startswith("rank_failed"):
            state = "stopped"
        if os.path.exists("env.sh"):
            os.unlink("env.sh")
        self.record = {
            "schema": SCHEMA,
            "run_id": self.order["run_id"],
            "node_rank": self.order["node_rank"],
            "state": state,
            "code": code,
            "signal": name,
            "reason": self.stop_reason,
            "started_mono_s": self.started,
            "stopped_mono_s": self.stopped,
            "ended_mono_s": time.monotonic(),
            "boot_id": boot_id(),
            "oom_kills": max(0, oom_kills() - self.oom_kills),
            "ranks": sorted(self.ranks.values(), key=lambda rank: rank["rank"]),
            "files": self.digests(),
        }
        # On a disk that is full this makes the room that the record needs.
        os.unlink("reserve")
        write_json("exit.json", self.record)
        self.state = "ended"
        self.tell("ended", record=self.record)
        if not self.connections:
            self.state = "gone"


def wait_for(run_id, take):
    """Call what takes a lock until it returns None, for a while; refuse with what it returns, the record of who has it."""
    began = time.monotonic()
    while True:
        holder = take()
        if holder is None:
            return
        # The keeper of the run before this one may need a moment to leave. Of two runs that want the same nodes at the
        # same moment, each may hold some: the later one gives up first, so that one of them gets all.
        if time.monotonic() - began > (1.0 if run_of(holder) < run_id else 4.0):
            if run_of(holder) == run_id:
                raise Refused("node_unfit", "another node of this run is this machine: name it once in the inventory")
            raise Refused("node_busy", "another run holds this node", owner=holder)
        time.sleep(0.02)


def locked_by(handle, how):
    """Lock a work directory by its open file and return None; where that is taken, return the record of who has it."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except OSError:
        return os.pread(handle, 4096, 0).decode("utf-8", "replace").strip()
    return None


def named_by(door):
    """Give a socket the name that stands for this node, return None; where that is taken, return the record of who has it."""
    try:
        door.bind(node_name())
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return introduction() or ""
    return None


def node_name():
    """Return the name that stands for this node, of an abstract socket: the system takes it back from a process that ends.

    A node is what shares a network and sees each other's processes, whatever the user. So containers with process numbers of
    their own are nodes of their own, and so are those of a lab without namespaces, which bear its mark.
    """
    marks = [os.readlink("/proc/self/ns/pid")] + [os.environ.get(name) for name in ("ORCH_LAB", "ORCH_LAB_NODE")]
    return "\0orch-node-" + hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:32]


def introduction():
    """Return what the process that has this node's name says of its run, else whose process it is; None where nobody has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(0.5)
        try:
            asking.connect(node_name())
        except ConnectionRefusedError:
            return None
        except OSError as error:
            return "it does not answer: %s" % error.strerror
        pid = int.from_bytes(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
        said = b""
        with contextlib.suppress(OSError):
            said = asking.recv(4096)
        user = owners([str(pid)]).get(str(pid), "another user")
        return said.decode("utf-8", "replace").strip() or "process %d of %s, which does not answer" % (pid, user)


def holder_of(root):
    """Return the record of who holds this node, by a work directory's lock or by the node's name; None where nobody does."""
    try:
        lock = os.open(os.path.join(root, "node.lock"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return introduction()
    try:
        holder = locked_by(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)
    return introduction() if holder is None else holder


def run_of(holder):
    """Return the run id in a lock's owner record; nothing where the owner has not written it yet."""
    try:
        return json.loads(holder)["run_id"]
    except (ValueError, KeyError, TypeError):
        return ""


def read_record(path):
    """Return the record of a rank; its wrapper replaces it by renaming, so it is whole whenever it is read."""
    with open(path) as file:
        return json.load(file)


def launch(order, gate, report, group):
    """In the forked child: wait for the go-word, become the launch script at its instant, in the run's control group.

    Never returns. Where the gate is closed without a word there was none, and nothing has been started.
    """
    try:
        os.setsid()
        if group:
            with open(os.path.join(group, "cgroup.procs"), "w") as file:
                file.write("0")
        # The keeper ignores these, and what is ignored at its start a shell cannot trap.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
        environment.update(ORCH_RUN_ID=order["run_id"], ORCH_NODE_RANK=str(order["node_rank"]))
        usual = go_first()
        word = os.read(gate, 64)
        if not word:
            os._exit(0)
        for number, name in ((1, "node.out"), (2, "node.err")):
            path = os.path.join("logs", name)
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), number)
        if word != b"now":
            # No spinning at the end: where nodes share cores, as in a lab, it would delay the others.
            time.sleep(min(10.0, max(0.0, float(word) - time.monotonic())))
        os.write(report, b"%.9f" % time.monotonic())
        if usual:
            os.sched_setscheduler(0, *usual)
        else:
            os.sched_yield()  # to those who wait for this very instant on the same core
        os.execvpe(order["argv"][0], order["argv"], environment)
    except OSError as error:
        os.write(2, ("%s: %s\n" % (order["argv"][0], error.strerror)).encode())
    finally:
        os._exit(127)


def go_first():
    """Let this process go before others of its node, so that a busy one does not start late. Return what undoes it.

    Only a privileged user may; else None, and it waits for its turn as everybody does.
    """
    try:
        usual = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return None
    return usual


def check_port(port):
    """Refuse where something already listens on a port that the run needs."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("0.0.0.0", port))
    except OSError as error:
        raise Refused("port_busy", "port %d: %s" % (port, error.strerror), port=port)
    finally:
        probe.close()


@contextlib.contextmanager
def opened(path):
    """Open a regular file; None where it is not there yet, or is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    try:
        yield handle if stat.S_ISREG(os.fstat(handle).st_mode) else None
    finally:
        os.close(handle)


def read_slice(path, offset, limit):
    """Return up to ``limit`` bytes of a regular file from ``offset``; nothing where it is not there yet."""
    with opened(path) as handle:
        return b"" if handle is None else os.pread(handle, limit, offset)


def keep_main(directory):
    """Become the keeper of a run directory. The caller has detached this process from ssh."""
    import ctypes

    os.chdir(directory)
    os.umask(0o077)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_NAME, b"orch-keeper", 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else soft, hard))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    alive = os.open("keeper.alive", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sweep(os.path.dirname(os.path.dirname(directory)))
    keeper = Keeper(directory)
    try:
        keeper.serve()
    except BaseException as error:
        # Whatever went wrong here, a disk that is full or a fault of ours: nothing may run on without an owner.
        deadline = time.monotonic() + STUCK_S
        while descendants(os.getpid()) and time.monotonic() < deadline:
            send_signal(keeper.owned(), signal.SIGKILL)
            time.sleep(POLL_S)
            keeper.reap()
        keeper.tell("stopping", reason="keeper_failed: %s" % error, mono=time.monotonic())
        raise
    finally:
        keeper.dismiss()
        remove_group(keeper.group)
        for name in ("env.sh", "keeper.sock"):
            if os.path.exists(name):
                os.unlink(name)


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


# ------------------------------------------------------------------ operations over ssh


def reply(**fields):
    """Print one JSON line to the controller."""
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def op_put(request):
    """Receive files. First says which are missing, by digest; takes those; each is checked, flushed and renamed into place."""
    root = root_directory(request["root"])
    missing = []
    for index, item in enumerate(request["files"]):
        path = inside(root, item["path"])
        try:
            if digest_of(path) == item["sha256"]:
                continue
        except OSError:
            pass
        if not (item.get("elsewhere") and copied(root, item, path)):
            missing.append(index)
    reply(root=root, missing=missing)
    for index in missing:
        item = request["files"][index]
        path = inside(root, item["path"])
        directory = os.path.dirname(path)
        digest = hashlib.sha256()
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            write_whole(path, received(item["bytes"], digest), item["mode"])
        except OSError as error:
            raise unwritten(error, path, root, item["bytes"])
        if digest.hexdigest() != item["sha256"] or digest_of(path) != item["sha256"]:
            os.unlink(path)
            raise Refused("transfer_corrupt", "%s: expected SHA-256 %s" % (path, item["sha256"]))
    reply(done=True)


def copied(root, item, path):
    """Write a file that another place on this node holds too, and tell whether one did: sets of payload files share most."""
    import glob

    for place in glob.glob(os.path.join(glob.escape(root), item["elsewhere"])):
        with contextlib.suppress(OSError):  # whatever it is, the bytes can still be sent
            if not os.path.isfile(place) or os.path.getsize(place) != item["bytes"]:
                continue
            with open(place, "rb") as file:
                content = file.read()
            if hashlib.sha256(content).hexdigest() == item["sha256"]:
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                write_whole(path, [content], item["mode"])
                return True
    return False


def received(count, digest):
    """Yield ``count`` bytes of standard input in blocks, feeding the digest. This process ends where none come for a while."""
    while count:
        signal.alarm(IDLE_S)
        block = sys.stdin.buffer.read1(min(count, CHUNK))
        signal.alarm(0)
        if not block:
            raise Refused("transfer_corrupt", "the line ended %d bytes early" % count)
        digest.update(block)
        count -= len(block)
        yield block


def deflated(data):
    """Compress bytes into the bare format of RFC 1951, which has no checksum: logs have digests."""
    engine = zlib.compressobj(1, zlib.DEFLATED, -15)
    return engine.compress(data) + engine.flush()


class Pieces:
    """Sends pieces of logs, each compressed or as it is: compressed where a byte has lately taken half the time so, or less.

    The time of a piece is that of compressing it and of handing it on, which waits while the line is full. So on a slow line
    compressing pays. On a quick one it holds up, and takes processor time on both sides that is not in the comparison: hence
    half. The other way is tried again, ever more rarely.
    """

    def __init__(self):
        self.cost = {True: 0.0, False: 0.0}  # seconds for a byte, compressed or not
        self.until_trial = self.pause = 16

    def way(self):
        """Tell whether the next piece is to be compressed, and how many bytes it may hold: few where that is only tried."""
        if all(self.cost.values()):
            packed = 2 * self.cost[True] < self.cost[False]
            self.until_trial -= 1
            if self.until_trial:
                return packed, PIECE if packed else self.uncompressed()
            self.until_trial = self.pause = min(2 * self.pause, 1024)
            packed = not packed
        else:
            packed = not self.cost[True]
        return packed, SAMPLE if packed else PIECE

    def uncompressed(self):
        """Return how many bytes an uncompressed piece may hold: what has lately gone in a tenth of a second."""
        return int(min(max(0.1 / self.cost[False], SAMPLE), LONG_PIECE))

    def send(self, name, log, offset, left):
        """Send the next piece of a log, an open file of which so many bytes are wanted yet; return how many it had."""
        packed, most = self.way()
        data = os.pread(log, min(most, left), offset) if packed else b""
        size = len(data) if packed else min(most, left, os.fstat(log).st_size - offset)
        if size <= 0:
            return 0
        begun = time.monotonic()
        signal.alarm(IDLE_S)  # as `received` does: nobody takes what is sent
        if packed:
            body = deflated(data)
            reply(name=name, offset=offset, raw=size, bytes=len(body), packed=True)
            sys.stdout.buffer.write(body)
        else:
            reply(name=name, offset=offset, raw=size, bytes=size, packed=False)
            hand_over(log, offset, size)
        cost = (time.monotonic() - begun) / size
        self.cost[packed] = (self.cost[packed] + cost) / 2 if self.cost[packed] else cost
        return size


def hand_over(log, offset, size):
    """Give bytes of an open file to standard output; they are not copied in between where its file system can do without."""
    end = offset + size
    while offset < end:
        signal.alarm(IDLE_S)
        most = min(PIECE, end - offset)
        try:
            sent = os.sendfile(1, log, offset, most)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                sys.exit("a log cannot be sent: %s" % error.strerror)  # nothing but its bytes could be said on this line
            sent = os.write(1, os.pread(log, most, offset))
        if not sent:
            sys.exit("a log became shorter while it was sent")
        offset += sent


def widen_output():
    """Let the pipe to the ssh server hold more, so that neither side waits for the other so often."""
    with contextlib.suppress(OSError):  # it is none, or this user has too many
        fcntl.fcntl(1, F_SETPIPE_SZ, PIPE_BYTES)


def op_get(request):
    """Send the logs of a run from the offsets that the controller already holds, and the exit record last."""
    directory = inside(root_directory(request["root"]), "runs/" + request["run"])
    if not os.path.isdir(os.path.join(directory, "logs")):
        reply(absent=True)
        return
    record = read_slice(os.path.join(directory, "exit.json"), 0, 1 << 24)
    sizes = log_files(directory)
    left_out = max(0, len(sizes) - request["max_files"])
    sizes = {name: sizes[name] for name in in_order(sizes)[:MAX_FILES]}
    kept = json.loads(record.decode())["files"] if record else {}
    room, pieces = request["max_bytes"], Pieces()
    widen_output()
    for name in list(sizes)[: request["max_files"]]:
        offset = request["have"].get(name, 0)
        limit = min(sizes[name], kept[name]["bytes"] if name in kept else room, room)
        room -= limit
        with opened(os.path.join(directory, "logs", name)) as log:
            while log is not None and offset < limit:
                sent = pieces.send(name, log, offset, limit - offset)
                if not sent:
                    break
                offset += sent
    more = {"left_out": left_out, "odd": odd_files(directory), "boot_id": boot_id(), "bytes": len(record)}
    reply(done=True, sizes=sizes, alive=keeper_lives(directory), **more)
    sys.stdout.buffer.write(record)
    sys.stdout.buffer.flush()


def op_line(request):
    """Start a keeper for a run directory if asked to, then carry lines between the controller and it until one side ends.

    Where that was the controller's goodbye, requests may follow; else they could not be told from orders on their way.
    """
    directory = inside(root_directory(request["root"]), "runs/" + request["run"])
    if request["start"]:
        start_keeper(directory)
    os.chdir(directory)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + request.get("wait_s", 10)
    while True:
        try:
            connection.connect("keeper.sock")
            break
        except OSError as error:
            if time.monotonic() > deadline or not request["start"]:
                raise Refused("node_lost", "no keeper answers in %s: %s" % (directory, error.strerror), boot_id=boot_id())
            time.sleep(0.005)
    heard = bye = False
    # Output that the controller does not take must not hold up its orders, hence two non-blocking directions.
    while True:
        ready = select.select([0, connection], [], [])[0]
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            bye = data.endswith(b'{"do": "bye"}\n')
            with contextlib.suppress(OSError):  # a keeper that has gone shows below
                connection.sendall(data)
        if connection in ready:
            try:
                data = connection.recv(65536)
            except OSError:  # it left with this connection still waiting at its door
                data = b""
            if not data:
                if bye:
                    reply(event="closed")
                    return
                if heard:
                    request["stay"] = False
                    return
                raise Refused("node_lost", "the keeper in %s left just now" % directory, boot_id=boot_id())
            heard = True
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]


def start_keeper(directory):
    """Fork twice and become a keeper that has nothing of this ssh session: no terminal, no stream, no session.

    Python is not started anew: this program is loaded, and a start costs more than all else that a keeper does.
    """
    pid = os.fork()
    if pid:
        code = ending(os.waitpid(pid, 0)[1])[0]
        if code:
            raise Refused("node_unfit", "the keeper of the run cannot be started: %s" % os.strerror(code))
        return
    os.setsid()
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        os._exit(error.errno)
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(os.path.join(directory, "keeper.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        for target, source in ((0, null), (1, null), (2, log)):
            os.dup2(source, target)
        os.closerange(3, 64)
        keep_main(directory)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def op_stop(request):
    """End runs by asking their keepers, then whatever else belongs to them; report what is left: nothing, one hopes."""
    root = root_directory(request["root"])
    grace_s = request["grace_s"]
    wanted = request.get("run")
    stopped = [name for name, directory in runs_of(root, wanted).items() if ask_keeper(directory, request["reason"], grace_s)]
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        found = belonging(root, wanted)
        send_signal({pid: start for pid, (start, _) in found.items()}, number)
        stopped += [run for _, run in found.values() if run not in stopped]
        deadline = time.monotonic() + wait_s
        while belonging(root, wanted) and time.monotonic() < deadline:
            time.sleep(0.05)
    sweep(root)
    reply(stopped=stopped, left=[[pid, run] for pid, (_, run) in belonging(root, wanted).items()])


def ask_keeper(directory, reason, grace_s):
    """Tell a run's keeper to stop and wait for its end. False where none answers, or where the run has ended before."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(grace_s + 10)
    data = b""
    try:
        os.chdir(directory)
        connection.connect("keeper.sock")
    except OSError:
        connection.close()
        return False
    try:
        connection.sendall(json.dumps({"do": "stop", "reason": reason}).encode() + b"\n")
        # A hello with the state "ended" is all that a keeper has to say whose run is over.
        while b'"event": "ended"' not in data and b'"state": "ended"' not in data:
            block = connection.recv(65536)
            if not block:
                break
            data += block
        connection.sendall(b'{"do": "bye"}\n')
    except OSError:
        # It went before our goodbye, since its controller said one too. What it may have left is found by the marker.
        pass
    finally:
        connection.close()
    return b'"state": "ended"' not in data


def op_drop(request):
    """Remove a run's directory where its keeper has gone: of a run that never started, or where asked of one that ended."""
    root = root_directory(request["root"])
    directory = inside(root, "runs/" + request["run"])
    deadline = time.monotonic() + 3.0
    while keeper_lives(directory) and time.monotonic() < deadline:
        time.sleep(0.02)
    ended = os.path.exists(os.path.join(directory, "exit.json"))
    gone = os.path.isdir(directory) and not keeper_lives(directory) and not belonging(root, request["run"])
    gone = gone and (request["finished"] or not ended)
    if gone:
        import shutil

        remove_group(group_of(directory))
        shutil.rmtree(directory)
    reply(dropped=gone)


def op_left(request):
    """Report processes that still belong to a run, and whether its keeper lives."""
    root = root_directory(request["root"])
    directory = inside(root, "runs/" + request["run"])
    left = [[pid, run] for pid, (_, run) in belonging(root, request["run"]).items()]
    reply(left=left, keeper=keeper_lives(directory))


def op_status(request):
    """Report the runs that live on this node and who holds its lock."""
    root = root_directory(request["root"])
    runs = {}
    for _, run in bearers().values():
        runs[run] = runs.get(run, 0) + 1
    reply(runs=runs, owner=holder_of(root))


def op_tail(request):
    """Send a log file from an offset and follow it while the run lives, until the controller closes its side."""
    directory = inside(root_directory(request["root"]), "runs/" + request["run"])
    path = os.path.join(directory, "logs", inside("", request["file"]))
    offset = request["offset"]
    while True:
        # Asked before reading, so that what is written between the two is read in the next turn.
        lives = keeper_lives(directory)
        data = read_slice(path, offset, CHUNK)
        if data:
            reply(offset=offset, bytes=len(data))
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            offset += len(data)
            continue
        if not request["follow"] or not lives:
            break
        if select.select([0], [], [], 0.2)[0] and not os.read(0, 4096):
            break
    reply(done=True, offset=offset)


def op_program(request):
    """Run a staged program under this interpreter to its end, and report how it ended and what it said last."""
    import subprocess

    root = root_directory(request["root"])
    argv = [sys.executable, "-I", "-S", inside(root, request["program"])] + request["argv"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=request["limit_s"], cwd=root
        )
    except subprocess.TimeoutExpired:
        raise Refused("run_timeout", "%s: not over within %g s" % (request["program"], request["limit_s"]))
    texts = [stream[-TAIL_BYTES:].decode("utf-8", "replace") for stream in (done.stdout, done.stderr)]
    reply(code=done.returncode, out=texts[0], err=texts[1])


def op_facts(request):
    """Report what this machine is: the answers that preflight compares and the manifest keeps.

    What other programs and the kernel say goes to the controller as it stands, packed: there it is understood.
    """
    root = root_directory(request["root"])
    unwritable = not_written(root)
    asked = {name: begin(argv, root) for name, argv in TOLD.items()}  # they answer while the rest is found out
    facts = {
        "hostname": socket.gethostname(),
        "boot_id": boot_id(),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "runner_python": "%d.%d.%d" % sys.version_info[:3],
        "user": os.environ.get("USER", str(os.getuid())),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "workdir": root,
        "disk_free_bytes": free_bytes(root),
        "disk_error": unwritable,
        "limits": limits(),
        "shm_bytes": shared_memory_bytes(),
        "time": time.time(),
        "ports_busy": [],
    }
    seen, paths = installed(request["python"], request["distributions"]) if "distributions" in request else ({}, [])
    facts["framework"] = seen or framework_facts(request["python"], request["probe"], request["probe_timeout_s"])
    facts["imported"] = not seen
    for port in request["ports"]:
        try:
            check_port(port)
        except Refused:
            facts["ports_busy"].append(port)
    if request.get("interface"):
        facts["interface"] = interface_facts(request["interface"])
    addresses = resolved([facts["hostname"]] + ([request["peer"]] if request.get("peer") else []))
    facts["hostname_addresses"] = addresses[facts["hostname"]]
    if request.get("peer"):
        facts["route"] = next((found for found in map(route_to, addresses[request["peer"]]) if found), None)
    if request.get("data_dir"):
        facts["data_dir"] = os.path.isdir(os.path.expanduser(request["data_dir"]))
        facts["data_set"] = data_set_digest(os.path.expanduser(request["data_dir"]))
    facts["programs"] = {path: program_digest(os.path.expanduser(path)) for path in request.get("programs", ())}
    told = {name: said(one, TOLD_S) for name, one in asked.items()}
    if told["smi"]:
        told["smi"]["text"] = re.sub(r"(?s)<supported_clocks>.*?</supported_clocks>", "", told["smi"]["text"])
        told["owners"] = owners(re.findall(r"<pid>\s*(\d+)\s*</pid>", told["smi"]["text"]))
    told["driver"] = read_slice("/proc/driver/nvidia/version", 0, 4096).decode("utf-8", "replace")
    told["kernel_log"] = kernel_log("NVRM: ")
    told["infiniband"] = infiniband_ports()
    told["peermem"] = any(os.path.isdir("/sys/module/" + name) for name in ("nvidia_peermem", "nv_peer_mem"))
    facts["held_by"] = still_held(root)  # last: the keeper of a run before may need a moment to leave
    packed = base64.b64encode(zlib.compress(json.dumps(told).encode(), 6)).decode()
    reply(facts=facts, told=packed, standing={"machine": machine(), "paths": {path: state_of(path) for path in paths}})


def still_held(root):
    """Return the record of who holds this node and goes on to, None where nobody does."""
    deadline = time.monotonic() + 1.0
    holder = holder_of(root)
    while holder is not None and time.monotonic() < deadline:
        time.sleep(0.05)
        holder = holder_of(root)
    return holder


def machine():
    """Return what says that neither this boot nor the GPUs' driver has changed: the kernel's own words."""
    return boot_id() + "\n" + read_slice("/proc/driver/nvidia/version", 0, CHUNK).decode("utf-8", "surrogateescape")


def state_of(path):
    """Return inode, size and times of a path, as ``stat -L -c '%i %s %Y %Z'`` prints them."""
    found = os.stat(path)
    return "%d %d %d %d" % (found.st_ino, found.st_size, found.st_mtime, found.st_ctime)


def installed(python, names):
    """Return (version by name, paths that this rests on) of the distributions that an interpreter would find.

    Nothing of them is imported, which takes seconds for a framework: pip leaves a folder for each, named ``name-version``.
    """
    code = "import json,sys;print(json.dumps([sys.executable]+sys.path))"
    answer = framework_facts(python, code, 60)
    if isinstance(answer, dict):
        return {}, []
    paths = [os.path.realpath(answer[0])] + [path for path in answer[1:] if os.path.isdir(path)]
    found = {}
    for path in paths[1:]:
        for entry in names_in(path):
            name, _, version = os.path.splitext(entry)[0].partition("-")
            if entry.endswith((".dist-info", ".egg-info")) and version:
                found.setdefault(name.lower().replace(".", "_"), version.split("-py")[0])
    versions = {name: found.get(name.lower().replace("-", "_").replace(".", "_")) for name in names}
    return {name: version for name, version in versions.items() if version}, paths


def data_set_digest(directory):
    """Return what a data set made by make_dataset.py says its digest is, None where there is no such set."""
    try:
        found = json.loads(read_slice(os.path.join(directory, "dataset.json"), 0, CHUNK).decode("utf-8", "replace"))
    except ValueError:
        return None
    digest = found.get("sha256") if isinstance(found, dict) else None
    return digest[:64] if isinstance(digest, str) else None


def program_digest(path):
    """Return the SHA-256 of a program: of its file, or of the Python files in a directory; None where there is neither, and
    {"error": …} where one of them cannot be read.

    Of a directory the first thousands in order of name count, on every node the same ones.
    """
    try:
        if not os.path.isdir(path):
            return digest_of(path) if os.path.isfile(path) else None
        whole = hashlib.sha256()
        for name in itertools.islice(python_files(path), MAX_FILES):
            whole.update(os.fsencode("%s %s\n" % (name, digest_of(os.path.join(path, name)))))
        return whole.hexdigest()
    except OSError as error:
        return {"error": why(error, path)}


def python_files(path):
    """Yield the regular files below a directory that hold Python, relative to it, in order of name."""
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            whole = os.path.join(folder, name)
            if name.endswith(".py") and stat.S_ISREG(os.lstat(whole).st_mode):
                yield os.path.relpath(whole, path)


def cpu_model():
    """Return the processor's name, or the architecture where the kernel does not say."""
    with open("/proc/cpuinfo", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine


def nameless(folder):
    """Open a file without a name, to be written and read."""
    path = os.path.join(folder, ".told.%d" % os.getpid())
    kept = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w+b")
    os.unlink(path)
    return kept


def not_written(folder):
    """Return why nothing can be written in a folder; an empty text where it can."""
    try:
        with nameless(folder) as file:
            file.write(b"0")
    except OSError as error:
        return error.strerror
    return ""


def begin(argv, folder):
    """Start a program whose answer is wanted later, kept in a file without a name; None where there is no such program."""
    import subprocess

    try:
        kept = nameless(folder)
    except OSError:
        import tempfile

        kept = tempfile.TemporaryFile()
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=kept, stderr=subprocess.STDOUT)
    except OSError:
        kept.close()
        return None
    return process, kept, time.monotonic()


def said(asked, limit_s):
    """Return exit code and text of a program that was begun; its code is None where it was not over in time.

    One that hangs in the kernel does not die when it is killed, so nobody waits for it.
    """
    if asked is None:
        return None
    process, kept, began = asked
    while process.poll() is None and time.monotonic() < began + limit_s:
        time.sleep(0.005)
    code = process.poll()
    if code is None:
        process.kill()
    with kept:
        kept.seek(0)
        return {"code": code, "text": kept.read(MOST_TOLD_BYTES).decode("utf-8", "replace")}


def owners(pids):
    """Return the user's name of each process that this machine shows; a container's own processes have other numbers."""
    import pwd

    found = {}
    for pid in pids[:1000]:
        try:
            number = os.stat("/proc/" + pid).st_uid
        except OSError:
            continue
        try:
            found[pid] = pwd.getpwuid(number).pw_name
        except KeyError:
            found[pid] = str(number)
    return found


def kernel_log(word, path="/dev/kmsg"):
    """Return the last lines of the kernel's log that hold a word, each with its age in seconds; why, where it is closed to us.

    A record is ``priority,number,microseconds since boot,flags;text`` (Documentation/ABI/testing/dev-kmsg).
    """
    lines, total = [], 0
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return {"closed": error.strerror}
    try:
        for _ in range(1 << 17):
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:  # that one was overwritten before it was read
                    return {"closed": error.strerror}
                continue
            head, _, text = record.decode("utf-8", "replace").partition(";")
            if not record:
                break
            if word in text:
                total += 1
                lines = lines[1 - MOST_LINES :] + [
                    [time.monotonic() - int(head.split(",")[2]) / 1e6, text.split("\n")[0][:300]]
                ]
    finally:
        os.close(handle)
    return {"lines": lines, "total": total}


def limits():
    """Return [soft, hard] limits as ssh gave them to this process, and so to a run; None for unlimited."""
    found = {}
    for name in ("memlock", "nofile", "nproc", "core", "stack"):
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        found[name] = [None if value == resource.RLIM_INFINITY else value for value in pair]
    return found


def shared_memory_bytes():
    """Return the size of /dev/shm, where loaders and NCCL put what processes share; None where there is none."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def framework_facts(python, probe, timeout_s):
    """Return what the framework's own interpreter says of its versions, or {"error": …} naming what failed."""
    import subprocess

    python = os.path.expanduser(python)
    try:
        done = subprocess.run(
            [python, "-c", probe],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )
    except OSError as error:
        return {"error": "%s: %s" % (python, error.strerror)}
    except subprocess.TimeoutExpired:
        return {"error": "%s did not answer within %g s" % (python, timeout_s)}
    try:
        return json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return {"error": "%s: %s" % (python, last[0][:400])}


def first_line(*path):
    """Return the first line of a small file of the kernel's; an empty text where it cannot be read."""
    try:
        with open(os.path.join(*path), errors="replace") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""


def names_in(folder):
    """Return the names in a folder; none where there is no such folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def interface_facts(name):
    """Return state, MTU, speed and kind (ARPHRD_…: 1 Ethernet, 32 InfiniBand) of a network interface; None where there is none.

    Speed is in Mb/s, None where the kernel does not know one.
    """
    base = os.path.join("/sys/class/net", os.path.basename(name))
    try:
        mtu = int(first_line(base, "mtu"))
    except ValueError:
        return None
    speed = first_line(base, "speed")
    return {
        "state": first_line(base, "operstate"),
        "mtu": mtu,
        "speed_mbit": int(speed) if speed.isdigit() and int(speed) else None,  # -1 where nothing is plugged in
        "kind": first_line(base, "type"),
    }


def resolved(names):
    """Return the addresses of each name as this machine's resolver has them, none for what takes longer than 5 s."""
    import threading

    found = {name: [] for name in names}

    def ask(name):
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found[name] = list({entry[4][0].partition("%")[0]: None for entry in entries})
        except (OSError, UnicodeError):
            return

    askers = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for asker in askers:
        asker.start()
    deadline = time.monotonic() + 5
    for asker in askers:
        asker.join(max(0, deadline - time.monotonic()))
    return dict(found)


def route_to(address):
    """Return how the kernel would send to an address: interface, source, gateway; None where it would not.

    Asked of the kernel itself, as `ip route get` does (rtnetlink(7)): RTM_GETROUTE 26, answered by RTM_NEWROUTE 24.
    """
    import struct

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    wanted = socket.inet_pton(family, address)
    message = struct.pack("=8BI", family, 8 * len(wanted), 0, 0, 0, 0, 0, 0, 0)
    message += struct.pack("=HH", 4 + len(wanted), 1) + wanted
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(2)
        try:
            kernel.send(struct.pack("=IHHII", 16 + len(message), 26, 1, 1, 0) + message)
            answer = kernel.recv(8192)
        except OSError:
            return None
    if struct.unpack_from("=H", answer, 4)[0] != 24:
        return None
    values, at = {}, 28
    while at + 4 <= len(answer):
        size, kind = struct.unpack_from("=HH", answer, at)
        values[kind] = answer[at + 4 : at + size]
        at += max(4, (size + 3) & ~3)
    name = socket.if_indextoname(struct.unpack("=I", values[4])[0])
    source, gateway = (socket.inet_ntop(family, values[kind]) if kind in values else None for kind in (7, 5))
    found = {"to": address, "interface": name, "source": source, "gateway": gateway, "local": answer[23] == 2}
    return dict(interface_facts(name) or {}, **found)


def infiniband_ports(base="/sys/class/infiniband"):
    """Return every port of every InfiniBand or RoCE device, in the kernel's own words.

    ``gids`` has [index, address, type, network device] of those that are set: unset ones are zero, and there may be hundreds.
    """
    import glob

    ports = []
    for path in sorted(glob.glob(os.path.join(base, "*", "ports", "*"))):
        device = path.split(os.sep)[-3]
        port = {name: first_line(path, name) for name in ("state", "phys_state", "rate", "link_layer", "lid")}
        port.update(device=device, port=os.path.basename(path), firmware=first_line(base, device, "fw_ver"))
        port["interfaces"] = sorted(names_in(os.path.join(base, device, "device", "net")))
        port["gids"] = []
        for index in sorted(names_in(os.path.join(path, "gids")), key=int):
            gid = first_line(path, "gids", index)
            if gid.replace("fe80:", "").strip("0:") and len(port["gids"]) < MOST_LINES:
                port["gids"].append(
                    [int(index), gid] + [first_line(path, "gid_attrs", what, index) for what in ("types", "ndevs")]
                )
        ports.append(port)
    return ports


def serve_main():
    """Answer requests from standard input: one, or where it says that more may follow, until none has come for a while."""
    home = os.getcwd()
    while True:
        line = sys.stdin.buffer.readline()
        signal.alarm(0)  # set by the line that has received this program, or below
        if not line:
            return
        request = json.loads(line.decode())
        os.umask(0o077)
        sys.stdout.buffer.write(b"ORCH " + request["nonce"].encode() + b"\n")
        sys.stdout.buffer.flush()
        try:
            globals()["op_" + request["op"]](request)
        except Refused as refusal:
            reply(error=refusal.fields)  # and no more: what it was to receive may still be on its way
            return
        except OSError as error:
            reply(error={"kind": "node_unfit", "message": "the node's system: " + why(error, request["op"])})
            return
        if not request.get("stay"):
            return
        os.chdir(home)
        signal.alarm(STAY_S)


if __name__ == "__main__":
    if sys.argv[1:3] == ["rank", "--"]:
        sys.exit(rank_main(sys.argv[3:]))
    else:
        serve_main()

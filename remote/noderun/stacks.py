"""Evidence of a hang from a rank itself: the stacks of its threads, the flight recorder of its
collectives, and NCCL's RAS.

Our trainers answer a pipe and a signal (``remote/rank_progress.py``). The thread at the pipe
answers as soon as it gets the interpreter. The signal's handler does not wait for that, and may
crash a process in which another thread runs Python meanwhile. So it is sent only if C code is seen
to keep the interpreter and the rank catches it. It goes to that thread alone, because nanosleep,
poll and epoll_wait would end early in others. For other Python programs py-spy reads the stacks,
where it is installed, without stopping them.
"""

import contextlib
import json
import os
import re
import signal
import socket
import time

from noderun.files import read_slice
from noderun.frames import calls_of
from noderun.processes import is_python, numbers_of
from noderun.sockets import listens_at

STACKS_SIGNAL = int(signal.SIGRTMIN) + 14
ANSWER_S = 1.5
KEPT_WAITS = 40
"""A thread that waits for the interpreter wakes up every 5 ms, and whoever runs Python gives it up
after the first time.
"""
LAST_ANSWER_S = 0.3
SPY_S = 4.0
MOST_STACK_BYTES = 16384
MOST_COLLECTIVES_BYTES = 4 << 20
KEPT_COLLECTIVES = 6
KEPT_BEFORE = 64
"""Collectives before the one that is waited for, by number: one that differed is older than its
consequence.
"""
TGKILL = {"x86_64": 234, "aarch64": 131}
RAS_PORT = 28028
RAS_LEG_S = 1
RAS_S = 3.0
RAS_ACCEPTED = "OK\n"
MOST_ENVIRONMENT_BYTES = 1 << 20


class Ask:
    """A question at the pipe of a rank for its collectives. ``is_asked``: somebody reads at the
    other end.
    """

    def __init__(self, base):
        self.pipe, self.path = base + ".ask", base + ".collectives"
        self.was = read_file_mark(self.path)
        self.is_asked = False
        self.try_to_ask()

    def try_to_ask(self):
        """Ask, if somebody reads at the other end: only then the pipe opens."""
        with contextlib.suppress(OSError):
            handle = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            os.write(handle, b"?")
            os.close(handle)
            self.is_asked = True

    def is_over(self):
        """Return True if the answer is there, or nobody is going to give one. Whoever answers may
        be about to read again.
        """
        if not self.is_asked and os.path.exists(self.pipe):
            self.try_to_ask()
            return False
        return not self.is_asked or read_file_mark(self.path) != self.was


class Question:
    """A rank that was asked for its stacks and its collectives."""

    def __init__(self, directory, rank, pid):
        self.base = os.path.join(directory, "ranks", str(rank))
        self.pid = pid
        self.stacks_from = None
        self.spy = None
        self.thread = self.waits_from = 0
        with contextlib.suppress(OSError, ValueError):
            if os.path.exists(self.base + ".progress") and catches(pid, STACKS_SIGNAL):
                self.thread = thread_of(pid, self.base + ".thread")
                self.spy = None if self.thread else begin_spy(pid)
                if self.spy is None:
                    self.stacks_from = os.stat(self.base + ".stacks").st_size
                    self.waits_from = waits_of(pid, self.thread)
        self.ask = Ask(self.base)
        if self.stacks_from is None and self.spy is None:
            self.spy = begin_spy(pid)

    def has_answer(self):
        """Return True if all that was asked is there."""
        return self.has_stacks() and self.ask.is_over()

    def has_stacks(self):
        """Return True if the stacks are there, or were not asked for."""
        return self.stacks_from is None or size_of(self.base + ".stacks") > self.stacks_from

    def insist(self):
        """Send the signal, once, if the thread at the pipe cannot get the interpreter."""
        if self.thread and not self.has_stacks():
            with contextlib.suppress(OSError, ValueError):
                if waits_of(self.pid, self.thread) - self.waits_from >= KEPT_WAITS:
                    send_to_thread(self.pid, self.thread, STACKS_SIGNAL)
                    self.thread = 0

    def words(self, until):
        """Return ``python``, the lines of its stacks, and ``collectives``, the last ones that it
        began.

        py-spy is waited for ``until`` then, on the monotonic clock. ``unanswered``: it gave no
        answer about collectives.
        """
        entry, text = {}, ""
        if self.stacks_from is not None:
            text = read_slice(self.base + ".stacks", self.stacks_from, MOST_STACK_BYTES).decode(
                "utf-8", "replace"
            )
        elif self.spy is not None:
            with contextlib.suppress(Exception):
                output = self.spy.communicate(timeout=max(0.0, until - time.monotonic()))[0]
                text = output[:MOST_STACK_BYTES].decode("utf-8", "replace")
            self.spy.kill()
        if text:
            entry["python"] = shorten(text)
            entry.update(calls_of(text, self.pid))
        if self.ask.is_asked and self.ask.is_over():
            entry.update(read_collectives(self.ask.path))
        if self.ask.is_asked and not self.ask.is_over():
            entry["unanswered"] = True
        return entry


def shorten(text):
    """Return the lines of stacks, of files only their names: the path of a payload is longer than
    all the rest.
    """
    text = re.sub(r'File "[^"]*/([^"/]+)"', r'File "\1"', text)
    return re.sub(r"(?m)^(\s+\S+ \().*/([^/]+:\d+\))$", r"\1\2", text).splitlines()[:120]


def read_collectives(path):
    """Return ``collectives`` and ``earlier``, as a rank wrote them; an empty answer without a
    flight recorder.
    """
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        return last_collectives(read_slice(path, 0, MOST_COLLECTIVES_BYTES))
    return {}


def ask_collectives(directory, living, ended):
    """Ask ranks that may be about to end for their collectives; return {rank: what `read_collectives`
    returns of each}, also of those that have left them when they failed. Waits for a moment."""
    bases = {rank: os.path.join(directory, "ranks", str(rank)) for rank in living + ended}
    questions = [Ask(bases[rank]) for rank in living]
    deadline = time.monotonic() + LAST_ANSWER_S
    while time.monotonic() < deadline and not all(question.is_over() for question in questions):
        time.sleep(0.01)
    return {
        rank: words
        for rank, base in bases.items()
        for words in [read_collectives(base + ".collectives")]
        if words
    }


def own_words(questions):
    """Return {rank: words} of all ranks that were asked; those that do not answer are waited for no
    longer than a moment.
    """
    began = time.monotonic()
    deadline = began + ANSWER_S
    while time.monotonic() < deadline and not all(
        question.has_answer() for question in questions.values()
    ):
        for question in questions.values():
            question.insist()
        time.sleep(0.02)
    return {rank: question.words(began + SPY_S) for rank, question in questions.items()}


def last_collectives(data):
    """Return the last collectives of a flight recorder.

    ``collectives`` are the unfinished ones and the one before, ``earlier`` the previous ones of the
    same group: [{"group", "number", "name", "state", "over", "sizes", "outputs", "types"}].
    ``sizes`` and ``types`` describe the rank's input, ``outputs`` the sizes of its output.
    """
    entries = json.loads(data.decode("utf-8", "replace")).get("entries") or []
    kept = []
    for entry in entries:
        group = entry.get("process_group") or [""]
        kept.append(
            {
                "group": str(group[0]),
                "number": int(entry.get("collective_seq_id") or 0),
                "name": str(entry.get("profiling_name", ""))[:60],
                "state": str(entry.get("state", ""))[:20],
                "over": bool(entry.get("retired")),
                "sizes": str(entry.get("input_sizes", ""))[:80],
                "outputs": str(entry.get("output_sizes", ""))[:80],
                "types": ", ".join(map(str, entry.get("input_dtypes") or ()))[:80],
            }
        )
    if not kept:  # nothing is recorded, as the recorder is not switched on
        return {}
    # The first that is not over is the one that is waited for; the others may be queued behind it.
    waiting = [at for at, entry in enumerate(kept) if not entry["over"]]
    first = waiting[0] if waiting else len(kept) - 1
    return {
        "collectives": kept[max(0, first - 1) : first - 1 + KEPT_COLLECTIVES],
        "earlier": kept[max(0, first - KEPT_BEFORE) : first],
    }


def catches(pid, number):
    """Return True if a process has a handler for a signal. Without one a signal of this kind would
    end it.
    """
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def waits_of(pid, thread):
    """Return how often a thread has begun to wait for anything; 0 if that cannot be read."""
    status = "/proc/%d/task/%d/status" % (pid, thread)
    with contextlib.suppress(OSError, ValueError), open(status) as file:
        return next(
            (int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches")), 0
        )
    return 0


def thread_of(pid, path):
    """Return the number, on this node, of the thread that a rank reports as waiting for questions;
    0 without a report.
    """
    try:
        with open(path) as file:
            number = int(file.read())
    except (OSError, ValueError):
        return 0
    threads = [int(name) for name in os.listdir("/proc/%d/task" % pid)]
    return next((thread for thread in threads if numbers_of(pid, thread)[-1:] == [number]), 0)


def send_to_thread(pid, thread, number):
    """Send a signal to one thread, where this system has a known way to."""
    call = TGKILL.get(os.uname().machine)
    if call is not None:
        import ctypes

        ctypes.CDLL(None).syscall(call, pid, thread, number)


def begin_spy(pid):
    """Start py-spy on a Python process; None where it is not installed, or the process is another
    program.
    """
    if not is_python(pid):
        return None
    program = [os.path.join(folder, "py-spy") for folder in folders_of(pid)]
    program = [path for path in program if os.access(path, os.X_OK)]
    if not program:
        return None
    import subprocess

    argv = [program[0], "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None


def folders_of(pid):
    """Return the folders that may hold a program beside a Python process.

    These are the folders of its interpreter, of its environment, and of this process.
    """
    folders = []
    with contextlib.suppress(OSError), open("/proc/%d/cmdline" % pid, "rb") as file:
        folders.append(os.path.dirname(os.fsdecode(file.read(4096).split(b"\0")[0])))
    values = variables_of(pid)
    folders += [
        os.path.join(values[name], "bin")
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if values.get(name)
    ]
    with contextlib.suppress(OSError):
        folders.append(os.path.dirname(os.readlink("/proc/%d/exe" % pid)))
    folders += values.get("PATH", "").split(":") + os.get_exec_path()
    return [folder for folder in folders if folder.startswith("/")]


def variables_of(pid):
    """Return the environment that a process was started with; empty if it cannot be read."""
    values = {}
    with contextlib.suppress(OSError), open("/proc/%d/environ" % pid, "rb") as file:
        for entry in file.read(MOST_ENVIRONMENT_BYTES).split(b"\0"):
            name, equals, value = entry.partition(b"=")
            if equals:
                values[os.fsdecode(name)] = os.fsdecode(value)
    return values


class RasQuestion:
    """A question to NCCL's own service, if one of these processes offers it on this node.

    It listens at the address of localhost, which may be ::1, or at NCCL_RAS_ADDR. It answers in
    text, and waits twice for the given number of seconds for ranks that do not answer it:
    src/ras/client_support.cc of NCCL 2.24 and newer.
    """

    def __init__(self, pids):
        self.began = time.monotonic()
        self.connection = None
        port = ras_port(pids)
        with contextlib.suppress(OSError):
            address = listens_at(pids, port)
            if address:
                self.connection = socket.create_connection((address, port), timeout=RAS_LEG_S)
                self.connection.sendall(b"timeout %d\nverbose status\n" % RAS_LEG_S)

    def words(self):
        """Return its answer about its ranks, as far as it has come; empty without one."""
        if self.connection is None:
            return ""
        data, deadline = b"", self.began + RAS_S
        with contextlib.suppress(OSError), self.connection:
            while len(data) < MOST_STACK_BYTES and time.monotonic() < deadline:
                self.connection.settimeout(max(0.01, deadline - time.monotonic()))
                block = self.connection.recv(4096)
                if not block:
                    break
                data += block
        text = data.decode("utf-8", "replace")
        return text[len(RAS_ACCEPTED) :] if text.startswith(RAS_ACCEPTED) else text


def ras_port(pids):
    """Return the port of NCCL's service, as the environment of one of these processes says."""
    for pid in pids:
        with contextlib.suppress(KeyError, ValueError):
            return int(variables_of(pid)["NCCL_RAS_ADDR"].rpartition(":")[2])
    return RAS_PORT


def size_of(path):
    """Return the size of a file; -1 if it is missing."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def read_file_mark(path):
    """Return a mark that changes whenever a file is replaced; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns

"""What a rank itself tells of a hang: the stacks of its threads and the flight recorder of its collectives, and NCCL's RAS.

Our trainers answer a signal and a pipe (``remote/rank_progress.py``). The signal is sent only to a rank that reports its
progress and catches the signal, so that no other program is ended by it. Of other Python programs py-spy reads the stacks,
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
from noderun.sockets import listens_at

STACKS_SIGNAL = int(signal.SIGRTMIN) + 14
ANSWER_S = 1.5
SPY_S = 4.0
MOST_STACK_BYTES = 16384
MOST_COLLECTIVES_BYTES = 4 << 20
KEPT_COLLECTIVES = 6
RAS_PORT = 28028
RAS_LEG_S = 1
RAS_S = 3.0
RAS_ACCEPTED = "OK\n"
MOST_ENVIRONMENT_BYTES = 1 << 20


class Question:
    """A rank that was asked for its stacks and its collectives."""

    def __init__(self, directory, rank, pid):
        self.base = os.path.join(directory, "ranks", str(rank))
        self.stacks_from = None
        self.asked = False
        self.spy = None
        with contextlib.suppress(OSError, ValueError):
            if os.path.exists(self.base + ".progress") and catches(pid, STACKS_SIGNAL):
                self.stacks_from = os.stat(self.base + ".stacks").st_size
                os.kill(pid, STACKS_SIGNAL)
        with contextlib.suppress(OSError):
            self.was = modified(self.base + ".collectives")
            # Opens only if somebody reads at the other end.
            handle = os.open(self.base + ".ask", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            os.write(handle, b"?")
            os.close(handle)
            self.asked = True
        if self.stacks_from is None:
            self.spy = begin_spy(pid)

    def answered(self):
        """Return True if all that was asked is there."""
        has_stacks = self.stacks_from is None or size_of(self.base + ".stacks") > self.stacks_from
        return has_stacks and (not self.asked or modified(self.base + ".collectives") != self.was)

    def words(self, until):
        """Return ``python``, the lines of its stacks, and ``collectives``, the last ones that it began. py-spy is waited for
        ``until`` then, on the monotonic clock."""
        entry = {}
        if self.stacks_from is not None:
            data = read_slice(self.base + ".stacks", self.stacks_from, MOST_STACK_BYTES)
            entry["python"] = shortened(data.decode("utf-8", "replace"))
        elif self.spy is not None:
            with contextlib.suppress(Exception):
                text = self.spy.communicate(timeout=max(0.0, until - time.monotonic()))[0].decode("utf-8", "replace")
                entry["python"] = shortened(text[:MOST_STACK_BYTES])
            self.spy.kill()
        if self.asked and modified(self.base + ".collectives") != self.was:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                entry["collectives"] = last_collectives(read_slice(self.base + ".collectives", 0, MOST_COLLECTIVES_BYTES))
        return entry


def shortened(text):
    """Return the lines of stacks, of files only their names: the path of a payload is longer than all the rest."""
    return re.sub(r'File "[^"]*/([^"/]+)"', r'File "\1"', text).splitlines()[:120]


def own_words(questions):
    """Return {rank: words} of all ranks that were asked; those that do not answer are waited for no longer than a moment."""
    began = time.monotonic()
    deadline = began + ANSWER_S
    while time.monotonic() < deadline and not all(question.answered() for question in questions.values()):
        time.sleep(0.02)
    return {rank: question.words(began + SPY_S) for rank, question in questions.items()}


def last_collectives(data):
    """Return what the flight recorder says of the last collectives: [{"group", "number", "name", "state", "over"}]."""
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
            }
        )
    # The first that is not over is the one that is waited for; the others may be queued behind it.
    waiting = [at for at, entry in enumerate(kept) if not entry["over"]]
    first = waiting[0] if waiting else len(kept) - 1
    return kept[max(0, first - 1) : first - 1 + KEPT_COLLECTIVES] if kept else []


def catches(pid, number):
    """Return True if a process has a handler for a signal. Without one a signal of this kind would end it."""
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def begin_spy(pid):
    """Start py-spy on a Python process; None where it is not installed, or the process is another program."""
    try:
        if "python" not in os.path.basename(os.readlink("/proc/%d/exe" % pid)):
            return None
    except OSError:
        return None
    program = [os.path.join(folder, "py-spy") for folder in os.get_exec_path()]
    program = [path for path in program if os.access(path, os.X_OK)]
    if not program:
        return None
    import subprocess

    argv = [program[0], "dump", "--nonblocking", "--pid", str(pid)]
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


class RasQuestion:
    """What NCCL's own service was asked, if one of these processes offers it on this node.

    It listens where the name localhost leads to, which may be ::1, or where NCCL_RAS_ADDR says. It answers in text, and waits
    for ranks that do not answer it as many seconds as it is told, twice: src/ras/client_support.cc of NCCL 2.24 and newer.
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
        """Return what it says of its ranks, as far as it has come; empty without one."""
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
        with contextlib.suppress(OSError, ValueError), open("/proc/%d/environ" % pid, "rb") as file:
            for entry in file.read(MOST_ENVIRONMENT_BYTES).split(b"\0"):
                if entry.startswith(b"NCCL_RAS_ADDR="):
                    return int(entry.rpartition(b":")[2])
    return RAS_PORT


def size_of(path):
    """Return the size of a file; -1 if it is missing."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def modified(path):
    """Return what changes whenever a file is replaced; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns

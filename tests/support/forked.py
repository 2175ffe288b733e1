"""`orch` in processes of its own, forked from one that has loaded all of it: `start` is like
`subprocess.Popen`, without the half second of a processor that a start of the program takes.

    python -m tests.support.forked DESCRIPTOR

Status, streams, signals, folder and network are those of a started program. Its command line and
its environment in /proc are not: tests that look at these start the program itself. On a busy machine
nodes may be silent for longer before they are lost.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from tests.support.judge import LIMIT_S, slowness

__all__ = ["Forked", "start"]

REPOSITORY = Path(__file__).parents[2]
_CLONE_NEWNET = 0x40000000


def start(words: Sequence[str], folder: Path, environment: Mapping[str, str], net: str) -> Forked:
    """Start `orch` with these words in a folder, in the network namespace at the path ``net`` where
    that is not empty. It is in a session of its own and reads nothing.
    """
    order = {"words": words, "folder": str(folder), "environment": dict(environment), "net": net}
    return _server().start(order)


class Forked:
    """A command that runs, with those members of `subprocess.Popen` that tests use."""

    def __init__(self, words: Sequence[str], out: TextIO, err: TextIO, status: TextIO) -> None:
        self.args, self.stdout, self.stderr, self._status = words, out, err, status
        self.pid = int(status.readline())
        self.returncode: int | None = None
        self._texts: dict[TextIO, str] = {}
        self._readers: list[threading.Thread] = []

    def poll(self) -> int | None:
        """Return the exit status, less than 0 for a signal, and None while it runs."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when it has ended. Raises TimeoutExpired."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the rest of what it says when that has ended, and so has it. Raises TimeoutExpired,
        after which it may be called again.
        """
        until = time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        if not self._readers:
            for stream in (self.stdout, self.stderr):
                self._readers.append(threading.Thread(target=self._read, args=(stream,)))
                self._readers[-1].start()
        for reader in self._readers:
            reader.join(max(0.0, until - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if timeout is None else max(0.0, until - time.monotonic()))
        return self._texts[self.stdout], self._texts[self.stderr]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, stream: TextIO) -> None:
        if not stream.closed:
            self._texts[stream] = stream.read()
            stream.close()

    def _ended_within(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode


class _Server:
    """The process that forks, from this one's side. It ends with this one."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        variables = {**os.environ, "PYDANTIC_DISABLE_PLUGINS": "__all__"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())],
            cwd=REPOSITORY, env=variables, pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()

    def start(self, order: Mapping[str, Any]) -> Forked:
        """Start a command."""
        pairs = [os.pipe() for _ in range(3)]
        socket.send_fds(self._orders, [json.dumps(order).encode()], [end for _, end in pairs])
        for _, end in pairs:
            os.close(end)
        out, err, status = (os.fdopen(begin, encoding="utf-8") for begin, _ in pairs)
        return Forked(order["words"], out, err, status)

    def close(self) -> None:
        """End the process; commands that run go on."""
        self._orders.close()
        self._process.wait(LIMIT_S)


@cache
def _server() -> _Server:
    made = _Server()
    atexit.register(made.close)
    return made


def serve(orders: socket.socket) -> None:
    """Fork a command for each order until no more can come, and say its process id and its end."""
    waiting = selectors.DefaultSelector()
    waiting.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is not orders:
                pid, status = key.data
                _say(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                waiting.unregister(key.fileobj)
                for descriptor in (key.fd, status):
                    os.close(descriptor)
                continue
            order, descriptors, _, _ = socket.recv_fds(orders, 1 << 20, 3)
            if not order:
                return
            out, err, status = descriptors
            pid = os.fork()
            if pid == 0:
                _become(json.loads(order), out, err)
            os.close(out)
            os.close(err)
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
            _say(status, pid)


def _say(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(status, b"%d\n" % number)


def _become(order: Mapping[str, Any], out: int, err: int) -> None:
    try:
        os.setsid()
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(descriptor, number)
        os.closerange(3, 1024)
        # Those of the process that forked know what its files were.
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        if order["net"]:
            _enter(order["net"])
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        time.tzset()
        sys.argv = ["orch", *order["words"]]
        _allow_silence()
        from orchestrator.cli.process import run

        run()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
    finally:
        os._exit(1)


def _allow_silence() -> None:
    """Where many processes share a core, a node that is well may say nothing for seconds."""
    from orchestrator.plan.limits import Limits

    usual = {each.name: each.default for each in fields(Limits)}
    usual["lost_s"] *= slowness()
    Limits.__init__.__defaults__ = tuple(usual.values())


def _enter(net: str) -> None:
    descriptor = os.open(net, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), net)
    os.close(descriptor)


def _load() -> None:
    """Import all of `orch` that a command may need, without matplotlib, whose numbers start
    threads.
    """
    import orchestrator

    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.startswith("orchestrator.lab.") and "__main__" not in module.name:
            with suppress(ImportError):
                import_module(module.name)
    del sys.modules["matplotlib"]


if __name__ == "__main__":
    import gc

    _load()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))

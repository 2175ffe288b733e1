"""A master: the connection of ssh that carries all commands to a server (``ControlMaster``), the
user's or orch's own.
"""

from __future__ import annotations

import os
import shlex
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import TransportError
from orchestrator.procs import start_program
from orchestrator.transport.openssh.answers import Login
from orchestrator.transport.openssh.failures import failure, fingerprint, lacks_reason, step_of
from orchestrator.transport.ssh.config import Endpoint

AUTH_TIMEOUT_S = 30.0
"""Limit for the key exchange and the authentication, without the time in which somebody types."""

_WHEN_WATCHED = 'read -r _ || exit 1; exec "$@" </dev/null'
"""Starts ssh once the watcher knows the process: a kill before that leaves nothing behind.
"""
_READY = b"\ndebug1: Entering interactive session."
_LOG_BYTES = 64 * 1024
_HELLO_BYTES = 4
_CHECK_S = 2.0
_LEAVE_S = 2.0
_REASON_S = 1.0
_LOOK_S = 0.01


class Master:
    """A master of the user, which orch does not touch: it listens at ``socket``, and ssh calls the
    server ``name``.
    """

    def __init__(self, socket: Path, name: str) -> None:
        self.socket = socket
        self.name = name
        self.is_gateway = False
        """Whether other servers are reached through it."""

    @property
    def host_key(self) -> str:
        """The fingerprint of the server's host key, empty if it is not known."""
        return ""

    @property
    def alive(self) -> bool:
        """Return whether it listens."""
        return listens(self.socket)

    def answers(self) -> bool:
        """Return True if it is not only there, but serves; waits two seconds at most."""
        return usable(self.socket)

    def close(self) -> None:
        """Leave it to its user."""


class OwnMaster(Master):
    """A master that this process starts and ends. Its standard error is read as long as it runs."""

    def __init__(
        self,
        endpoint: Endpoint,
        socket: Path,
        command: Sequence[str],
        login: Login,
        environment: Mapping[str, str],
        gateway: Master | None,
        watch: Callable[[int], None],
    ) -> None:
        super().__init__(socket, endpoint.name)
        self._endpoint = endpoint
        self._gateway = gateway
        self._login = login
        self._ready = threading.Event()
        self._log = bytearray()
        self._told = 0
        self._later = bytearray()
        self._process = start_program(
            ["/bin/sh", "-c", _WHEN_WATCHED, "orch-ssh", *command],
            lambda process: watch(process.pid),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert self._process.stdin
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(b"\n")
        endpoint.tell(f"{endpoint.summary}; {shlex.join(command)}")
        self._thread = threading.Thread(target=self._read, daemon=True, name=f"ssh {endpoint.host}")
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether it runs and listens."""
        return self._process.poll() is None and super().alive

    @property
    def log(self) -> str:
        """The output of ssh during the log-in, and its last output, each at most 64 KiB."""
        return (self._log + self._later).decode("utf-8", "backslashreplace")

    @property
    def host_key(self) -> str:
        """The fingerprint of the server's host key."""
        return fingerprint(self.log)

    def wait(self) -> None:
        """Wait for the end of the log-in. Raises TransportError; the program has then ended."""
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        started = time.monotonic()
        limit_s = self._endpoint.connect_timeout_s + AUTH_TIMEOUT_S
        while not self._ready.wait(0.1):
            if self._login.unanswered:
                self.close()  # first, so that its last words are there
                raise self.failure()
            if time.monotonic() - started - self._login.asked_s > limit_s:
                stage = "log in" if "debug1: Authenticating to" in self.log else "connect"
                text = f"ssh did not {stage} within {limit_s:g} s"
                raise self._endpoint.error(
                    "auth_failed" if stage == "log in" else "host_unreachable", text
                )
        if self._process.poll() is not None or _READY not in self._log:
            self.close()
            raise self.failure()

    def failure(self) -> TransportError:
        """Return the error that its words mean."""
        return failure(
            self._endpoint,
            self.log,
            unanswered=self._login.unanswered,
            gateway_log=self._gateway_log(),
        )

    def _gateway_log(self) -> str:
        """Return the log of the jump host's master. It answers ssh before it prints why, so wait
        for that a second at most.
        """
        if not isinstance(self._gateway, OwnMaster):
            return ""
        deadline = time.monotonic() + _REASON_S
        while (
            lacks_reason(self._endpoint, self.log, self._gateway.log)
            and time.monotonic() < deadline
        ):
            time.sleep(_LOOK_S)
        return self._gateway.log

    def close(self) -> None:
        """End it, and with it every command that it carries."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if threading.current_thread() is not self._thread:
            self._thread.join(_LEAVE_S)
        with suppress(OSError):
            self.socket.unlink()

    def _read(self) -> None:
        assert self._process.stderr
        with self._process.stderr as stderr:
            while data := stderr.read(65536):
                if self._ready.is_set():
                    self._later += data
                    del self._later[:-_LOG_BYTES]
                    continue
                self._log += data
                self._tell()
                del self._log[:-_LOG_BYTES]
                if _READY in self._log:
                    self._ready.set()
            self._process.wait()
        self._ready.set()

    def _tell(self) -> None:
        """Report the steps of the log-in that ssh has printed since the last call."""
        end = self._log.rfind(b"\n") + 1
        for line in self._log[self._told : end].decode("utf-8", "backslashreplace").splitlines():
            if step := step_of(line):
                self._endpoint.tell(step)
        self._told = max(end, self._told)


def listens(path: Path) -> bool:
    """Return True if something of this user listens at a socket."""
    return _ask(path, lambda line: True)


def usable(path: Path) -> bool:
    """Return True if a master at a socket of this user greets within two seconds."""
    return _ask(path, lambda line: len(line.recv(_HELLO_BYTES)) > 0)


def _ask(path: Path, is_right: Callable[[socket.socket], bool]) -> bool:
    try:
        status = (
            path.lstat()
        )  # the link of another user may lead to a socket of this one, of another server
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_CHECK_S)
            line.connect(str(path))
            credentials = line.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
            return struct.unpack("3i", credentials)[1] == os.getuid() and is_right(line)
    except OSError:
        return False

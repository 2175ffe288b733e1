"""Connections by the program ssh: `OpensshConnector` logs in once per server, `OpensshTransport` is
one host.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import TransportError
from orchestrator.files import PROJECT_HINT, make_folder, who_may_replace
from orchestrator.inventory import Host
from orchestrator.transport.completion import run_to_end
from orchestrator.transport.openssh.answers import Answers
from orchestrator.transport.openssh.command import forward_command, login_command, program
from orchestrator.transport.openssh.failures import LATE
from orchestrator.transport.openssh.folder import MasterFolder
from orchestrator.transport.openssh.master import Master, OwnMaster, usable
from orchestrator.transport.openssh.session import open_session
from orchestrator.transport.program import ProgramChannel
from orchestrator.transport.protocols import Result
from orchestrator.transport.ssh.config import MAX_STARTUPS, Endpoint, resolve
from orchestrator.transport.ssh.dial import greets
from orchestrator.transport.ssh.quoting import remote_command
from orchestrator.transport.trust import Trust

_LATE_ATTEMPTS = 2
_Server = tuple[str, str, int, str | None]
"""Name, user, port and configuration file: hosts behind one jump host share its master."""

_REFUSALS = (
    "auth_failed",
    "host_key_unknown",
    "host_key_changed",
    "host_key_revoked",
    "algorithm_refused",
)
"""Kinds of errors that another attempt of the same command would meet again, unless the server just
hung up.
"""


class OpensshConnector:
    """Masters of one command: the user's where one is live, otherwise orch's own, which end with
    the command.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._changing = threading.Lock()
        self._numbers = itertools.count(1)
        self._folder: MasterFolder | None = None
        self._answers: Answers | None = None
        self._gates: dict[_Server, threading.Lock] = {}
        self._masters: dict[_Server, Master] = {}
        self._refused: dict[_Server, TransportError] = {}
        self._started: set[OwnMaster] = set()
        self._is_over = False

    def prepare(self, host: Host) -> Callable[[], OpensshTransport]:
        """Resolve a host; return a function that connects. Raises ConfigError without ssh, and for
        an invalid configuration.
        """
        program()
        endpoint = resolve(host)
        return lambda: self._connect(host, endpoint)

    def connect(self, host: Host) -> OpensshTransport:
        """Log in to a host, first to its jump hosts, unless a master is there already.

        Raises TransportError host_unreachable, host_key_unknown, host_key_changed,
        host_key_revoked, algorithm_refused or auth_failed. The terminal is asked only at the first
        log-in to a server.
        """
        return self._connect(host, resolve(host))

    def close(self) -> None:
        """End the masters of the command, also those that are still logging in, and forget what was
        typed. No other follows.
        """
        with self._changing:
            self._is_over = True
            masters, self._started = self._started, set()
            folder, self._folder = self._folder, None
            answers, self._answers = self._answers, None
        for master in masters:
            master.close()
        if answers:
            answers.close()
        if folder:
            folder.close()

    def _connect(self, host: Host, endpoint: Endpoint) -> OpensshTransport:
        accept_new = self._trust.accept_new or host.ssh.host_keys == "accept-new"
        master = self._master(host, endpoint, replace(self._trust, accept_new=accept_new))
        return OpensshTransport(host, endpoint, master)

    def _master(self, host: Host, endpoint: Endpoint, trust: Trust) -> Master:
        """Return a live master of a server, which is new if there was none; threads that need the
        same one wait for it.

        A server that has refused the first log-in is not asked again for the next host behind it.
        """
        server = (endpoint.name, endpoint.user, endpoint.port, host.ssh.config)
        with self._changing:
            gate = self._gates.setdefault(server, threading.Lock())
        with gate:
            known = self._masters.get(server)
            if known and known.alive:
                return known
            refusal = self._refused.get(server)
            if refusal and not (
                refusal.kind == "host_key_unknown" and trust.accept_new
            ):  # which another host may not have
                raise endpoint.error(refusal.kind, refusal.message, refusal.hint)
            if _is_there_and_safe(endpoint):
                endpoint.tell(
                    f"{endpoint.summary}; using your connection at {endpoint.control_path}"
                )
                master = Master(Path(endpoint.control_path), endpoint.name)
            else:
                via = self._master(host, endpoint.via, trust) if endpoint.via else None
                if via:
                    via.is_gateway = True
                try:
                    master = self._log_in(host, endpoint, trust, via, is_first=known is None)
                except TransportError as error:
                    if known is None and error.kind in _REFUSALS and error.hint != LATE:
                        self._refused[server] = error
                    raise
            if known:
                known.close()
            self._masters[server] = master
            return master

    def _log_in(
        self, host: Host, endpoint: Endpoint, trust: Trust, via: Master | None, *, is_first: bool
    ) -> Master:
        """Log in; retry while the server has too many connections, or if this one waited too long
        for its turn.
        """
        folder, answers = self._folder_and_answers(endpoint)
        through = forward_command(via.socket, via.name) if via else ""
        where = f"{host.name} ({endpoint.label})" if endpoint.label else host.name
        if trust.accept_new:
            make_folder(trust.store.parent, PROJECT_HINT)
        deadline = time.monotonic() + endpoint.connect_timeout_s
        for attempt in itertools.count():
            socket = folder.path / str(next(self._numbers))
            command = login_command(host, endpoint, trust, socket, through=through)
            try:
                with answers.login(where, endpoint, may_ask=is_first) as login:
                    with self._changing:
                        self._refuse_if_over(endpoint)
                        master = OwnMaster(
                            endpoint,
                            socket,
                            command,
                            login,
                            answers.environment(login),
                            via,
                            folder.watch,
                        )
                        self._started.add(master)
                    master.wait()
                    return master
            except TransportError as error:
                pause_s = random.uniform(0.5, 1.5) * min(0.1 * 2**attempt, 1.0)
                dropped = error.hint == MAX_STARTUPS and time.monotonic() + pause_s < deadline
                # A server waits for two minutes (LoginGraceTime); somebody may type slowly, or for
                # other log-ins first.
                too_late = (
                    error.hint == LATE
                    and (login.has_waited or login.has_asked)
                    and attempt < _LATE_ATTEMPTS
                )
                if not (dropped or too_late):
                    raise
                time.sleep(pause_s)
        raise AssertionError

    def _refuse_if_over(self, endpoint: Endpoint) -> None:
        if self._is_over:  # a thread goes on after an interrupt
            raise endpoint.error("host_unreachable", "the command is over")

    def _folder_and_answers(self, endpoint: Endpoint) -> tuple[MasterFolder, Answers]:
        with self._changing:
            self._refuse_if_over(endpoint)
            if self._folder is None or self._answers is None:
                self._folder = MasterFolder()
                self._answers = Answers(self._folder)
            return self._folder, self._answers


def _is_there_and_safe(endpoint: Endpoint) -> bool:
    """Return True if the user's own connection can be used: another user must not be able to put
    another one in its place.
    """
    path = Path(endpoint.control_path)
    if not endpoint.control_path or not usable(path):
        return False
    if reason := who_may_replace(path, is_private=True):
        endpoint.tell(f"not using your connection at {path}: {reason}")
        return False
    return True


class OpensshTransport:
    """One host, reached through a master. Several threads may use it at once."""

    def __init__(self, host: Host, endpoint: Endpoint, master: Master) -> None:
        self.host = host
        self._endpoint = endpoint
        self._master = master
        self._closed = False
        self._channels: weakref.WeakSet[ProgramChannel] = weakref.WeakSet()

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float) -> Result:
        """Run a command to its end; send ``input`` while its output is read. Raises as
        `Transport.run` does.

        ssh tells no signal: a command that one ended has exit code 255.
        """
        command = remote_command(argv)
        return run_to_end(
            self.host,
            argv,
            input,
            timeout_s,
            lambda at: self._open(command, at, take_all=True),
            lambda: self.alive,
        )

    def popen(self, argv: Sequence[str], *, timeout_s: float) -> ProgramChannel:
        """Start a command and return the channel to it; ``timeout_s`` limits the start alone."""
        return self._open(remote_command(argv), time.monotonic() + timeout_s, take_all=False)

    def greets(self, is_needed: Callable[[], bool]) -> bool:
        """Return True if the host's SSH server answers on a new connection. False behind a jump
        host or a ProxyCommand.
        """
        return not (self._endpoint.via or self._endpoint.proxy_command) and greets(
            self._endpoint, is_needed
        )

    @property
    def alive(self) -> bool:
        """Return whether the master is there."""
        return not self._closed and self._master.alive

    @property
    def unread(self) -> bool:
        """Return whether a channel has data that its thread had no processor time to read.

        False if the connection broke.
        """
        return any(channel.unread for channel in list(self._channels)) and self.alive

    @property
    def host_key(self) -> str:
        """The fingerprint of the host's key; empty with a master of the user, which does not tell
        it.
        """
        return self._master.host_key

    @property
    def via(self) -> str:
        """The last jump host on the way to the host, as messages name it; empty without one."""
        return self._endpoint.via.label if self._endpoint.via else ""

    def close(self) -> None:
        """End the commands that still run here, and the master, unless it belongs to the user or a
        jump host.
        """
        self._closed = True
        if not self._master.is_gateway:
            self._master.close()
        for channel in list(self._channels):
            channel.kill()

    def _open(self, command: str, deadline: float, *, take_all: bool) -> ProgramChannel:
        if self._closed:
            raise TransportError("the connection broke", kind="node_lost", host=self.host.name)
        channel = open_session(self.host, self._master, command, deadline, take_all=take_all)
        self._channels.add(channel)
        return channel

"""The way to a host by local programs, one for each command: `ProgramTransport`.

There is nothing to keep open between two commands: each program makes a connection of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from orchestrator.inventory import Host
from orchestrator.transport.completion import run_to_end
from orchestrator.transport.program.channel import ProgramChannel
from orchestrator.transport.protocols import Result


class ProgramTransport:
    """The way to one host. ``start`` starts the program that runs a command there, with
    ``take_all`` as for `ProgramChannel`; ``host_key`` is what tells machines apart.
    """

    def __init__(
        self,
        host: Host,
        start: Callable[[Sequence[str], bool], ProgramChannel],
        host_key: str = "",
    ) -> None:
        self.host = host
        self.host_key = host_key
        self.via = ""
        self._start_program = start
        self._lock = threading.Lock()
        self._channels: list[ProgramChannel] = []
        self._closed = False

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float) -> Result:
        """Run a command to its end."""
        return run_to_end(
            self.host,
            argv,
            input,
            timeout_s,
            lambda _: self._start(argv, take_all=True),
            lambda: self.alive,
        )

    def popen(self, argv: Sequence[str], *, timeout_s: float) -> ProgramChannel:
        """Start a command and return the channel to it; whether it has started shows in its answer."""
        return self._start(argv, take_all=False)

    def _start(self, argv: Sequence[str], *, take_all: bool) -> ProgramChannel:
        channel = self._start_program(argv, take_all)
        with self._lock:
            running = [earlier for earlier in self._channels if not earlier.ended]
            self._channels = [*running, channel]
        if self._closed:  # by another thread, meanwhile
            self.close()
        return channel

    def greets(self, is_needed: Callable[[], bool]) -> bool:
        """Return False: on a host that is slow, another command is no quicker than the one that
        waits.
        """
        return False

    @property
    def alive(self) -> bool:
        """Whether commands may be started: until this is closed."""
        return not self._closed

    @property
    def unread(self) -> bool:
        """Whether output of a command has arrived and waits for its thread."""
        with self._lock:
            return any(channel.unread for channel in self._channels)

    def close(self) -> None:
        """End the commands that still run."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.abandon()

"""One command through a master: a `ProgramChannel` over ``ssh -S``."""

from __future__ import annotations

import re
import threading
import time

from orchestrator.errors import TransportError
from orchestrator.inventory import Host
from orchestrator.transport.openssh.command import master_command
from orchestrator.transport.openssh.failures import own_words
from orchestrator.transport.openssh.master import Master
from orchestrator.transport.program import Outcome, ProgramChannel
from orchestrator.transport.streams import OUTPUT_LIMIT_BYTES, STDERR_TAIL_BYTES, Inbox

_FREEING_S = 1.0
_SSH_FAILED = 255
_OPENED = re.compile(rb"debug1: mux_client_request_session: master session id: \d+\r?\n")
_REFUSED = re.compile(r"session request failed: (.*)")
_WORDS_BYTES = 65536


def open_session(
    host: Host, master: Master, command: str, deadline: float, *, take_all: bool
) -> ProgramChannel:
    """Start ``command`` by the monotonic ``deadline``, with retries for one second: sshd frees a
    session only some time later.

    Raises TransportError node_lost or host_unreachable.
    """
    patient_until = min(deadline, time.monotonic() + _FREEING_S)
    while True:
        words = _Words(OUTPUT_LIMIT_BYTES if take_all else STDERR_TAIL_BYTES)

        def outcome(code: int, stderr: bytes) -> Outcome:
            return _outcome(master, code)

        argv = master_command(master.socket, "-v", "-T", "--", master.name, command)
        channel = ProgramChannel(host, argv, outcome, take_all=take_all, stderr=words)
        if words.over.wait(max(0.0, deadline - time.monotonic())) and words.has_opened:
            return channel
        channel.close()
        channel.kill()
        if not words.over.is_set():
            raise TransportError(
                "the host did not start the command in time", kind="node_lost", host=host.name
            )
        refused = _REFUSED.search(words.text)
        if not refused or not master.answers():
            said = own_words(words.text)
            hint = f"ssh said: {said[0]}" if said and master.alive else ""
            raise TransportError(
                "the connection broke", kind="node_lost", host=host.name, hint=hint
            )
        if time.monotonic() > patient_until:
            text = f"the host refused another session on this connection ({refused[1].strip()})"
            hint = "raise MaxSessions in its sshd_config"
            raise TransportError(text, kind="host_unreachable", host=host.name, hint=hint)
        time.sleep(0.02)


def _outcome(master: Master, code: int) -> Outcome:
    """Return the meaning of an exit code of ssh.

    255 is ssh's own code too, and its code for a command that a signal ended.
    """
    if code == _SSH_FAILED and master.answers():
        return code, None
    if code < 0 or code == _SSH_FAILED:
        return TransportError("the connection broke", kind="node_lost")
    return code, None


class _Words(Inbox):
    """Standard error; everything up to the start of the command is ssh's own."""

    def __init__(self, keep: int) -> None:
        super().__init__(keep)
        self.over = threading.Event()
        self.has_opened = False
        self._own = bytearray()

    @property
    def text(self) -> str:
        """The words of ssh."""
        return self._own.decode("utf-8", "backslashreplace")

    def feed(self, data: bytes | memoryview) -> None:
        """Add what ssh or the command wrote."""
        if self.has_opened:
            super().feed(data)
            return
        self._own += data
        del self._own[:-_WORDS_BYTES]
        if opened := _OPENED.search(self._own):
            rest = bytes(self._own[opened.end() :])
            del self._own[opened.end() :]
            self.has_opened = True
            if rest:
                super().feed(rest)
            self.over.set()

    def close(self) -> None:
        """Mark the end."""
        super().close()
        self.over.set()

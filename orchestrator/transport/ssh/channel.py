"""One remote command as bytes in both directions: `Channel`. Output is received in the connection's
own thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST
from paramiko.message import Message

from orchestrator.errors import TransportError
from orchestrator.inventory import Host
from orchestrator.transport import streams
from orchestrator.transport.receiver import Receiver
from orchestrator.transport.ssh.streams import WindowInbox
from orchestrator.transport.ssh.wire import Wire
from orchestrator.transport.streams import OUTPUT_LIMIT_BYTES, STDERR_TAIL_BYTES

_FREEING_S = 1.0
_BROKEN = (OSError, EOFError, paramiko.SSHException)


class Channel(Receiver[WindowInbox]):
    """One remote command, bytes only. Several threads may use it: the data of one `send` stays
    together.
    """

    def __init__(self, host: Host, channel: Any, stdout: WindowInbox, stderr: WindowInbox) -> None:
        super().__init__(stdout, stderr)
        self._host = host
        self._channel = channel
        self._sending = threading.Lock()

    def send(self, data: bytes) -> None:
        """Send all of ``data`` to the command's standard input. Raises TransportError node_lost if
        the connection broke.

        Also raises node_lost, with another message, if the command ended or closed its input.
        """
        with self._sending:
            self.send_until(data, None)

    def send_until(self, data: bytes, deadline: float | None) -> None:
        """Send by the monotonic ``deadline``, or without one as long as the node accepts data every
        `STALL_S`.
        """
        rest = memoryview(data)
        while rest:
            limit_s = (
                streams.STALL_S if deadline is None else max(0.001, deadline - time.monotonic())
            )
            self._channel.settimeout(limit_s)
            try:
                sent = self._channel.outbox.send(rest[: 1 << 17])
            except TimeoutError as error:
                raise self._lost_error(f"it accepted no data for {limit_s:.0f} s") from error
            except _BROKEN as error:
                raise self._ended_error() from error
            # On a dead connection, paramiko drops data silently and reports success.
            if sent == 0 or not self._channel.transport.is_active():
                raise self._ended_error()
            rest = rest[sent:]

    def ending(self, timeout_s: float) -> tuple[int | None, str | None]:
        """Wait for the end of output and command; return its exit code, or the name of the signal
        that ended it.

        Both are None if the server reports neither. Raises TimeoutError, or TransportError
        node_lost.
        """
        deadline = time.monotonic() + timeout_s
        if not self._stdout.wait_for_end(timeout_s):
            raise TimeoutError
        if not self._channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        code = self._channel.exit_status
        if code == -1 and self._stdout.signal is None and not self._stdout.finished:
            raise self._ended_error()
        return (None if code == -1 else code), self._stdout.signal

    def shutdown_write(self) -> None:
        """Close the command's standard input. Does nothing if it is already closed."""
        with contextlib.suppress(*_BROKEN):  # the next read reports a broken connection
            self._channel.outbox.shutdown_write()

    def close(self) -> None:
        """Close the channel. The command continues, unless it ends when its input closes."""
        self._stdout.ended = True
        with contextlib.suppress(*_BROKEN):
            self._channel.outbox.close()

    def _ended_error(self) -> TransportError:
        if self._channel.transport.is_active() and self._stdout.ended:
            return self._lost_error("the command accepts no more input: it ended")
        return self._lost_error("the connection broke")

    def _lost_error(self, message: str) -> TransportError:
        return TransportError(message, kind="node_lost", host=self._host.name)


def open_channel(
    host: Host, wire: Wire, command: str, deadline: float, *, take_all: bool
) -> Channel:
    """Start ``command`` on a new channel by the monotonic ``deadline``.

    With ``take_all`` both streams are received as they arrive, for a caller that reads them when
    the command has ended. Raises TransportError node_lost or host_unreachable.
    """
    lost = TransportError("the connection broke", kind="node_lost", host=host.name)
    try:
        channel = _session(wire, deadline)
    except paramiko.ChannelException as error:
        text = f"the host refused another session on this connection ({wire.refusal or error.text})"
        hint = "raise MaxSessions in its sshd_config"
        raise TransportError(text, kind="host_unreachable", host=host.name, hint=hint) from error
    except _BROKEN as error:
        if wire.is_active():
            raise TransportError(
                "the host did not open a session in time", kind="node_lost", host=host.name
            ) from error
        raise lost from error
    stdout = WindowInbox(channel, OUTPUT_LIMIT_BYTES if take_all else None)
    stderr = WindowInbox(channel, OUTPUT_LIMIT_BYTES if take_all else STDERR_TAIL_BYTES)
    channel.in_buffer, channel.in_stderr_buffer = stdout, stderr
    opened = Channel(host, channel, stdout, stderr)
    try:
        _execute(channel, command)
        if not channel.event.wait(max(0.0, deadline - time.monotonic())):
            raise TransportError(
                "the host did not start the command in time", kind="node_lost", host=host.name
            )
    except _BROKEN as error:
        opened.close()
        raise lost from error
    except BaseException:
        opened.close()
        raise
    if not channel.event_ready:
        opened.close()
        if wire.is_active():
            raise TransportError(
                "the host refused to run a command", kind="host_unreachable", host=host.name
            )
        raise lost
    return opened


def _session(wire: Wire, deadline: float) -> Any:
    """Open a session, with retries for one second: sshd frees the session of an earlier command
    only some time later.
    """
    patient_until = min(deadline, time.monotonic() + _FREEING_S)
    while True:
        try:
            return wire.open_session(timeout=max(0.1, deadline - time.monotonic()))
        except paramiko.ChannelException:
            if time.monotonic() > patient_until:
                raise
            time.sleep(0.02)


def _execute(channel: Any, command: str) -> None:
    """Request the command as paramiko does, but without its unlimited wait for the answer, which is
    left to the caller.
    """
    message = Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(command)
    channel._event_pending()
    channel.transport._send_user_message(message)

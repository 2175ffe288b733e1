"""One TCP connection and the SSH protocol on it: paramiko's transport with safe algorithms, limits
and higher speed.

By default paramiko offers CBC and SHA-1, never sets TCP_NODELAY, starts a timer thread for each
handshake, wakes up ten times a second, loses the signal that ended a command, and can deadlock
during a key re-exchange. Only this module corrects that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import paramiko
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_REQUEST,
)
from paramiko.kex_curve25519 import KexCurve25519
from paramiko.message import Message

from orchestrator.errors import TransportError
from orchestrator.transport.ssh.config import MAX_STARTUPS, Endpoint
from orchestrator.transport.ssh.packets import HEAD_BYTES, PACKET_BYTES, Data, PacketReader, Socket
from orchestrator.transport.ssh.streams import Outbox
from orchestrator.transport.streams import Inbox

WINDOW_BYTES = 4 << 20
"""Bytes that a node may send on a channel before they are read on this side."""

_TOLD_BYTES = WINDOW_BYTES // 4
"""Bytes that are read before the window is adjusted; paramiko does so more than twice as often,
which costs both sides time.
"""

_JOIN_S = 2.0
_KEX_NAMES = {"kex": "kex_algo_list", "host keys": "server_key_algo_list"}
_CIPHER_NAMES = {"ciphers": "server_encrypt_algo_list", "MACs": "server_mac_algo_list"}

# Without a handler, Python would print paramiko's log on stderr; each of its errors is also raised
# as an exception.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Dropped(TransportError):  # noqa: N818  # not an error until the time for retries is over
    """The server closed the connection before the key exchange was done, as sshd does beyond
    MaxStartups. Retry helps.
    """


_Base: Any = (
    paramiko.Transport
)  # many methods that are overridden below are not in its published types


class Wire(_Base):  # type: ignore[misc]
    """The protocol engine of one connection. `shake_hands` makes it usable; authentication and
    channels are paramiko's.
    """

    _active_check_timeout = 5.0
    _preferred_kex = (
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
        "diffie-hellman-group16-sha512",
        "diffie-hellman-group14-sha256",
    )
    _kex_info = {**_Base._kex_info, "curve25519-sha256": KexCurve25519}
    _preferred_ciphers = (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    )
    _preferred_macs = (
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-512",
    )
    _preferred_keys: tuple[str, ...] = (
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "rsa-sha2-512",
        "rsa-sha2-256",
    )
    _preferred_pubkeys = _preferred_keys

    def __init__(self, sock: Any, known_types: Sequence[str]) -> None:
        self._wrapped = Socket(sock)
        self._proxy_status = getattr(sock, "exit_status", lambda: None)
        self._offered: dict[str, list[str]] = {}
        self._held: list[Message] = []
        self.refusal = ""
        sizes = {"default_window_size": WINDOW_BYTES, "default_max_packet_size": PACKET_BYTES}
        super().__init__(self._wrapped, **sizes, packetizer_class=PacketReader)
        # Request the type of the known key first: the server may have other keys that are not in
        # any known-hosts file.
        first = [
            name
            for key_type in known_types
            for name in self._preferred_keys
            if _signs_for(name, key_type)
        ]
        self._preferred_keys = tuple(dict.fromkeys((*first, *Wire._preferred_keys)))

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Host key algorithms, without the certificates that paramiko would accept unchecked."""
        return self._preferred_keys

    @property
    def agreed(self) -> str:
        """The server's version and the cipher that was agreed on, in words."""
        return f"{self.remote_version}, {self.local_cipher}"

    @property
    def unread(self) -> bool:
        """Return whether data has arrived that the connection's thread has not read."""
        return self._wrapped.unread()

    def shake_hands(self, endpoint: Endpoint, deadline: float) -> None:
        """Exchange banners and keys by the monotonic ``deadline``. Raises TransportError; `Dropped`
        if a retry may help.
        """
        self.banner_timeout = 1e6
        done = threading.Event()
        self.start_client(event=done)
        in_time = done.wait(max(0.0, deadline - time.monotonic()))
        if in_time and self.active and self.initial_kex_done:
            return
        error = self.get_exception()
        raise self._handshake_error(endpoint, error, in_time=in_time)

    def hang_up(self) -> None:
        """Close the connection and wait for its thread, which then ends."""
        self.close()
        self._wrapped.close()  # paramiko leaves the socket of a connection that failed early
        if self.is_alive() and threading.current_thread() is not self:
            self.join(_JOIN_S)
        self._wrapped.release()

    def _handshake_error(
        self, endpoint: Endpoint, error: Exception | None, *, in_time: bool
    ) -> TransportError:
        greeting = self._wrapped.head.split(b"\n")[0].strip().decode("ascii", "backslashreplace")
        quote = f"; it sent {greeting!r}" if greeting and not greeting.startswith("SSH-") else ""
        if not in_time:
            stage = "connected, but no SSH banner came"
            if self.remote_version:
                stage = "the key exchange did not finish"
            text = f"{stage} within {endpoint.connect_timeout_s:g} s{quote}"
            return endpoint.error(
                "host_unreachable", text, "is the host, or its sshd, overloaded or frozen?"
            )
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            text = self._disagreement() or str(error)
            return endpoint.error(
                "algorithm_refused", text, "update or reconfigure the host's sshd"
            )
        if isinstance(error, paramiko.ssh_exception.MessageOrderError):
            return endpoint.error(
                "host_unreachable", f"the key exchange was broken or tampered with: {error}"
            )
        if error is None or isinstance(error, (EOFError, OSError)) or not self.remote_version:
            if quote and "MaxStartups" not in greeting and "Not allowed" not in greeting:
                return endpoint.error(
                    "host_unreachable",
                    f"the program on port {endpoint.port} is not an SSH server{quote}",
                )
            stage = "in the key exchange" if self.remote_version else "before the SSH banner"
            text = f"the host closed the connection {stage}{quote}"
            command = endpoint.proxy_command
            hint = f"run its ProxyCommand by hand: {command}" if command else MAX_STARTUPS
            status = self._proxy_status() if command else None
            # A server that hangs up, as sshd does beyond MaxStartups, ends nc with 0 and ssh with
            # 255: a retry helps.
            if status not in (None, 0, 255):
                text = f"its ProxyCommand ended with status {status} {stage}"
                return endpoint.error("host_unreachable", text, hint)
            return Dropped(
                text, kind="host_unreachable", hint=hint, host=endpoint.host, where=endpoint.label
            )
        return endpoint.error("host_unreachable", f"the key exchange failed: {error}")

    def _disagreement(self) -> str:
        preferred = (
            self.preferred_kex,
            self.preferred_keys,
            self.preferred_ciphers,
            self.preferred_macs,
        )
        for (noun, name), accepted in zip(
            (_KEX_NAMES | _CIPHER_NAMES).items(), preferred, strict=True
        ):
            offered = [
                word
                for word in self._offered.get(name, [])
                if not word.startswith(("kex-strict-", "ext-info-"))
            ]
            if not set(offered) & set(accepted):
                return f"no safe {noun} in common: the host offers {', '.join(offered)}, accepted are {', '.join(accepted)}"
        return ""

    def open_channel(self, *args: Any, **kwargs: Any) -> Any:
        """Open a channel as paramiko does, with an `Outbox` as its ``outbox``."""
        try:
            channel = super().open_channel(*args, **kwargs)
        except paramiko.ChannelException:
            raise
        except paramiko.SSHException as error:
            if self.is_active() and "Unable" in str(
                error
            ):  # refused, but paramiko gave the reason to another thread
                raise paramiko.ChannelException(2, self.refusal) from error
            raise
        channel.outbox = Outbox(channel)
        channel.in_window_threshold = _TOLD_BYTES
        return channel

    # The following methods override paramiko's, and run in its thread.

    def _really_parse_kex_init(self, m: Message, ignore_first_byte: bool = False) -> Any:
        parsed = super()._really_parse_kex_init(m, ignore_first_byte)
        self._offered = {
            name: list(value) for name, value in parsed.items() if isinstance(value, list)
        }
        return parsed

    def _send_user_message(self, data: Message) -> None:
        if threading.current_thread() is self and not self.clear_to_send.is_set():
            self._held.append(
                data
            )  # this thread is exchanging keys: it would wait for itself forever
            return
        super()._send_user_message(data)

    def _parse_newkeys(self, m: Message) -> None:
        super()._parse_newkeys(m)
        held, self._held = self._held, []
        for data in held:
            self._send_user_message(data)

    def _parse_channel_open_failure(self, m: Message) -> None:
        m.get_int()
        m.get_int()
        self.refusal = m.get_string().decode("ascii", "backslashreplace")[:HEAD_BYTES]
        m.rewind()
        super()._parse_channel_open_failure(m)


def _on_data(channel: Any, m: Message) -> None:
    if not isinstance(m, Data):
        _PARAMIKOS[MSG_CHANNEL_DATA](channel, m)
    elif isinstance(channel.in_buffer, Inbox):
        channel.in_buffer.feed(m.data)
    else:
        channel.in_buffer.feed(bytes(m.data))


def _on_eof(channel: Any, m: Message) -> None:
    channel.in_buffer.ended = (
        True  # reported by the server, not a broken connection: paramiko does not distinguish them
    )
    _PARAMIKOS[MSG_CHANNEL_EOF](channel, m)


def _on_close(channel: Any, m: Message) -> None:
    channel.in_buffer.ended = channel.in_buffer.finished = True
    with channel.lock:
        last = channel._close_internal()
        channel.transport._unlink_channel(channel.chanid)
    getattr(channel, "outbox", Outbox(channel)).finish(
        last
    )  # it has none if the server closes the channel immediately


def _on_request(channel: Any, m: Message) -> None:
    if m.get_text() == "exit-signal":
        m.get_boolean()
        channel.in_buffer.signal = "SIG" + m.get_string().decode("ascii", "backslashreplace")[:32]
        channel.status_event.set()
        return
    m.rewind()
    m.get_int()
    _PARAMIKOS[MSG_CHANNEL_REQUEST](channel, m)


_PARAMIKOS = _Base._channel_handler_table
Wire._channel_handler_table = {
    **_PARAMIKOS,
    MSG_CHANNEL_DATA: _on_data,
    MSG_CHANNEL_EOF: _on_eof,
    MSG_CHANNEL_CLOSE: _on_close,
    MSG_CHANNEL_REQUEST: _on_request,
}


def _signs_for(algorithm: str, key_type: str) -> bool:
    return algorithm == key_type or (key_type == "ssh-rsa" and algorithm.startswith("rsa-sha2-"))

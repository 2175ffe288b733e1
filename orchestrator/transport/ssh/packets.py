"""The packets of one connection: paramiko's `Packetizer`, with a faster path for AES-GCM.

Paramiko copies each byte eight times between the socket and the reader of a channel, and handles
each packet separately. This class receives into one buffer, decrypts into another, and passes
adjacent data of one channel on as one piece: bulk data is copied twice on its way to a file, by the
kernel into the first buffer and out of the second.
"""

from __future__ import annotations

import contextlib
import mmap
import select
import socket
import struct
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_DATA
from paramiko.message import Message
from paramiko.packet import NeedRekeyException, Packetizer

PACKET_BYTES = 128 * 1024
"""Maximum data in one packet from a node; four times paramiko's offer, for fewer packets in bulk
transfers.
"""

HEAD_BYTES = 200
"""How many of a server's first bytes are kept, for error messages."""

_LENGTH_BYTES, _TAG_BYTES = 4, 16
_SHORTEST = 16
_LONGEST = PACKET_BYTES + 1024
"""Length of a full packet, with its padding and the fields before the data."""

_BUFFER_BYTES = 2 * (_LENGTH_BYTES + _LONGEST + _TAG_BYTES)
"""Space for two full packets. With one (four of OpenSSH's), a pull at full speed takes a fifth
longer; more is no faster.
"""

_EARLY_RECEIVES = 50

_HEAD = struct.Struct(">BBII")
"""The start of a decrypted data packet: length of the padding, kind, channel, length (RFC 4253, 6;
RFC 4254, 5.2).
"""


def _buffer() -> memoryview:
    """Return a buffer for full packets, which uses memory only as it is written: most connections
    never carry much data.
    """
    return memoryview(mmap.mmap(-1, _BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Socket:
    """A socket for paramiko: one receive call serves many packets, and `close` wakes a thread that
    is reading.
    """

    def __init__(self, sock: Any) -> None:
        self._sock: Any = sock
        self._buffer = _buffer()
        self._start = self._end = 0
        # Until its first command, sshd leaves Nagle's algorithm on, and would wait 40 ms for a
        # delayed acknowledgement. The kernel resets the option, so it is set again for the first
        # receives of a connection.
        self._early_receives = (
            _EARLY_RECEIVES
            if hasattr(socket, "TCP_QUICKACK") and isinstance(sock, socket.socket)
            else 0
        )
        self.head = b""
        self._closed = False  # paramiko reads it
        self._outbox = (
            self._sock.outbox if isinstance(sock, paramiko.Channel) else None
        )  # behind a jump host
        self.send = self._outbox.send if self._outbox else sock.send
        self.settimeout, self.getpeername = sock.settimeout, sock.getpeername

    def recv(self, size: int) -> bytes:
        """Return at most ``size`` bytes; ``b""`` at the end."""
        if self._start == self._end:
            self.receive()
        piece = self._buffer[self._start : min(self._end, self._start + size)]
        self._start += len(piece)
        return bytes(piece)

    def packet(self) -> memoryview | None:
        """Return the next packet with an unencrypted length if it has arrived completely, valid
        until the next `receive`.

        Returns None otherwise. Raises SSHException for a length outside the agreed limits.
        """
        if self._end - self._start < _LENGTH_BYTES:
            return None
        size = int.from_bytes(self._buffer[self._start : self._start + _LENGTH_BYTES], "big")
        if not _SHORTEST <= size <= _LONGEST:
            raise paramiko.SSHException(
                f"a packet of {size} bytes, expected {_SHORTEST} to {_LONGEST}"
            )
        end = self._start + _LENGTH_BYTES + size + _TAG_BYTES
        if self._end < end:
            return None
        packet, self._start = self._buffer[self._start : end], end
        return packet

    def receive(self) -> bool:
        """Wait for more data; return False at the end. Raises TimeoutError."""
        waiting = self._end - self._start
        self._buffer[:waiting] = self._buffer[self._start : self._end]
        self._start, self._end = 0, waiting
        if self._early_receives:
            self._early_receives -= 1
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        count = self._into(self._buffer[waiting:])
        self.head = self.head or bytes(self._buffer[: min(count, HEAD_BYTES)])
        self._end += count
        return count > 0

    def _into(self, buffer: memoryview) -> int:
        if not self._outbox:
            return int(self._sock.recv_into(buffer))
        data = self._sock.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def unread(self) -> bool:
        """Return True if data, or the end, has arrived that `receive` has not read: its thread has
        had no processor time.
        """
        if self._outbox:
            return bool(self._sock.recv_ready())
        poll, descriptor = select.poll(), self._sock.fileno()
        if descriptor < 0:
            return False
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """End reading and writing at once, in all threads.

        The socket's descriptor stays in use until `release`: a thread that is about to call the
        kernel with it would otherwise read from, or write to, the connection that gets the same
        descriptor next.
        """
        self._closed = True
        with contextlib.suppress(
            OSError, EOFError, paramiko.SSHException
        ):  # closed already, from either side
            if self._outbox:
                self._outbox.close()
            else:
                self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the socket, when its threads have ended."""
        self._sock.close()


class Data(Message):
    """Adjacent data of one channel as one message. ``data`` is valid until the next message is
    read.
    """

    def __init__(self, channel: int, data: memoryview) -> None:
        super().__init__(channel.to_bytes(4, "big"))
        self.data = data


_Base: Any = Packetizer  # much of its interface is not in its published types


class PacketReader(_Base):  # type: ignore[misc]
    """Paramiko's `Packetizer`, except for decryption of AES-GCM, and without a timer thread for
    each handshake.
    """

    def __init__(self, sock: Socket) -> None:
        super().__init__(sock)
        self._sock = sock
        self._engine: Any = None
        self._salt, self._count = b"", 0
        self._plain = memoryview(b"")
        self._ahead = b""
        self._sequence = 0
        self._opened_bytes = 0

    def start_handshake(self, timeout: float) -> None:
        """Start no timer: `Wire.shake_hands` has one limit for the whole handshake."""

    def set_inbound_cipher(self, **keys: Any) -> None:
        """Use the keys with which the server encrypts from now on."""
        super().set_inbound_cipher(**keys)
        self._engine = (
            keys["block_engine"] if hasattr(keys["block_engine"], "decrypt_into") else None
        )
        if self._engine:
            self._salt, self._count = keys["iv_in"][:4], int.from_bytes(keys["iv_in"][4:], "big")
            self._plain = self._plain or _buffer()
            self._opened_bytes = 0

    def reset_seqno_in(self) -> None:
        """Restart the count of the server's packets at 0."""
        super().reset_seqno_in()
        self._sequence = 0

    def read_message(self) -> tuple[int, Message]:
        """Return the kind and the content of the next message; adjacent data messages of one
        channel are returned as one.

        Raises EOFError at the end, NeedRekeyException when keys must be exchanged, SSHException or
        InvalidTag for packets that are not encrypted as agreed.
        """
        if not self._engine:
            kind, message = super().read_message()
            self._sequence += 1
            return int(kind), message
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            end = len(ahead)
            self._plain[:end] = ahead
        else:
            while not (packet := self._sock.packet()):
                self._receive()
            end = self._open(packet, 0)
        if self._plain[1] == MSG_CHANNEL_DATA:
            return MSG_CHANNEL_DATA, self._data(end)
        if end - self._plain[0] < 2:
            raise paramiko.SSHException(f"padding of {self._plain[0]} bytes in a packet of {end}")
        message = Message(bytes(self._plain[2 : end - self._plain[0]]))
        message.seqno = self._sequence - 1 & 0xFFFFFFFF
        return self._plain[1], message

    def _data(self, end: int) -> Data:
        """Return the data of the decrypted packet, and of all following packets of the same channel
        that have arrived.

        Each packet is decrypted so that its data follows the previous data; its head temporarily
        covers the last bytes of that.
        """
        channel, total = self._head(0, end)
        while not self._ahead and (packet := self._sock.packet()):
            covered = bytes(self._plain[total : total + _HEAD.size])
            end = self._open(packet, total)
            if self._plain[total + 1] == MSG_CHANNEL_DATA and self._head(total, end)[0] == channel:
                added = self._head(total, end)[1]
            else:
                added, self._ahead = 0, bytes(self._plain[total:end])
            self._plain[total : total + _HEAD.size] = covered
            total += added
        return Data(channel, self._plain[_HEAD.size : _HEAD.size + total])

    def _head(self, at: int, end: int) -> tuple[int, int]:
        """Return the channel and the length of the decrypted data at ``at``."""
        padding, _, channel, size = _HEAD.unpack_from(self._plain, at)
        if at + _HEAD.size + size + padding != end:
            raise paramiko.SSHException(f"data of {size} bytes in a packet of {end - at}")
        return channel, size

    def _open(self, packet: memoryview, at: int) -> int:
        """Decrypt a packet into the buffer from ``at`` on; return the offset of its end."""
        end = at + len(packet) - _LENGTH_BYTES - _TAG_BYTES
        nonce = self._salt + self._count.to_bytes(8, "big")  # RFC 5647, 7.1
        self._engine.decrypt_into(
            nonce, packet[_LENGTH_BYTES:], packet[:_LENGTH_BYTES], self._plain[at:end]
        )
        self._count = self._count + 1 & 0xFFFFFFFFFFFFFFFF
        self._sequence += 1
        self._opened_bytes += len(packet)
        if self._opened_bytes > self.REKEY_BYTES:
            self._trigger_rekey()
            if self._opened_bytes > self.REKEY_BYTES + self.REKEY_BYTES_OVERFLOW_MAX:
                raise paramiko.SSHException("the host does not exchange keys on request")
        return end

    def _receive(self) -> None:
        try:
            if not self._sock.receive():
                raise EOFError
        except TimeoutError:
            if self.closed:
                raise EOFError from None
            if self.need_rekey():
                raise NeedRekeyException from None
            self._check_keepalive()
        except OSError:
            if self.closed:
                raise EOFError from None
            raise

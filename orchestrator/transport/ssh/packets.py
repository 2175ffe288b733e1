"""The packets of one connection: paramiko's `Packetizer`, with a way of our own for what AES-GCM has sealed.

Paramiko copies a byte eight times between the socket and the reader of a channel, and comes around for each packet. Here it is
received into one buffer, opened into another, and neighbouring pieces of one channel's data are handed on as one: what a
server sends in bulk is copied twice on its way to a file, by the kernel into the first buffer and out of the second.
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

__all__ = ["PACKET_BYTES", "Data", "PacketReader", "Socket"]

PACKET_BYTES = 128 * 1024
"""What a node may put into one packet; four times what paramiko offers, for fewer packets where the line is full."""

HEAD_BYTES = 200
"""How much of what a server says first is kept."""

_LENGTH_BYTES, _TAG_BYTES = 4, 16
_SHORTEST = 16
_LONGEST = PACKET_BYTES + 1024
"""A packet's length where it is full, padding and what stands in front of the data included."""

_ROOM_BYTES = 2 * (_LENGTH_BYTES + _LONGEST + _TAG_BYTES)
"""With room for one alone, four of those that OpenSSH sends, a pull at full speed takes a fifth longer; more is no better."""

_EARLY_RECEIVES = 50

_HEAD = struct.Struct(">BBII")
"""What an opened packet of data begins with: length of the padding, kind, channel, length (RFC 4253, 6; RFC 4254, 5.2)."""


def _room() -> memoryview:
    """Return room for full packets, which takes up memory only as far as it is used: most connections never carry much."""
    return memoryview(mmap.mmap(-1, _ROOM_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Socket:
    """A socket for paramiko: one receive call serves many packets, and closing it wakes a thread that is reading."""

    def __init__(self, sock: Any) -> None:
        self._sock: Any = sock
        self._room = _room()
        self._start = self._end = 0
        # Until its first command, sshd leaves Nagle's algorithm on, and would wait 40 ms for our late acknowledgement. The
        # setting wears off, so it is renewed, for as long as connections are young.
        self._early_receives = _EARLY_RECEIVES if hasattr(socket, "TCP_QUICKACK") and isinstance(sock, socket.socket) else 0
        self.head = b""
        self._closed = False  # paramiko looks at it
        self._outbox = self._sock.outbox if isinstance(sock, paramiko.Channel) else None  # behind a jump host
        self.send = self._outbox.send if self._outbox else sock.send
        self.settimeout, self.getpeername = sock.settimeout, sock.getpeername

    def recv(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        if self._start == self._end:
            self.receive()
        piece = self._room[self._start : min(self._end, self._start + size)]
        self._start += len(piece)
        return bytes(piece)

    def packet(self) -> memoryview | None:
        """Take the next packet of which the length is not sealed, if it has come whole; good until the next call of `receive`.

        Raises SSHException for one of a length that was not agreed.
        """
        if self._end - self._start < _LENGTH_BYTES:
            return None
        size = int.from_bytes(self._room[self._start : self._start + _LENGTH_BYTES], "big")
        if not _SHORTEST <= size <= _LONGEST:
            raise paramiko.SSHException(f"a packet of {size} bytes, expected {_SHORTEST} to {_LONGEST}")
        end = self._start + _LENGTH_BYTES + size + _TAG_BYTES
        if self._end < end:
            return None
        packet, self._start = self._room[self._start : end], end
        return packet

    def receive(self) -> bool:
        """Wait for more; False at the end. Raises TimeoutError."""
        waiting = self._end - self._start
        self._room[:waiting] = self._room[self._start : self._end]
        self._start, self._end = 0, waiting
        if self._early_receives:
            self._early_receives -= 1
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        count = self._into(self._room[waiting:])
        self.head = self.head or bytes(self._room[: min(count, HEAD_BYTES)])
        self._end += count
        return count > 0

    def _into(self, room: memoryview) -> int:
        if not self._outbox:
            return int(self._sock.recv_into(room))
        data = self._sock.recv(len(room))
        room[: len(data)] = data
        return len(data)

    def unread(self) -> bool:
        """Whether something has come, be it the end, that `receive` has not taken: its thread had no processor since then."""
        if self._outbox:
            return bool(self._sock.recv_ready())
        look, number = select.poll(), self._sock.fileno()
        if number < 0:
            return False
        look.register(number, select.POLLIN)
        return bool(look.poll(0))

    def close(self) -> None:
        """End reading and writing at once, whoever is at it.

        The number of the socket stays taken until `release`: a thread on its way into the kernel with it would otherwise
        read from, or write to, whichever connection gets that number next.
        """
        self._closed = True
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # closed already, from either side
            if self._outbox:
                self._outbox.close()
            else:
                self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the socket back, once its threads are gone."""
        self._sock.close()


class Data(Message):
    """Neighbouring pieces of one channel's data as one message. ``data`` is good until the next message is read."""

    def __init__(self, channel: int, data: memoryview) -> None:
        super().__init__(channel.to_bytes(4, "big"))
        self.data = data


_Base: Any = Packetizer  # much of what is used below is not in its published types


class PacketReader(_Base):  # type: ignore[misc]
    """Paramiko's, but for opening what AES-GCM has sealed, and without the timer thread of each handshake."""

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
        """Start no timer: `Wire.shake_hands` has one limit for everything."""

    def set_inbound_cipher(self, **keys: Any) -> None:
        """Take up the keys that the server seals with from now on."""
        super().set_inbound_cipher(**keys)
        self._engine = keys["block_engine"] if hasattr(keys["block_engine"], "decrypt_into") else None
        if self._engine:
            self._salt, self._count = keys["iv_in"][:4], int.from_bytes(keys["iv_in"][4:], "big")
            self._plain = self._plain or _room()
            self._opened_bytes = 0

    def reset_seqno_in(self) -> None:
        """Count the server's packets from nought again."""
        super().reset_seqno_in()
        self._sequence = 0

    def read_message(self) -> tuple[int, Message]:
        """Return the kind and the content of the next message, or of several of one channel's data as one.

        Raises EOFError at the end, NeedRekeyException where keys are to be exchanged, SSHException or InvalidTag for what was
        not sealed as agreed.
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
        """Return the data of the packet that lies open, and what has come of the same channel's data behind it.

        Each packet is opened where its data adjoins what is there; its head lies over the last bytes of that for a moment.
        """
        channel, total = self._head(0, end)
        while not self._ahead and (packet := self._sock.packet()):
            covered = bytes(self._plain[total : total + _HEAD.size])
            end = self._open(packet, total)
            if self._plain[total + 1] == MSG_CHANNEL_DATA and self._head(total, end)[0] == channel:
                more = self._head(total, end)[1]
            else:
                more, self._ahead = 0, bytes(self._plain[total:end])
            self._plain[total : total + _HEAD.size] = covered
            total += more
        return Data(channel, self._plain[_HEAD.size : _HEAD.size + total])

    def _head(self, at: int, end: int) -> tuple[int, int]:
        """Return the channel, and the length, of the data that lies open."""
        padding, _, channel, size = _HEAD.unpack_from(self._plain, at)
        if at + _HEAD.size + size + padding != end:
            raise paramiko.SSHException(f"data of {size} bytes in a packet of {end - at}")
        return channel, size

    def _open(self, packet: memoryview, at: int) -> int:
        """Open a packet into the room from ``at`` on; return where it ends."""
        end = at + len(packet) - _LENGTH_BYTES - _TAG_BYTES
        nonce = self._salt + self._count.to_bytes(8, "big")  # RFC 5647, 7.1
        self._engine.decrypt_into(nonce, packet[_LENGTH_BYTES:], packet[:_LENGTH_BYTES], self._plain[at:end])
        self._count = self._count + 1 & 0xFFFFFFFFFFFFFFFF
        self._sequence += 1
        self._opened_bytes += len(packet)
        if self._opened_bytes > self.REKEY_BYTES:
            self._trigger_rekey()
            if self._opened_bytes > self.REKEY_BYTES + self.REKEY_BYTES_OVERFLOW_MAX:
                raise paramiko.SSHException("the host does not exchange keys when asked to")
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

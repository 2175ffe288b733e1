"""What a server seals with AES-GCM comes out as it went in, however it is cut, and what was not
sealed so does not.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import groupby

import paramiko
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko.packet import NeedRekeyException

from orchestrator.transport.ssh.packets import PACKET_BYTES, Data, PacketReader, Socket
from tests.support.judge import LIMIT_S

KEY, SALT = b"sixteen secrets.", b"salt"
FIRST = 2**64 - 3  # so that the counter of RFC 5647, 7.1 runs over
DATA, EXTENDED = 94, 95


class Server:
    """The far end of a socket: seals packets as RFC 4253, 6 and RFC 5647 have it, and sends what it
    is told to.
    """

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            ours = socket.create_connection(door.getsockname(), timeout=LIMIT_S)
            self.sock, _ = door.accept()
        self.near = Socket(ours)
        self.reader = PacketReader(self.near)
        self.reader.set_inbound_cipher(
            block_engine=AESGCM(KEY),
            block_size=16,
            mac_engine=None,
            mac_size=16,
            mac_key=None,
            aead=True,
            iv_in=SALT + FIRST.to_bytes(8, "big"),
        )
        self._sent = 0

    def seal(self, payload: bytes, padding: int | None = None) -> bytes:
        count = 19 - (len(payload) + 4) % 16
        body = bytes([count if padding is None else padding]) + payload + bytes(count)
        assert len(body) % 16 == 0
        length = struct.pack(">I", len(body))
        nonce = SALT + ((FIRST + self._sent) % 2**64).to_bytes(8, "big")
        self._sent += 1
        return length + AESGCM(KEY).encrypt(nonce, body, length)

    def data(self, channel: int, content: bytes) -> bytes:
        return self.seal(struct.pack(">BII", DATA, channel, len(content)) + content)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.sock.close()
    made.near.release()


def said(reader: PacketReader) -> tuple[int, int, bytes]:
    """Return the next message: its kind, its channel, and what follows."""
    kind, message = reader.read_message()
    channel = message.get_int()
    return (
        kind,
        channel,
        bytes(message.data) if isinstance(message, Data) else message.get_remainder(),
    )


def joined(messages: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Return messages with neighbouring pieces of one channel's data as one."""
    groups = groupby(
        enumerate(messages), key=lambda item: item[1][:2] if item[1][0] == DATA else item[0]
    )
    return [
        (*some[0][1][:2], b"".join(message[2] for _, message in some))
        for some in (list(group) for _, group in groups)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_messages_come_out_whole_and_in_order_however_their_bytes_are_cut(
    server: Server, seed: int
) -> None:
    chance = random.Random(seed)
    sizes = (0, 1, 9, 10, 11, 300, 32768, PACKET_BYTES)
    kinds = (DATA, DATA, DATA, EXTENDED)
    sent = [
        (chance.choice(kinds), chance.randrange(2), chance.randbytes(chance.choice(sizes)))
        for _ in range(80)
    ]
    wire = b"".join(
        server.data(channel, content)
        if kind == DATA
        else server.seal(struct.pack(">BI", kind, channel) + content)
        for kind, channel, content in sent
    )

    def send() -> None:
        at = 0
        while at < len(wire):
            cut = chance.choice((1, 3, 20, 5000, 1 << 20))
            server.sock.sendall(wire[at : at + cut])
            at += cut
        server.sock.close()

    sender = threading.Thread(target=send)
    sender.start()
    got = []
    with pytest.raises(EOFError):
        while True:
            got.append(said(server.reader))
    sender.join()
    assert joined(got) == joined(sent)


def test_neighbouring_data_of_one_channel_is_one_message_and_that_of_another_is_not(
    server: Server,
) -> None:
    window = server.seal(struct.pack(">BII", 93, 0, 77))
    parts = [
        server.data(0, b"ab"),
        server.data(0, b"cd" * 50),
        server.data(1, b"ef"),
        server.data(1, b""),
        server.data(1, b"g"),
    ]
    server.sock.sendall(b"".join([window, *parts]))
    got = [said(server.reader) for _ in range(3)]
    assert got == [(93, 0, struct.pack(">I", 77)), (DATA, 0, b"ab" + b"cd" * 50), (DATA, 1, b"efg")]


def test_messages_are_counted_one_by_one_also_where_data_was_joined(server: Server) -> None:
    packets = [server.data(0, b"ab"), server.data(0, b"cd"), server.seal(b"\xc0what is this")]
    server.sock.sendall(b"".join(packets))
    server.reader.read_message()
    assert (
        server.reader.read_message()[1].seqno == 2
    )  # MSG_UNIMPLEMENTED names the third, counted from nought


HOSTILE: dict[str, tuple[Callable[[Server], bytes], type[Exception], str | None]] = {
    "one bit": (
        lambda far: bytes([*(sealed := far.data(0, b"abc"))[:-1], sealed[-1] ^ 1]),
        InvalidTag,
        None,
    ),
    "another length": (lambda far: b"\0\0\0\x10" + far.data(0, b"x" * 30)[4:], InvalidTag, None),
    "the same twice": (lambda far: 2 * far.seal(b"\xc0what is this"), InvalidTag, None),
    "too long": (
        lambda far: struct.pack(">I", 1 << 20),
        paramiko.SSHException,
        "a packet of 1048576 bytes",
    ),
    "too short": (lambda far: bytes(40), paramiko.SSHException, "a packet of 0 bytes"),
    "padding": (
        lambda far: far.seal(b"\xc0what is this", padding=200),
        paramiko.SSHException,
        "padding of 200 bytes",
    ),
    "no kind": (
        lambda far: far.seal(b"\xc0what is this", padding=31),
        paramiko.SSHException,
        "padding of 31 bytes",
    ),
    "more data": (
        lambda far: far.seal(struct.pack(">BII", DATA, 0, 4) + b"abc"),
        paramiko.SSHException,
        "data of 4 bytes",
    ),
    "less data": (
        lambda far: far.seal(struct.pack(">BII", DATA, 0, 2) + b"abc"),
        paramiko.SSHException,
        "data of 2 bytes",
    ),
    "no data": (lambda far: far.seal(bytes([DATA]) + b"abc"), paramiko.SSHException, "data of"),
    "an end": (lambda far: far.data(0, b"abc")[:-1], EOFError, None),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("before", [b"", b"honest"], ids=["first", "behind-data"])
def test_what_was_not_sealed_as_agreed_ends_the_connection(
    server: Server, name: str, before: bytes
) -> None:
    packets, error, text = HOSTILE[name]
    if before:
        before = server.data(0, before)
    server.sock.sendall(before + packets(server))
    server.sock.close()
    with pytest.raises(error, match=text):
        for _ in range(3):
            server.reader.read_message()


def test_other_keys_are_asked_for_after_so_many_bytes_and_insisted_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PacketReader, "REKEY_BYTES", 1000)
    monkeypatch.setattr(PacketReader, "REKEY_BYTES_OVERFLOW_MAX", 1000)
    server.near.settimeout(0.05)
    for asked in (False, True):
        server.sock.sendall(server.data(0, bytes(600)))
        server.reader.read_message()
        assert server.reader.need_rekey() is asked
    with pytest.raises(NeedRekeyException):
        server.reader.read_message()
    server.sock.sendall(server.data(0, bytes(900)))
    with pytest.raises(paramiko.SSHException, match="does not exchange keys"):
        server.reader.read_message()

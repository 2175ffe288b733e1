"""The ring all-reduce of train_simulated.py: real bytes over TCP; only the first floats of a chunk
are added and checked.

Python 3.6 or newer, standard library only.
"""

import select
import time
from array import array

from simulated_rendezvous import (
    HELLO,
    Peer,
    PeerError,
    Rendezvous,
    accept,
    connect,
    send_value,
)
from trainer import Identity

CHECKED_FLOATS = 256  # at the head of every chunk
FLOAT_BYTES = 4


class Ring:
    """Connections to the next and to the previous rank, and the buffer that is reduced around the
    ring.
    """

    def __init__(
        self, me: Identity, meeting: Rendezvous, size_bytes: int, timeout_s: float
    ) -> None:
        self.me, self.timeout_s = me, timeout_s
        self.sent_bytes = 0
        floats = size_bytes // FLOAT_BYTES
        edges = [FLOAT_BYTES * (floats * i // me.world_size) for i in range(me.world_size + 1)]
        self.buffer = memoryview(bytearray(size_bytes))
        self.chunks = [self.buffer[start:end] for start, end in zip(edges, edges[1:])]
        self.scratch = memoryview(bytearray(max(len(chunk) for chunk in self.chunks)))
        if me.world_size > 1:
            self._link(meeting)

    def _link(self, meeting: Rendezvous) -> None:
        deadline = time.monotonic() + self.timeout_s
        after = meeting.table[(self.me.rank + 1) % self.me.world_size]
        before = meeting.table[self.me.rank - 1]
        link = connect(
            after["address"], after["port"], deadline, "rank {rank} ({host})".format(**after)
        )
        send_value(link, {"hello": HELLO, "rank": self.me.rank})
        self.next = Peer(link, after["rank"], after["host"])
        while True:
            incoming, entry = accept(meeting.listening, deadline)
            if incoming is not None and entry["rank"] == before["rank"]:
                break
            if time.monotonic() >= deadline:
                raise PeerError("rank {rank} ({host}) did not connect".format(**before))
        self.previous = Peer(incoming, before["rank"], before["host"])
        meeting.listening.close()
        self.next.link.setblocking(False)
        self.previous.link.setblocking(False)

    def all_reduce(self, step: int) -> None:
        """All-reduce one step's gradients and check the sums. Raises PeerError."""
        for index in range(self.me.world_size):
            self._fill(index, step)
        ranks, rank = self.me.world_size, self.me.rank
        for round_ in range(ranks - 1):
            target = self.chunks[(rank - round_ - 1) % ranks]
            incoming = self.scratch[: len(target)]
            self._exchange(self.chunks[(rank - round_) % ranks], incoming)
            add(target, incoming)
        for round_ in range(ranks - 1):
            self._exchange(
                self.chunks[(rank - round_ + 1) % ranks], self.chunks[(rank - round_) % ranks]
            )
        for index in range(ranks):
            self._check(index, step)

    def _pattern(self, index: int, step: int, factor: int) -> "array[float]":
        """Return the floats of a chunk: small integers that differ by position, chunk and step,
        times ``factor``.
        """
        count = min(CHECKED_FLOATS, len(self.chunks[index]) // FLOAT_BYTES)
        return array("f", [factor * ((place + index + step) % 7 + 1) for place in range(count)])

    def _fill(self, index: int, step: int) -> None:
        values = self._pattern(index, step, self.me.rank + 1).tobytes()
        self.chunks[index][: len(values)] = values

    def _check(self, index: int, step: int) -> None:
        expected = self._pattern(index, step, self.me.world_size * (self.me.world_size + 1) // 2)
        if self.chunks[index][: len(expected) * FLOAT_BYTES] != expected.tobytes():
            raise PeerError(
                f"wrong sum: chunk {index} of step {step} is not what {self.me.world_size} ranks add up to"
            )

    def _exchange(self, outgoing: memoryview, incoming: memoryview) -> None:
        """Send to the next rank while receiving from the previous one: if all sent first, full
        buffers would stop the ring.
        """
        sent = received = 0
        while sent < len(outgoing) or received < len(incoming):
            reading = [self.previous.link] if received < len(incoming) else []
            writing = [self.next.link] if sent < len(outgoing) else []
            readable, writable, _ = select.select(reading, writing, [], self.timeout_s)
            if not readable and not writable:
                raise (self.previous if reading else self.next).silent(self.timeout_s)
            if readable:
                received += self._receive(incoming[received:])
            if writable:
                sent += self._send(outgoing[sent:])
        self.sent_bytes += sent

    def _receive(self, buffer: memoryview) -> int:
        try:
            count = self.previous.link.recv_into(buffer)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.previous.loss_error(error) from error
        if count == 0:
            raise self.previous.loss_error()
        return count

    def _send(self, data: memoryview) -> int:
        try:
            return self.next.link.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.next.loss_error(error) from error


def add(target: memoryview, incoming: memoryview) -> None:
    """Add the checked floats at the start of a chunk."""
    size = min(CHECKED_FLOATS * FLOAT_BYTES, len(target))
    own, received = array("f", target[:size].tobytes()), array("f", incoming[:size].tobytes())
    target[:size] = array("f", map(float.__add__, own, received)).tobytes()

"""Rendezvous of the ranks of train_simulated.py at rank 0, which hands out a table with the address
of each rank.

Python 3.6 or newer, standard library only. A value is sent as a line of JSON.
"""

import json
import os
import socket
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from trainer import Identity

RETRY_S = 0.05
HELLO = "orch-simulated-1"
MOST_BYTES = 1 << 24


class PeerError(Exception):
    """A rank that cannot be reached, stopped responding, left, or computed a wrong sum."""


class Peer:
    """The other end of a connection, with its rank and host for error messages."""

    def __init__(self, link: socket.socket, rank: int, host: str) -> None:
        self.link, self.rank, self.host = link, rank, host
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def loss_error(self, error: Optional[OSError] = None) -> PeerError:
        """Return the error for a peer that closed the connection."""
        why = f" ({error.strerror or error})" if error else ""
        return PeerError(f"peer rank {self.rank} ({self.host}) closed the connection{why}")

    def silent(self, timeout_s: float) -> PeerError:
        """Return the error for a peer that stopped responding."""
        return PeerError(f"peer rank {self.rank} ({self.host}) sent nothing for {timeout_s:g} s")


def send_value(link: socket.socket, value: Any) -> None:
    """Send a value as a line of JSON."""
    link.sendall(json.dumps(value).encode() + b"\n")


def receive_value(link: socket.socket) -> Any:
    """Return the next value, and leave what follows: on a ring connection gradients follow the
    greeting. Raises EOFError at the end of the stream, ValueError for other data.
    """
    with link.makefile("rb", buffering=0) as lines:
        line = lines.readline(MOST_BYTES)
    if not line:
        raise EOFError
    return json.loads(line.decode())


def listener(address: str, port: int) -> socket.socket:
    """Return a socket that listens on this address only. Raises PeerError if it cannot be bound."""
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    link = socket.socket(family, kind, protocol)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        link.bind(where)
    except OSError as error:
        raise PeerError(f"cannot listen on {address} port {port} ({error.strerror})") from error
    link.listen(1024)
    return link


def connect(address: str, port: int, deadline: float, peer: str) -> socket.socket:
    """Connect, retrying until the deadline: the other side may not have started yet."""
    reason = "no answer"
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(
                (address, port), timeout=max(deadline - time.monotonic(), 0.001)
            )
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(min(RETRY_S, max(deadline - time.monotonic(), 0)))
    raise PeerError(f"{peer} at {address} port {port} cannot be reached ({reason})")


def accept(listening: socket.socket, deadline: float) -> Tuple[Optional[socket.socket], Any]:
    """Return the next connection and its greeting; None and None for a foreign program, or when the
    deadline passes.
    """
    listening.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        link = listening.accept()[0]
    except socket.timeout:  # not the same class as TimeoutError before Python 3.10
        return None, None
    try:
        link.settimeout(min(2.0, max(deadline - time.monotonic(), 0.001)))
        greeting = receive_value(link)
        if isinstance(greeting, dict) and greeting.get("hello") == HELLO:
            link.settimeout(None)
            return link, greeting
    except (OSError, EOFError, ValueError):
        pass  # a port scan or another program: no reason to stop
    link.close()
    return None, None


class Rendezvous(NamedTuple):
    """The result of the meeting.

    ``table``: the address of each rank. ``controls``: rank 0's connections to all others; on
    another rank, the one to rank 0. ``listening``: the socket to which the previous rank in the
    ring connects.
    """

    table: List[Dict[str, Any]]
    controls: Dict[int, Peer]
    listening: socket.socket


def rendezvous(me: Identity, timeout_s: float) -> Rendezvous:
    """Meet all ranks at MASTER_ADDR:MASTER_PORT. Raises PeerError naming the ranks that are
    missing.
    """
    deadline = time.monotonic() + timeout_s
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    own_facts: Dict[str, Any] = {
        "hello": HELLO,
        "host": socket.gethostname(),
        "device": "simulated",
    }
    own_facts.update(me._asdict())
    return (
        invite(me, own_facts, address, port, deadline)
        if me.rank == 0
        else report(me, own_facts, address, port, deadline)
    )


def invite(
    me: Identity, own_facts: Dict[str, Any], address: str, port: int, deadline: float
) -> Rendezvous:
    """As rank 0: wait for all others and send each of them the table."""
    rendezvous = listener(address, port)
    listening = listener(rendezvous.getsockname()[0], 0)
    own_facts.update(address=listening.getsockname()[0], port=listening.getsockname()[1])
    entries, controls = {0: own_facts}, {}  # type: Dict[int, Dict[str, Any]], Dict[int, Peer]
    while len(entries) < me.world_size:
        link, entry = accept(rendezvous, deadline)
        if link is None:
            if time.monotonic() >= deadline:
                missing = ", ".join(
                    str(rank) for rank in range(me.world_size) if rank not in entries
                )
                raise PeerError(
                    f"rendezvous: expected {me.world_size} ranks, {len(entries)} came. missing: {missing}"
                )
            continue
        if entry["world_size"] != me.world_size or entry["rank"] in entries:
            other = "rank {rank} of {world_size} ({host})".format(**entry)
            raise PeerError(f"rendezvous: expected each of {me.world_size} ranks once, got {other}")
        entries[entry["rank"]] = entry
        controls[entry["rank"]] = Peer(link, entry["rank"], entry["host"])
    rendezvous.close()
    table = [entries[rank] for rank in range(me.world_size)]
    for peer in controls.values():
        send_value(peer.link, table)
    return Rendezvous(table, controls, listening)


def report(
    me: Identity, own_facts: Dict[str, Any], address: str, port: int, deadline: float
) -> Rendezvous:
    """As another rank: send rank 0 this rank's address and receive the table."""
    link = connect(address, port, deadline, "rank 0")
    # The other ranks can also reach the address of the interface that reaches the master.
    listening = listener(link.getsockname()[0], 0)
    own_facts.update(address=listening.getsockname()[0], port=listening.getsockname()[1])
    try:
        link.settimeout(max(deadline - time.monotonic(), 0.001))
        send_value(link, own_facts)
        table = receive_value(link)
    except (OSError, EOFError, ValueError) as error:
        raise PeerError(
            f"rendezvous: rank 0 at {address} port {port} sent no table ({error or 'it closed'})"
        ) from error
    link.settimeout(None)
    return Rendezvous(table, {0: Peer(link, 0, table[0]["host"])}, listening)


def farewell(
    meeting: Rendezvous, own_facts: Dict[str, Any], timeout_s: float
) -> List[Dict[str, Any]]:
    """Send every rank's facts to rank 0; no rank leaves before rank 0 has received them all."""
    facts = [own_facts]
    for peer in meeting.controls.values():
        peer.link.settimeout(timeout_s)
    try:
        for peer in meeting.controls.values():
            if own_facts["rank"] == 0:
                facts.append(receive_value(peer.link))
            else:
                send_value(peer.link, own_facts)
                receive_value(peer.link)
        if own_facts["rank"] == 0:
            for peer in meeting.controls.values():
                send_value(peer.link, "bye")
    except socket.timeout as error:  # not the same class as TimeoutError before Python 3.10
        raise peer.silent(timeout_s) from error
    except (OSError, EOFError, ValueError) as error:
        raise peer.loss_error() from error
    return sorted(facts, key=lambda rank: rank["rank"])

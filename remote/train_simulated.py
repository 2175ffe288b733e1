"""Stand in for an accelerator: sleep for the compute of a step, then really all-reduce its gradients over TCP.

Needs Python 3.6 or newer and nothing else (runs under `python3 -I -S -u`). It prints the lines of the other trainers, and
the last one says `"simulated": true`: the network, the launch and the logs are real, the computing is not.
One process per rank; who it is, it reads from the environment:

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python3 -I -S -u train_simulated.py --steps 5 &
    RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python3 -I -S -u train_simulated.py --steps 5

A step: sleep, then a ring all-reduce of the model's gradients: N-1 exchanges that add up, N-1 that spread the sums, each
of 1/N of the bytes, sent to the next rank while as much comes from the one before. The first floats of every chunk are
really added and checked at the end of each step; the bytes behind them are moved, not added.

Injected faults, for rehearsals: `--fail-at-step N --fail-rank R --fail-mode M` makes one rank, in place of step N,
exit3: exit with code 3 · sigkill: kill itself · oom-print: print what a GPU short of memory prints and exit 1 ·
hang: sleep for ever · deaf: the same, ignoring SIGTERM.
"""

import argparse
import json
import os
import platform
import random
import resource
import select
import signal
import socket
import sys
import time
from array import array
from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

PARAMETERS = {"resnet50": 25557032, "vgg16": 138357544}
# Samples/s of the imaginary accelerator: round numbers, so that nobody takes them for a measurement.
SPEED = {"resnet50": {"fp32": 1000.0, "half": 2000.0}, "vgg16": {"fp32": 500.0, "half": 1000.0}}
HALF_TYPES = ("fp16", "bf16")
CHECKED_FLOATS = 256  # at the head of every chunk
FLOAT_BYTES = 4
RETRY_S = 0.05
HELLO = "orch-simulated-1"


class PeerError(Exception):
    """A rank that cannot be met, went silent, left, or computed a wrong sum."""


class Identity(NamedTuple):
    """Who this process is among all."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int


# --- what is asked for, and who asks --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", choices=sorted(PARAMETERS), default="resnet50", help="sets the bytes of its gradients")
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp32", help="4 or 2 bytes a gradient")
    parser.add_argument("--batch-size", type=int, default=128, help="samples per device and step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compute-ms", type=float, default=-1.0, help="sleep of a step; -1: from model, dtype, batch size")
    parser.add_argument("--jitter-percent", type=float, default=0.0, help="longest random addition to that sleep")
    parser.add_argument("--gradient-mb", type=float, default=0.0, help="MB all-reduced in a step; 0: all of the model's")
    parser.add_argument("--seed", type=int, default=0, help="of the jitter")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="longest wait for another rank, at start and in a step")
    parser.add_argument("--fail-at-step", type=int, default=0, help="inject a fault in place of this step; 0: none")
    parser.add_argument("--fail-rank", type=int, default=0, help="the rank that fails")
    parser.add_argument("--fail-mode", choices=sorted(FAULTS), default="exit3")
    asked = parser.parse_args()
    least = {"batch_size": 1, "steps": 1, "compute_ms": -1, "jitter_percent": 0, "gradient_mb": 0, "timeout_s": 0.001}
    for name, minimum in least.items():
        if not getattr(asked, name) >= minimum:
            parser.error("--{}: expected {} or more, got {}".format(name.replace("_", "-"), minimum, getattr(asked, name)))
    return asked


def identity() -> Identity:
    """Read the environment. Raises SystemExit naming what is missing or impossible."""
    env = os.environ
    missing = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing:
        raise SystemExit("environment: expected {} to be set".format(", ".join(missing)))
    me = Identity(int(env["RANK"]), int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"]), int(env.get("NODE_RANK", "0")))
    if not 0 <= me.rank < me.world_size:
        raise SystemExit(f"RANK: expected 0 to {me.world_size - 1}, got {me.rank}")
    return me


def gradient_bytes(asked: argparse.Namespace) -> int:
    """Return how many bytes a step reduces, a whole number of floats."""
    width = 2 if asked.dtype in HALF_TYPES else 4
    wanted = int(asked.gradient_mb * 1e6) if asked.gradient_mb else PARAMETERS[asked.model] * width
    return max(wanted // FLOAT_BYTES, 1) * FLOAT_BYTES


def compute_s(asked: argparse.Namespace) -> float:
    """Return the seconds a step computes, without jitter."""
    if asked.compute_ms >= 0:
        return float(asked.compute_ms) / 1000.0
    return float(asked.batch_size / SPEED[asked.model]["half" if asked.dtype in HALF_TYPES else "fp32"])


# --- meeting the others ---------------------------------------------------------------------------------------------------


class Peer:
    """The other end of a connection, and what it is called when it fails."""

    def __init__(self, link: socket.socket, rank: int, host: str) -> None:
        self.link, self.rank, self.host = link, rank, host
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def lost(self, error: Optional[OSError] = None) -> PeerError:
        """Return the error of a peer that left."""
        why = f" ({error.strerror or error})" if error else ""
        return PeerError(f"peer rank {self.rank} ({self.host}) closed the connection{why}")

    def silent(self, timeout_s: float) -> PeerError:
        """Return the error of a peer that says nothing."""
        return PeerError(f"peer rank {self.rank} ({self.host}) said nothing for {timeout_s:g} s")


def send_value(link: socket.socket, value: Any) -> None:
    """Send a JSON value behind its length."""
    text = json.dumps(value).encode()
    link.sendall(len(text).to_bytes(4, "big") + text)


def receive_value(link: socket.socket) -> Any:
    """Return the next JSON value. Raises EOFError at the end, ValueError for anything that is none of ours."""
    size = int.from_bytes(receive_exactly(link, 4), "big")
    if size > 1 << 24:
        raise ValueError("length")
    return json.loads(receive_exactly(link, size).decode())


def receive_exactly(link: socket.socket, size: int) -> bytes:
    """Return that many bytes and leave what follows: behind the greeting on a ring connection come gradients."""
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def listener(address: str, port: int) -> socket.socket:
    """Return a listening socket on this one address. Raises OSError."""
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    link = socket.socket(family, kind, protocol)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        link.bind(where)
    except OSError as error:
        raise PeerError(f"cannot listen on {address} port {port} ({error.strerror})") from error
    link.listen(1024)
    return link


def connect(address: str, port: int, deadline: float, what: str) -> socket.socket:
    """Connect, trying again until the deadline: the other side may not have started yet."""
    reason = "no answer"
    while time.monotonic() < deadline:
        try:
            return socket.create_connection((address, port), timeout=max(deadline - time.monotonic(), 0.001))
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(min(RETRY_S, max(deadline - time.monotonic(), 0)))
    raise PeerError(f"{what} at {address} port {port} cannot be reached ({reason})")


def accept(listening: socket.socket, deadline: float) -> Tuple[Optional[socket.socket], Any]:
    """Return the next connection and its greeting, or None and None where it is a stranger's or the deadline passed."""
    listening.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        link = listening.accept()[0]
    except socket.timeout:  # another class than TimeoutError before Python 3.10
        return None, None
    try:
        link.settimeout(min(2.0, max(deadline - time.monotonic(), 0.001)))
        greeting = receive_value(link)
        if isinstance(greeting, dict) and greeting.get("hello") == HELLO:
            link.settimeout(None)
            return link, greeting
    except (OSError, EOFError, ValueError):
        pass  # a port scan or another program: not ours, and no reason to stop
    link.close()
    return None, None


class Rendezvous(NamedTuple):
    """What came of the meeting.

    ``table``: where each rank is to be found. ``controls``: rank 0's connections to all others, another rank's to rank 0.
    ``listening``: where the rank before this one in the ring connects.
    """

    table: List[Dict[str, Any]]
    controls: Dict[int, Peer]
    listening: socket.socket


def rendezvous(me: Identity, timeout_s: float) -> Rendezvous:
    """Meet all ranks at MASTER_ADDR:MASTER_PORT. Raises PeerError naming who did not come."""
    deadline = time.monotonic() + timeout_s
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    mine: Dict[str, Any] = {"hello": HELLO, "host": socket.gethostname(), "device": "simulated"}
    mine.update(me._asdict())
    return invite(me, mine, address, port, deadline) if me.rank == 0 else report(me, mine, address, port, deadline)


def invite(me: Identity, mine: Dict[str, Any], address: str, port: int, deadline: float) -> Rendezvous:
    """Be rank 0: wait for all others, hand everyone the table."""
    door = listener(address, port)
    listening = listener(door.getsockname()[0], 0)
    mine.update(address=listening.getsockname()[0], port=listening.getsockname()[1])
    entries, controls = {0: mine}, {}  # type: Dict[int, Dict[str, Any]], Dict[int, Peer]
    while len(entries) < me.world_size:
        link, entry = accept(door, deadline)
        if link is None:
            if time.monotonic() >= deadline:
                missing = ", ".join(str(rank) for rank in range(me.world_size) if rank not in entries)
                raise PeerError(f"rendezvous: expected {me.world_size} ranks, came {len(entries)}. missing: {missing}")
            continue
        if entry["world_size"] != me.world_size or entry["rank"] in entries:
            theirs = "rank {rank} of {world_size} ({host})".format(**entry)
            raise PeerError(f"rendezvous: expected each of {me.world_size} ranks once, came {theirs}")
        entries[entry["rank"]] = entry
        controls[entry["rank"]] = Peer(link, entry["rank"], entry["host"])
    door.close()
    table = [entries[rank] for rank in range(me.world_size)]
    for peer in controls.values():
        send_value(peer.link, table)
    return Rendezvous(table, controls, listening)


def report(me: Identity, mine: Dict[str, Any], address: str, port: int, deadline: float) -> Rendezvous:
    """Be another rank: tell rank 0 where to be found, get the table."""
    link = connect(address, port, deadline, "rank 0")
    # The address of the interface that reaches the master is the one the others can reach, too.
    listening = listener(link.getsockname()[0], 0)
    mine.update(address=listening.getsockname()[0], port=listening.getsockname()[1])
    try:
        link.settimeout(max(deadline - time.monotonic(), 0.001))
        send_value(link, mine)
        table = receive_value(link)
    except (OSError, EOFError, ValueError) as error:
        raise PeerError(f"rendezvous: rank 0 at {address} port {port} gave no table ({error or 'it closed'})") from error
    link.settimeout(None)
    return Rendezvous(table, {0: Peer(link, 0, table[0]["host"])}, listening)


# --- ring -----------------------------------------------------------------------------------------------------------------


class Ring:
    """Connections to the next rank and from the one before, and the buffer that goes round."""

    def __init__(self, me: Identity, meeting: Rendezvous, size_bytes: int, timeout_s: float) -> None:
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
        link = connect(after["address"], after["port"], deadline, "rank {rank} ({host})".format(**after))
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
        """Reduce one step's gradients and check the sums. Raises PeerError."""
        for index in range(self.me.world_size):
            self._fill(index, step)
        ranks, mine = self.me.world_size, self.me.rank
        for turn in range(ranks - 1):
            target = self.chunks[(mine - turn - 1) % ranks]
            came = self.scratch[: len(target)]
            self._exchange(self.chunks[(mine - turn) % ranks], came)
            add(target, came)
        for turn in range(ranks - 1):
            self._exchange(self.chunks[(mine - turn + 1) % ranks], self.chunks[(mine - turn) % ranks])
        for index in range(ranks):
            self._check(index, step)

    def _pattern(self, index: int, step: int, factor: int) -> "array[float]":
        """Return the floats of a chunk: small whole numbers that differ by place, chunk and step, times ``factor``."""
        count = min(CHECKED_FLOATS, len(self.chunks[index]) // FLOAT_BYTES)
        return array("f", [factor * ((place + index + step) % 7 + 1) for place in range(count)])

    def _fill(self, index: int, step: int) -> None:
        values = self._pattern(index, step, self.me.rank + 1).tobytes()
        self.chunks[index][: len(values)] = values

    def _check(self, index: int, step: int) -> None:
        expected = self._pattern(index, step, self.me.world_size * (self.me.world_size + 1) // 2)
        if self.chunks[index][: len(expected) * FLOAT_BYTES] != expected.tobytes():
            raise PeerError(f"wrong sum: chunk {index} of step {step} is not what {self.me.world_size} ranks add up to")

    def _exchange(self, outgoing: memoryview, incoming: memoryview) -> None:
        """Send to the next rank and receive from the one before, at once: full buffers stop a ring where all send first."""
        sent = came = 0
        while sent < len(outgoing) or came < len(incoming):
            reading = [self.previous.link] if came < len(incoming) else []
            writing = [self.next.link] if sent < len(outgoing) else []
            readable, writable, _ = select.select(reading, writing, [], self.timeout_s)
            if not readable and not writable:
                raise (self.previous if reading else self.next).silent(self.timeout_s)
            if readable:
                came += self._receive(incoming[came:])
            if writable:
                sent += self._send(outgoing[sent:])
        self.sent_bytes += sent

    def _receive(self, room: memoryview) -> int:
        try:
            count = self.previous.link.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.previous.lost(error) from error
        if count == 0:
            raise self.previous.lost()
        return count

    def _send(self, data: memoryview) -> int:
        try:
            return self.next.link.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.next.lost(error) from error


def add(target: memoryview, came: memoryview) -> None:
    """Add the checked floats at the head of a chunk."""
    size = min(CHECKED_FLOATS * FLOAT_BYTES, len(target))
    ours, theirs = array("f", target[:size].tobytes()), array("f", came[:size].tobytes())
    target[:size] = array("f", map(float.__add__, ours, theirs)).tobytes()


# --- injected faults ------------------------------------------------------------------------------------------------------


def fail_exit() -> None:
    """Exit with a code of its own."""
    sys.exit(3)


def fail_sigkill() -> None:
    """Be killed as the kernel's memory killer does it."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail_hang() -> None:
    """Sleep until somebody ends it."""
    while True:
        time.sleep(3600)


def fail_deaf() -> None:
    """Sleep until somebody ends it with SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fail_hang()


def fail_memory() -> None:
    """Print what a GPU short of memory prints, and end at once, as our other trainers do."""
    sys.stderr.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. (injected for a rehearsal)\n")
    sys.stderr.flush()
    os._exit(1)


FAULTS = {"exit3": fail_exit, "sigkill": fail_sigkill, "hang": fail_hang, "deaf": fail_deaf, "oom-print": fail_memory}


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    """Print a line now, in one write: a run may be stopped at any time."""
    sys.stdout.write(f"orch {line}\n")
    sys.stdout.flush()


def sleep_until(deadline: float) -> None:
    """Sleep until the monotonic clock shows ``deadline``."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(left)


def farewell(meeting: Rendezvous, mine: Dict[str, Any], timeout_s: float) -> List[Dict[str, Any]]:
    """Bring every rank's facts to rank 0; nobody leaves before all have told theirs."""
    told = [mine]
    for peer in meeting.controls.values():
        peer.link.settimeout(timeout_s)
    try:
        for peer in meeting.controls.values():
            if mine["rank"] == 0:
                told.append(receive_value(peer.link))
            else:
                send_value(peer.link, mine)
                receive_value(peer.link)
        if mine["rank"] == 0:
            for peer in meeting.controls.values():
                send_value(peer.link, "bye")
    except socket.timeout as error:  # another class than TimeoutError before Python 3.10
        raise peer.silent(timeout_s) from error
    except (OSError, EOFError) as error:
        raise peer.lost() from error
    return sorted(told, key=lambda one: one["rank"])


def closing(asked: argparse.Namespace, ranks: List[Dict[str, Any]], ring: Ring) -> Dict[str, Any]:
    """Return the facts of the run for its last line."""
    facts = dict(vars(asked))
    counts = Counter(one["device"] for one in ranks)
    facts.update(
        world_size=len(ranks),
        ranks=[one["rank"] for one in ranks],
        hosts=list(dict.fromkeys(one["host"] for one in ranks)),
        devices=[{"name": name, "count": count} for name, count in counts.items()],
        global_batch=asked.batch_size * len(ranks),
        parameters=PARAMETERS[asked.model],
        gradient_bytes=len(ring.buffer),
        gradient_buckets_bytes=[len(ring.buffer)],
        bytes_sent=[one["sent_bytes"] for one in ranks],
        compute_s=compute_s(asked),
        max_memory_bytes=max(one["memory_bytes"] for one in ranks),
        framework="simulated",
        framework_version="1",
        python=platform.python_version(),
        backend="tcp-ring",
        loader="synthetic",
        simulated=True,
    )
    facts.update(cuda=None, cudnn=None, nccl=None)
    return facts


def train(asked: argparse.Namespace, me: Identity, ring: Ring) -> None:
    """Take all steps, rank 0 printing them."""
    noise = random.Random(asked.seed + me.rank)
    before = time.monotonic()
    if me.rank == 0:
        say(f"step=0 t={before:.6f} step_time_s=0 samples=0 loss=nan")
    for step in range(1, asked.steps + 1):
        if step == asked.fail_at_step and me.rank == asked.fail_rank:
            FAULTS[asked.fail_mode]()
        begun = time.monotonic()
        sleep_until(begun + compute_s(asked) * (1 + noise.random() * asked.jitter_percent / 100))
        ring.all_reduce(step)
        now = time.monotonic()
        if me.rank == 0:
            say(f"step={step} t={now:.6f} step_time_s={now - before:.6f} samples={asked.batch_size * me.world_size} loss=nan")
        before = now


def main() -> None:
    """Meet, step, report."""
    asked = arguments()
    me = identity()
    meeting = rendezvous(me, asked.timeout_s)
    host = socket.gethostname()
    say(
        f"rank={me.rank} local_rank={me.local_rank} world_size={me.world_size} node_rank={me.node_rank}"
        f" host={host} pid={os.getpid()} device=simulated"
    )
    ring = Ring(me, meeting, gradient_bytes(asked), asked.timeout_s)
    ring.all_reduce(0)  # the barrier before the first step, and the first use of every connection
    ring.sent_bytes = 0
    train(asked, me, ring)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    mine = {"rank": me.rank, "host": host, "device": "simulated", "sent_bytes": ring.sent_bytes, "memory_bytes": memory}
    ranks = farewell(meeting, mine, asked.timeout_s)
    if me.rank == 0:
        say("done " + json.dumps(closing(asked, ranks, ring), sort_keys=True))


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.stderr.write(f"rank {os.environ['RANK']}: {error}\n")
        sys.exit(1)

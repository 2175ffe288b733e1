"""Measure the link between every two nodes, or every two devices of each node, in rounds; the pairs
of one round measure at the same time.

Needs PyTorch 1.13 or newer and Python 3.8 or newer and, next to this file, trainer.py and
torch_ranks.py:

    torchrun --nnodes 4 --nproc_per_node 1 --node_rank 0 --master_addr 10.11.0.2 --master_port 29500 pairs.py --device cuda

N nodes meet in N-1 rounds, or N if N is odd, so that each pair meets once: a sweep. The composition
of the rounds changes from sweep to sweep, so that a pair does not always share a switch with the
same others. With several ranks per node, rank k of one node measures with rank k of the other, all
at once. Each rank of the node with the lower rank, a, prints its own clock's times:

    orch pair sweep=1 round=3 a=0 b=5 local_rank=0 direction=both size_bytes=1048576 time_s=0.001234567

With `--model peers` a pair is two ranks of a node, a and b are their ranks, and the nodes measure
at the same time, each within itself.

`a-to-b` and `b-to-a` are one way: from a's send until b's acknowledgement, or from a's request
until b's data has arrived; `both` is both ways at once; `all-reduce` is one over all ranks of both
nodes; `ping` is a few bytes there and back. `size_bytes` is what one rank sends.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import zlib
from functools import partial
from typing import Any, Callable, Iterable, List, Optional, Tuple

import torch
import torch.distributed as dist
import trainer
from torch.distributed import P2POp
from torch_ranks import World, leave_after, run, settle
from trainer import Identity

PING_BYTES = 8
Pair = Tuple[int, int]


# --- rounds ---------------------------------------------------------------------------------------


def rounds(nodes: int, sweep: int) -> List[List[Pair]]:
    """Return the pairs of each round, lower node first: the circle method, with the nodes reseated
    for each sweep.

    The seats are sorted by a checksum, which is the same on every node whatever its Python version.
    """
    seats: List[Optional[int]] = sorted(
        range(nodes), key=lambda node: zlib.crc32(f"{sweep} {node}".encode())
    )
    if nodes % 2:
        seats.append(None)  # the node opposite None is idle that round
    schedule = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats))
        schedule.append(
            [(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None]
        )
        seats[1:] = [seats[-1], *seats[1:-1]]
    return schedule


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.options("device", "backend", "threads", "timeout_s", steps=21, warmup_steps=1)
    add = partial(trainer.add_option, parser)
    add("model", "pairs", "", ["pairs", "peers"])
    add("dtype", "fp32", "dtype of the all-reduce", ["fp32"])
    add("size_bytes", 64 << 20, "bytes that one rank sends at once")
    add("iterations", 5, "transfers per measurement; their median counts")
    add("all_reduce", False, "also measure an all-reduce of each pair")
    return parser.parse_args()


# --- one transfer ---------------------------------------------------------------------------------


class Line:
    """This rank's end of a link to another rank; ``leads`` if this end's clock counts."""

    def __init__(self, device: torch.device, size_bytes: int, me: Identity) -> None:
        self.device, self.me = device, me
        self.outgoing = torch.full((size_bytes // 4,), float(me.rank + 1), device=device)
        self.incoming = torch.zeros_like(self.outgoing)
        self.request = torch.zeros(PING_BYTES, dtype=torch.uint8, device=device)
        self.answer = torch.zeros_like(self.request)

    def meet(self, peer: int, leads: bool) -> None:
        """Select the peer of the next transfers."""
        self.peer, self.leads = peer, leads

    def swap(self, sent: Optional[torch.Tensor], received: Optional[torch.Tensor]) -> None:
        """Send, receive, or both at once; return when this end is done."""
        pairs = ((dist.isend, sent), (dist.irecv, received))
        works = dist.batch_isend_irecv(
            [P2POp(way, tensor, self.peer) for way, tensor in pairs if tensor is not None]
        )
        for work in works:
            work.wait()
        settle(self.device)

    def one_way(self, from_lead: bool) -> None:
        """Send one way, with a request before or an acknowledgement after: sent data may still be
        in a buffer of this node.
        """
        if self.leads == from_lead:
            if not from_lead:
                self.swap(None, self.answer)
            self.swap(self.outgoing, None)
            if from_lead:
                self.swap(None, self.answer)
        else:
            if not from_lead:
                self.swap(self.request, None)
            self.swap(None, self.incoming)
            if from_lead:
                self.swap(self.request, None)

    def both(self) -> None:
        """Send both ways at once, until both ends have everything."""
        self.swap(self.outgoing, self.incoming)
        self.swap(self.request, self.answer)

    def ping(self) -> None:
        """Send a few bytes there and back."""
        send, receive = (self.request, None), (None, self.answer)
        first, second = (send, receive) if self.leads else (receive, send)
        self.swap(*first)
        self.swap(*second)

    def time_transfers(self, transfer: Callable[[], None], iterations: int) -> float:
        """Return the median seconds of ``iterations`` transfers. Both ends are ready before the
        clock starts.
        """
        self.swap(self.request, self.answer)
        times = []
        for _ in range(iterations):
            begin = time.monotonic()
            transfer()
            times.append(time.monotonic() - begin)
        return statistics.median(times)

    def check(self) -> None:
        """Raise RuntimeError unless the received data is what the peer sent."""
        if not bool((self.incoming == float(self.peer + 1)).all()):
            raise RuntimeError(
                f"rank {self.me.rank}: expected only {self.peer + 1} from rank {self.peer}, got other values"
            )


# --- main -----------------------------------------------------------------------------------------


def pair_groups(nodes: int, per_node: int) -> Any:
    """Return a process group per pair of nodes. Every rank creates all of them, in the same order."""
    ranks = [list(range(node * per_node, (node + 1) * per_node)) for node in range(nodes)]
    return {
        (a, b): dist.new_group(ranks[a] + ranks[b])
        for a in range(nodes)
        for b in range(a + 1, nodes)
    }


def transfers(
    args: argparse.Namespace, line: Line, group: Any
) -> Iterable[Tuple[str, int, Callable[[], None]]]:
    """Yield the measurements of a pair: direction, bytes, and the transfer."""
    yield "a-to-b", args.size_bytes, lambda: line.one_way(True)
    yield "b-to-a", args.size_bytes, lambda: line.one_way(False)
    yield "both", args.size_bytes, line.both
    if group is not None:
        yield "all-reduce", args.size_bytes, lambda: reduce(line, group)
    yield "ping", PING_BYTES, line.ping


def reduce(line: Line, group: Any) -> None:
    """All-reduce over the ranks of both nodes."""
    dist.all_reduce(line.incoming, group=group)
    settle(line.device)


def measure(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Sweep over all pairs and print the times of this rank's clock if it leads."""
    me = world.me
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    ends, first, in_end = me.world_size // per_node, 0, per_node
    if args.model == "peers":
        ends, first, in_end = per_node, me.rank - me.local_rank, 1
    own, place = (me.rank - first) // in_end, me.local_rank % in_end
    groups = pair_groups(ends, per_node) if args.all_reduce else {}
    line = Line(world.device, args.size_bytes, me)
    for sweep in range(1 - args.warmup_steps, args.steps - args.warmup_steps + 1):
        for number, pairs in enumerate(rounds(ends, sweep), start=1):
            dist.barrier()
            pair = next((pair for pair in pairs if own in pair), None)
            if pair is None:
                continue
            a, b = pair
            line.meet(first + (b if own == a else a) * in_end + place, leads=own == a)
            for direction, size_bytes, transfer in transfers(args, line, groups.get(pair)):
                seconds = line.time_transfers(transfer, args.iterations)
                if direction == "both" and sweep <= 1:
                    line.check()
                if line.leads and sweep > 0:
                    trainer.say(
                        f"pair sweep={sweep} round={number} a={first + a} b={first + b} local_rank={place}"
                        f" direction={direction} size_bytes={size_bytes} time_s={seconds:.9f}"
                    )
            line.incoming.zero_()
    return {}


def main() -> None:
    """Read the options, measure, report."""
    run(arguments(), measure)


if __name__ == "__main__":
    leave_after(main)

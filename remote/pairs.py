"""Measure the link between every two nodes, in rounds in which all pairs of a round measure at the same time.

Needs PyTorch 1.13 or newer and Python 3.8 or newer, and trainer.py and torch_ranks.py beside this file:

    torchrun --nnodes 4 --nproc_per_node 1 --node_rank 0 --master_addr 10.11.0.2 --master_port 29500 pairs.py --device cuda

N nodes meet in N-1 rounds, N where N is odd, so that each pair meets once: a sweep. Which nodes meet in one round changes from
sweep to sweep, so that no pair always shares a switch with the same others. With several ranks on each node, rank k of one node
measures with rank k of the other, all at once. Each rank of the node of lower rank, a, prints what its own clock says:

    orch pair sweep=1 round=3 a=0 b=5 local_rank=0 direction=both size_bytes=1048576 time_s=0.001234567

`a-to-b` and `b-to-a` are one way, until an acknowledgement is back, or from the word to begin; `both` is both ways at once;
`all-reduce` is one over all ranks of both nodes; `ping` is a few bytes there and back. `size_bytes` is what one rank sends.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import zlib
from typing import Any, Callable, Iterable, List, Optional, Tuple

import torch
import torch.distributed as dist
import trainer
from torch.distributed import P2POp
from torch_ranks import claim, identity, join, leave_after, memory_bytes, prove_world, settle
from trainer import Identity

PING_BYTES = 8
Pair = Tuple[int, int]


# --- who meets whom -------------------------------------------------------------------------------------------------------


def rounds(nodes: int, sweep: int) -> List[List[Pair]]:
    """Return the pairs of each round, lower node first: the circle method, the nodes seated anew for each sweep.

    The seating is drawn by a checksum, which is the same on every node whatever its Python.
    """
    seats: List[Optional[int]] = sorted(range(nodes), key=lambda node: zlib.crc32(f"{sweep} {node}".encode()))
    if nodes % 2:
        seats.append(None)  # whoever meets nobody has a bye
    found = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats))
        found.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        seats[1:] = [seats[-1], *seats[1:-1]]
    return found


# --- what is asked for ----------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", choices=["pairs"], default="pairs")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["fp32"], default="fp32", help="what an all-reduce adds")
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl on cuda, gloo on cpu")
    parser.add_argument("--steps", type=int, default=21, help="sweeps over all pairs, warm-up included")
    parser.add_argument("--warmup-steps", type=int, default=1, help="sweeps that are not measured: they connect")
    parser.add_argument("--size-bytes", type=int, default=64 << 20, help="what one rank sends at once")
    parser.add_argument("--iterations", type=int, default=5, help="transfers of which the middle time counts")
    parser.add_argument("--all-reduce", default="false", help="measure that of each pair too", **trainer.SWITCH)
    parser.add_argument("--threads", type=int, default=1, help="threads of one rank on cpu")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest wait for other ranks")
    return trainer.parsed(parser, unusable)


def unusable(asked: argparse.Namespace) -> str:
    """Return why these arguments cannot be run, or nothing."""
    if asked.steps <= asked.warmup_steps or asked.warmup_steps < 0:
        return f"--steps: expected more than --warmup-steps, got {asked.steps} and {asked.warmup_steps}"
    if asked.size_bytes < 4 or asked.size_bytes % 4:
        return f"--size-bytes: expected a multiple of 4, got {asked.size_bytes}"
    if asked.iterations < 1 or asked.threads < 1 or asked.timeout_s <= 0:
        return "--iterations, --threads, --timeout-s: expected 1 or more"
    if asked.device == "cuda" and not torch.cuda.is_available():
        return f"--device: expected a usable GPU, PyTorch {torch.__version__} finds none"
    if asked.device == "cpu" and asked.backend == "nccl":
        return "--backend: expected gloo on cpu, got nccl"
    return ""


# --- one transfer ---------------------------------------------------------------------------------------------------------


class Line:
    """This rank's end of the line to another rank; ``leads`` where this end's clock counts."""

    def __init__(self, device: torch.device, size_bytes: int, me: Identity) -> None:
        self.device, self.me = device, me
        self.there = torch.full((size_bytes // 4,), float(me.rank + 1), device=device)
        self.here = torch.zeros_like(self.there)
        self.word = torch.zeros(PING_BYTES, dtype=torch.uint8, device=device)
        self.answer = torch.zeros_like(self.word)

    def meet(self, peer: int, leads: bool) -> None:
        """Turn to a rank."""
        self.peer, self.leads = peer, leads

    def swap(self, sent: Optional[torch.Tensor], received: Optional[torch.Tensor]) -> None:
        """Send, receive, or both at once; return when this end is done."""
        pairs = ((dist.isend, sent), (dist.irecv, received))
        works = dist.batch_isend_irecv([P2POp(way, tensor, self.peer) for way, tensor in pairs if tensor is not None])
        for work in works:
            work.wait()
        settle(self.device)

    def one_way(self, from_lead: bool) -> None:
        """Send one way, between a word to begin and an acknowledgement: what was sent may still be in a buffer of this node."""
        if self.leads == from_lead:
            if not from_lead:
                self.swap(None, self.answer)
            self.swap(self.there, None)
            if from_lead:
                self.swap(None, self.answer)
        else:
            if not from_lead:
                self.swap(self.word, None)
            self.swap(None, self.here)
            if from_lead:
                self.swap(self.word, None)

    def both(self) -> None:
        """Send both ways at once, until both have all."""
        self.swap(self.there, self.here)
        self.swap(self.word, self.answer)

    def ping(self) -> None:
        """Send a few bytes there and back."""
        first, second = ((self.word, None), (None, self.answer)) if self.leads else ((None, self.answer), (self.word, None))
        self.swap(*first)
        self.swap(*second)

    def timed(self, transfer: Callable[[], None], iterations: int) -> float:
        """Return the seconds of one transfer, the middle one of some. Both ends are there before the clock starts."""
        self.swap(self.word, self.answer)
        times = []
        for _ in range(iterations):
            begin = time.monotonic()
            transfer()
            times.append(time.monotonic() - begin)
        return statistics.median(times)

    def check(self) -> None:
        """Raise RuntimeError where what came is not what was sent."""
        if not bool((self.here == float(self.peer + 1)).all()):
            raise RuntimeError(f"rank {self.peer} sent {self.peer + 1} only, rank {self.me.rank} received something else")


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def pair_groups(nodes: int, per_node: int) -> Any:
    """Return a process group for each pair of nodes. Every rank makes all of them, in one order."""
    ranks = [list(range(node * per_node, (node + 1) * per_node)) for node in range(nodes)]
    return {(a, b): dist.new_group(ranks[a] + ranks[b]) for a in range(nodes) for b in range(a + 1, nodes)}


def transfers(asked: argparse.Namespace, line: Line, group: Any) -> Iterable[Tuple[str, int, Callable[[], None]]]:
    """Yield what a pair measures: direction, bytes, and the transfer."""
    yield "a-to-b", asked.size_bytes, lambda: line.one_way(True)
    yield "b-to-a", asked.size_bytes, lambda: line.one_way(False)
    yield "both", asked.size_bytes, line.both
    if group is not None:
        yield "all-reduce", asked.size_bytes, lambda: reduce(line, group)
    yield "ping", PING_BYTES, line.ping


def reduce(line: Line, group: Any) -> None:
    """All-reduce over the ranks of both nodes."""
    dist.all_reduce(line.here, group=group)
    settle(line.device)


def measure(asked: argparse.Namespace, me: Identity, device: torch.device) -> None:
    """Sweep over all pairs, printing the times that this rank's clock counts for."""
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes, node = me.world_size // per_node, me.rank // per_node
    groups = pair_groups(nodes, per_node) if asked.all_reduce == "true" else {}
    line = Line(device, asked.size_bytes, me)
    for sweep in range(1 - asked.warmup_steps, asked.steps - asked.warmup_steps + 1):
        for number, pairs in enumerate(rounds(nodes, sweep), start=1):
            dist.barrier()
            mine = next((pair for pair in pairs if node in pair), None)
            if mine is None:
                continue
            a, b = mine
            line.meet((b if node == a else a) * per_node + me.local_rank, leads=node == a)
            for direction, size_bytes, transfer in transfers(asked, line, groups.get(mine)):
                seconds = line.timed(transfer, asked.iterations)
                if direction == "both" and sweep <= 1:
                    line.check()
                if line.leads and sweep > 0:
                    trainer.say(
                        f"pair sweep={sweep} round={number} a={a} b={b} local_rank={me.local_rank} direction={direction}"
                        f" size_bytes={size_bytes} time_s={seconds:.9f}"
                    )
            line.here.zero_()


def main() -> None:
    """Join, measure, prove, report."""
    asked = arguments()
    me = identity()
    if me.world_size < 2 * int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        raise SystemExit("nodes: expected 2 or more, got 1. a pair needs another node")
    device = claim(asked, me.local_rank)
    world = join(asked, me, device)
    prove_world(me, device)  # with NCCL it also makes the communicator that all transfers share
    measure(asked, me, device)
    prove_world(me, device)
    world.report(asked, {"memory_bytes": memory_bytes(device)}, {}, switches=["all_reduce"])


if __name__ == "__main__":
    leave_after(main)

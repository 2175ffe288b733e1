"""A training program that knows nothing of orch, and hangs in one of many ways: ``--fault KIND
--rank R --at STEP``.

DistributedDataParallel with gloo, an own all-reduce of the loss, barriers of the group and of the
store, samples from a loader with a worker, checkpoints by rank 0. With ``--marks one`` it reports
one phase a step, with ``full`` each phase, by the module that `orch` has for programs of others;
with ``none`` it does not import that.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import mmap
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LIMIT = timedelta(minutes=30)
FOREVER_S = 100_000
SO_ATTACH_FILTER = 26
FAULTS: dict[str, Callable[[Training], None]] = {}


def fault(function: Callable[[Training], None]) -> Callable[[Training], None]:
    """Enter what a rank does in its broken step, before it takes this step."""
    FAULTS[function.__name__] = function
    return function


class Samples(Dataset):  # type: ignore[type-arg]
    """Random samples without an end; a worker that finds the file ``sleep`` beside it sleeps."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        while self.flag.exists():
            time.sleep(1)
        return torch.randn(64)


class Training:
    """One rank, from its first step to its last."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_broken = self.rank == args.rank
        self.step = 0
        self.left_out: set[str] = set()
        self.elements = 1
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)]
        self.plain = torch.nn.Sequential(*layers)
        self.model = DistributedDataParallel(self.plain)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.store: Any = dist.distributed_c10d._get_default_store()
        self.flag = Path(f"sleep-{self.rank}")
        self.loader = DataLoader(Samples(self.flag), batch_size=8, num_workers=args.workers)
        self.samples = iter(self.loader)
        self.marks = sys.modules.get("rank_progress")

    def mark(self, phase: str) -> None:
        """Report a phase, where this program reports any."""
        if self.marks and (
            phase == self.args.phase or (self.args.marks == "full" and phase != "step")
        ):
            self.marks.mark(self.step, phase)

    def does(self, call: str) -> bool:
        """Return whether this rank makes a call in this step: once in its life it may leave one
        out.
        """
        if call in self.left_out:
            self.left_out.discard(call)
            return False
        return True

    def train(self) -> None:
        """Take all steps."""
        self.before = time.monotonic()
        while self.step < self.args.steps:
            self.step += 1
            if self.is_broken and self.step == self.args.at:
                FAULTS[self.args.fault](self)
            self.take_step()

    def take_step(self) -> None:
        """Load, compute, reduce, report."""
        self.mark("step")
        self.mark("input")
        batch = next(self.samples)
        self.mark("compute")
        time.sleep(self.args.compute_s)
        with nullcontext() if self.does("gradients") else self.model.no_sync():
            loss = self.model(batch).square().mean()
            self.mark("collective")
            loss.backward()
        self.mark("compute")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.mark("collective")
        total = loss.detach().reshape(1).repeat(self.elements)
        if self.does("reduction"):
            dist.all_reduce(total)
        self.more_calls()
        if self.rank == 0:
            now = time.monotonic()
            print(
                f"step {self.step} {now - self.before:.4f} s/step loss {float(total[0]):.3f}",
                flush=True,
            )
            self.before = now

    def more_calls(self) -> None:
        """Make the other calls of a step: each kind at steps of its own, so that a fault meets each
        soon.
        """
        calls = {name: call for name, call in CALLS.items() if name in self.args.calls.split(",")}
        for number, (name, call) in enumerate(calls.items()):
            if self.step % len(calls) == number and self.does(name):
                call(self)


# --- what all ranks call --------------------------------------------------------------------------


def barrier(of: Training) -> None:
    dist.barrier()


def monitored(of: Training) -> None:
    dist.monitored_barrier(timeout=LIMIT)


def store_barrier(of: Training) -> None:
    """Meet at the store, as many do before they read a file that one rank writes."""
    name = f"meet-{of.step}"
    if of.store.add(name, 1) == of.size:
        of.store.set(name + "-all", "1")
    of.store.wait([name + "-all"], LIMIT)


def checkpoint(of: Training) -> None:
    """Let rank 0 write, and the others wait for it at the store."""
    if of.rank == 0:
        torch.save(of.plain.state_dict(), "checkpoint.pt")
        of.store.set(f"saved-{of.step}", "1")
    of.store.wait([f"saved-{of.step}"], LIMIT)


def roots(of: Training) -> None:
    """Broadcast from each rank in turn."""
    dist.broadcast(torch.zeros(64), src=of.step % of.size)


def gathering(of: Training) -> None:
    dist.all_gather([torch.zeros(8) for _ in range(of.size)], torch.ones(8))


def to_root(of: Training) -> None:
    dist.gather(
        torch.ones(8), [torch.zeros(8) for _ in range(of.size)] if of.rank == 0 else None, dst=0
    )


def exchange(of: Training) -> None:
    """Send uneven parts to all, as experts do."""
    parts = [1 + (of.rank + other) % 3 for other in range(of.size)]
    dist.all_to_all_single(torch.zeros(sum(parts)), torch.ones(sum(parts)), parts, parts)


def ring(of: Training) -> None:
    """Send to the next rank, as stages of a pipeline do."""
    before, after = (of.rank - 1) % of.size, (of.rank + 1) % of.size
    sent = dist.isend(torch.ones(16), after)
    dist.recv(torch.zeros(16), before)
    sent.wait()


def objects(of: Training) -> None:
    dist.all_gather_object([None] * of.size, {"rank": of.rank})


CALLS = {
    function.__name__: function
    for function in (
        barrier,
        monitored,
        store_barrier,
        checkpoint,
        roots,
        gathering,
        to_root,
        exchange,
        ring,
        objects,
    )
}


# --- faults: of this rank alone -------------------------------------------------------------------


@fault
def nothing(of: Training) -> None:
    """Go on: it is broken from outside, or later."""


@fault
def sleep(of: Training) -> None:
    time.sleep(FOREVER_S)


@fault
def loop(of: Training) -> None:
    while True:
        pass


@fault
def compute(of: Training) -> None:
    """Evaluate a set without an end on one rank only."""
    with torch.no_grad():
        while True:
            of.plain(torch.randn(512, 64))


@fault
def print_loop(of: Training) -> None:
    while True:
        print("retrying the connection to the tracking server", flush=True)
        time.sleep(0.05)


@fault
def deadlock(of: Training) -> None:
    first, second = threading.Lock(), threading.Lock()
    first.acquire()

    def other() -> None:
        with second:
            first.acquire()

    threading.Thread(target=other, daemon=True).start()
    time.sleep(0.2)
    second.acquire()


@fault
def empty_queue(of: Training) -> None:
    queue.Queue[int]().get()


@fault
def silent_socket(of: Training) -> None:
    mine, _theirs = socket.socketpair()
    mine.recv(1)


@fault
def subprocess_wait(of: Training) -> None:
    subprocess.run(["sleep", str(FOREVER_S)], check=False)


@fault
def future(of: Training) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, FOREVER_S).result()


@fault
def coroutine(of: Training) -> None:
    asyncio.run(asyncio.sleep(FOREVER_S))


@fault
def gil_sleep(of: Training) -> None:
    """Sleep in C without giving up the interpreter."""
    ctypes.PyDLL(None).sleep(FOREVER_S)


@fault
def gil_compute(of: Training) -> None:
    """Match an expression that takes exponential time: it computes in C, and holds the interpreter."""
    re.match(r"(a+)+$", "a" * 60 + "b")


@fault
def c_sleep(of: Training) -> None:
    ctypes.CDLL(None).sleep(FOREVER_S)


@fault
def hook_sleep(of: Training) -> None:
    """Sleep within the backward pass."""
    next(of.plain.parameters()).register_hook(lambda gradient: time.sleep(FOREVER_S))


@fault
def poll_file(of: Training) -> None:
    while not Path("never").exists():
        time.sleep(0.1)


@fault
def stalled_file(of: Training) -> None:
    """Read from a file system that does not answer."""
    Path(os.environ["INJECT_STALLED"], "samples").read_bytes()


@fault
def slow_disk(of: Training) -> None:
    """Read samples of which a part comes every few seconds."""
    with Path(os.environ["INJECT_STALLED"], "samples").open("rb", buffering=0) as file:
        while file.read(1 << 17):
            pass


@fault
def swapped_out(of: Training) -> None:
    """Touch memory that has to come from a disk, which does not answer."""
    with Path(os.environ["INJECT_STALLED"], "samples").open("rb") as file:
        memory = mmap.mmap(file.fileno(), 1 << 20, access=mmap.ACCESS_READ)
    memory[4096]


@fault
def deaf(of: Training) -> None:
    """Have the network drop all that comes to the connections of this rank, acknowledgements too."""
    drop_all = struct.pack("HBBI", 6, 0, 0, 0)  # a classic packet filter: return 0 bytes
    code = ctypes.create_string_buffer(drop_all)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            connection = socket.socket(fileno=os.dup(int(name)))
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(
                    socket.SOL_SOCKET,
                    SO_ATTACH_FILTER,
                    struct.pack("HL", 1, ctypes.addressof(code)),
                )
            connection.detach()


@fault
def full_pipe(of: Training) -> None:
    reader = subprocess.Popen(["sleep", str(FOREVER_S)], stdin=subprocess.PIPE)
    while True:
        os.write(reader.stdin.fileno(), bytes(65536))  # type: ignore[union-attr]


@fault
def stop_itself(of: Training) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@fault
def stop_worker(of: Training) -> None:
    for worker in of.samples._workers:  # type: ignore[union-attr]
        os.kill(worker.pid, signal.SIGSTOP)


@fault
def sleeping_worker(of: Training) -> None:
    of.flag.touch()


@fault
def stop_launcher(of: Training) -> None:
    """Stop the launch script, and end as if all were well one step later."""
    os.kill(int(os.environ["INJECT_LAUNCHER"]), signal.SIGSTOP)


# --- faults: of calls to others -------------------------------------------------------------------


def leaving_out(call: str) -> Callable[[Training], None]:
    def leave_out(of: Training) -> None:
        of.left_out.add(call)

    return leave_out


FAULTS |= {f"skip_{name}": leaving_out(name) for name in ("reduction", "gradients")}
FAULTS |= {f"skip_{name}": leaving_out(name) for name in CALLS}


@fault
def no_sync(of: Training) -> None:
    """Never reduce gradients again."""
    of.model.require_backward_grad_sync = False


@fault
def other_size(of: Training) -> None:
    of.elements = 2


@fault
def other_large_size(of: Training) -> None:
    """Give so much more that gloo ends a rank that receives it."""
    of.elements = 1 << 18


@fault
def other_order(of: Training) -> None:
    """Gather before it reduces, where the others reduce first."""
    gathering(of)


@fault
def extra_barrier(of: Training) -> None:
    dist.barrier()


@fault
def extra_reduction(of: Training) -> None:
    dist.all_reduce(torch.zeros(1))


@fault
def extra_monitored(of: Training) -> None:
    dist.monitored_barrier(timeout=LIMIT)


@fault
def missing_key(of: Training) -> None:
    """Wait for a key that nobody sets."""
    of.store.wait([f"never-{of.step}"], LIMIT)


@fault
def leave(of: Training) -> None:
    """Leave early, and with success."""
    os._exit(0)


@fault
def fewer_batches(of: Training) -> None:
    """End the epoch before the others, and wait for them where they would end it."""
    dist.barrier()
    os._exit(0)


@fault
def fail(of: Training) -> None:
    raise ValueError("expected 64 features, got 63")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--at", type=int, default=60)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--compute-s", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--calls", default="barrier")
    parser.add_argument("--marks", choices=["none", "one", "full"], default="none")
    parser.add_argument("--phase", default="")
    parser.add_argument(
        "--after",
        type=float,
        default=0.0,
        help="the broken rank stays so many seconds longer than the others",
    )
    args = parser.parse_args()
    if args.marks != "none":
        import rank_progress  # noqa: F401
    dist.init_process_group("gloo", timeout=LIMIT)
    training = Training(args)
    training.train()
    dist.destroy_process_group()
    if training.is_broken:
        time.sleep(args.after)


if __name__ == "__main__":
    main()

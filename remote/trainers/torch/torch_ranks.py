"""Common code of PyTorch programs that run as ranks: their numbers, how they meet, report and
leave.

PyTorch 1.13 or newer, Python 3.8 or newer.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import os
import platform
import socket
import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Iterator, Mapping, NamedTuple, NoReturn

import rank_progress
import torch
import torch.distributed as dist
import trainer
from trainer import Identity

CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
"""The compute capability from which a GPU multiplies matrices of a type (CUDA C++ Programming
Guide, Compute Capabilities).
"""
_OWN_GPU = "ORCH_OWN_GPU"
"""Of a rank, and of its child processes, whose only visible GPU is the rank's own: what was visible
before.
"""


def identity() -> Identity:
    """Read the environment. Raises SystemExit naming missing variables."""
    start = ". start this program with torchrun"
    return trainer.identity(start, "MASTER_ADDR", "MASTER_PORT")


def see_own_gpu() -> None:
    """Leave only this rank's GPU visible, as device 0, for `claim`. Call it before anything asks
    CUDA for GPUs, which reads CUDA_VISIBLE_DEVICES once.

    Kernels and graphs in inductor's cache name the index of their device: under indexes of their
    own, each rank of a node compiles, and searches for, what another rank or a run on one GPU has
    cached. ``torchrun --virtual-local-rank`` of newer versions does the same. Does nothing where
    the variable does not list a GPU for this rank, or lists one twice, nor with ROCm, nor with
    PyTorch before 2.2, which has NCCL before 2.19: that takes a GPU that it does not see for a
    peer, without asking whether the two can reach each other.
    """
    visible, local_rank = (
        os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        os.environ.get("LOCAL_RANK", ""),
    )
    entries = [entry.strip() for entry in visible.split(",")]
    listed = len(set(entries)) == len(entries) and not {"", "-1"} & set(entries)
    if not listed or not local_rank.isdecimal() or int(local_rank) >= len(entries):
        return
    is_old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 2)
    if _OWN_GPU in os.environ or torch.cuda.is_initialized() or torch.version.hip or is_old:
        return
    os.environ.update({"CUDA_VISIBLE_DEVICES": entries[int(local_rank)], _OWN_GPU: visible})


def claim(args: argparse.Namespace, local_rank: int) -> torch.device:
    """Select this rank's device. Raises SystemExit if there is none for it."""
    if args.device == "cpu":
        torch.set_num_threads(args.threads)
        return torch.device("cpu")
    visible = os.environ.get(_OWN_GPU)
    index = local_rank if visible is None else 0
    if index >= torch.cuda.device_count():
        place = f" at place {local_rank} of CUDA_VISIBLE_DEVICES={visible}" if visible else ""
        raise SystemExit(
            f"--device: expected a usable GPU for LOCAL_RANK={local_rank}{place}, PyTorch"
            f" {torch.__version__} finds {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def require_type(device: torch.device, dtype: str) -> None:
    """Raise SystemExit unless this rank's GPU multiplies matrices of this type."""
    needed = CAPABILITY.get(dtype)
    if device.type == "cuda" and needed:
        capability = torch.cuda.get_device_capability(device)
        if capability < needed:
            got = f"{device_name(device)} with {capability[0]}.{capability[1]}"
            raise SystemExit(
                f"--dtype: expected a GPU of compute capability {needed[0]}.{needed[1]} or newer for {dtype}, got {got}"
            )


def device_name(device: torch.device) -> str:
    """Return the device's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return trainer.cpu_name()


class World(NamedTuple):
    """The ranks that have met, seen by one of them: its numbers, its device, the device's own name,
    its host, the backend.
    """

    me: Identity
    device: torch.device
    name: str
    host: str
    backend: str

    def report(
        self,
        args: argparse.Namespace,
        of_rank: Mapping[str, Any],
        of_run: Mapping[str, Any],
    ) -> None:
        """Print the last line, on rank 0: the options, the facts of the run, the facts of all
        ranks.

        ``of_rank``: this rank's `memory_bytes`, and seconds under names that end in `_s`; the line
        has a list of each of these, in order of rank, and the largest of the first. ``of_run``:
        facts of the run.
        """
        own_facts = {"rank": self.me.rank, "host": self.host, "device": self.name, **of_rank}
        ranks = gather(own_facts, self.device, self.me.world_size)
        if self.me.rank == 0:
            of_ranks = {
                key: [rank[key] for rank in ranks]
                for key in of_rank
                if key.endswith(("_s", "_bytes"))
            }
            facts = {"backend": self.backend, **versions(), **of_ranks, **of_run}
            trainer.say_done(trainer.of_all(args, ranks, facts))


def join(args: argparse.Namespace, me: Identity, device: torch.device) -> World:
    """Meet the other ranks, and print this rank's line."""
    backend = str(
        {"cuda": "nccl", "cpu": "gloo"}[device.type] if args.backend == "auto" else args.backend
    )
    extra: dict[str, Any] = {}
    if backend == "nccl" and "device_id" in inspect.signature(dist.init_process_group).parameters:
        extra["device_id"] = (
            device  # PyTorch 2.3: names this rank's GPU, and connects now instead of in the first step
        )
    dist.init_process_group(backend, timeout=timedelta(seconds=args.timeout_s), **extra)
    rank_progress.declare_pauses()
    world = World(me, device, device_name(device), socket.gethostname(), backend)
    trainer.say_rank(*me, world.host, world.name)
    return world


def gather(facts: dict[str, Any], device: torch.device, world_size: int) -> list[dict[str, Any]]:
    """Return the facts of every rank, in order of rank. all_gather_object would need numpy on the
    node.
    """
    own_bytes = torch.tensor(trainer.pack_facts(facts), dtype=torch.uint8, device=device)
    gathered = [torch.empty_like(own_bytes) for _ in range(world_size)]
    dist.all_gather(gathered, own_bytes)
    return [trainer.unpack_facts(packed.tolist()) for packed in gathered]


def prove_world(me: Identity, device: torch.device) -> None:
    """Add up all ranks. Raises RuntimeError unless they are exactly 0 … world_size-1."""
    total = torch.tensor([me.rank, 1], dtype=torch.int64, device=device)
    dist.all_reduce(total)
    trainer.check_ranks(total.tolist(), me.world_size, dist.get_world_size())


def all_ranks(device: torch.device, value: float, how: str = "max") -> float:
    """Return the maximum, minimum or sum of a number over all ranks; also a barrier."""
    number = torch.tensor([value], dtype=torch.float64, device=device)
    operations: Any = dist.ReduceOp
    dist.all_reduce(
        number, {"max": operations.MAX, "min": operations.MIN, "sum": operations.SUM}[how]
    )
    return float(number)


def settle(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this rank: allocated on the GPU, or resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return trainer.resident_bytes()


def allocator_retries(device: torch.device) -> int:
    """Return how often this rank's allocator found the GPU full and gave cached memory back, for
    which it waits for the GPU.
    """
    return (
        int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))
        if device.type == "cuda"
        else 0
    )


def memory_remarks(device: torch.device, retries: int) -> list[str]:
    """Return a remark if memory was short on a rank. ``retries``: this rank's, in the window. All
    ranks call it together.
    """
    most = int(all_ranks(device, retries))
    if not most:
        return []
    times = f"{most} times" if most > 1 else "once"
    return [
        f"GPU memory was full: in the window PyTorch's allocator gave cached memory back {times} on a rank, "
        "and waited for the GPU each time; a smaller batch may be faster"
    ]


@contextmanager
def from_root() -> Iterator[None]:
    """Work from the root directory. For the first step, in which cuDNN's search compiles kernels.

    CUDA's compute cache (``~/.nv/ComputeCache``) returns such a kernel only to a process whose
    current directory is the one in which it was compiled, and each run has a directory of its own.
    """
    directory = os.open(".", os.O_RDONLY)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(directory)
        os.close(directory)


def versions() -> dict[str, Any]:
    """Return the versions that may affect the speed; None if missing."""
    # Checked first: torch.cuda.nccl.version() raises in a build without CUDA.
    nccl = torch.cuda.nccl.version() if hasattr(torch._C, "_nccl_version") else None
    return {
        "framework": "pytorch",
        "framework_version": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
    }


def run(
    args: argparse.Namespace, work: Callable[[argparse.Namespace, World], Mapping[str, Any]]
) -> None:
    """Join, work, verify, report. ``work`` returns facts of the run."""
    me = identity()
    device = claim(args, me.local_rank)
    world = join(args, me, device)
    prove_world(me, device)  # with NCCL this also creates the communicator of all ranks
    facts = work(args, world)
    prove_world(me, device)
    world.report(args, {"memory_bytes": memory_bytes(device)}, facts)


def leave_after(main: Callable[[], None]) -> NoReturn:
    """Run a program and end its process: with 0 if it returns, with a traceback and 1 if it raises.
    SystemExit passes.

    NCCL's process group is destroyed in order, gloo's never: with PyTorch 2.13 a rank whose peer
    had already left ended in "terminate called without an active exception", a SIGABRT after a
    complete and verified run. After an error neither is.
    """
    try:
        main()
        if dist.get_backend() == "nccl":
            gc.collect()  # a graph that holds NCCL's kernels must be freed before its group
            dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)
    except Exception:
        trainer.leave_at_once()

"""What programs of PyTorch have in common that run as ranks: who they are, how they meet, report and leave.

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
from datetime import timedelta
from typing import Any, Callable, Mapping, NamedTuple, NoReturn, Sequence

import torch
import torch.distributed as dist
import trainer
from trainer import Identity


def identity() -> Identity:
    """Read the environment. Raises SystemExit naming what is missing."""
    missing = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise SystemExit(f"environment: expected {', '.join(missing)} to be set. start this program with torchrun")
    env = os.environ
    node_rank = env.get("GROUP_RANK", env.get("NODE_RANK", "0"))
    return Identity(int(env["RANK"]), int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"]), int(node_rank))


def claim(asked: argparse.Namespace, local_rank: int) -> torch.device:
    """Take this rank's device. Raises SystemExit where there is none for it."""
    if asked.device == "cpu":
        torch.set_num_threads(asked.threads)
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise SystemExit(f"LOCAL_RANK: expected below the {torch.cuda.device_count()} visible GPUs, got {local_rank}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def device_name(device: torch.device) -> str:
    """Return what the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return trainer.cpu_name()


class World(NamedTuple):
    """The ranks that have met, as one of them sees them: itself, its device, what that calls itself, its host, the backend."""

    me: Identity
    device: torch.device
    name: str
    host: str
    backend: str

    def report(
        self, asked: argparse.Namespace, said: Mapping[str, Any], found: Mapping[str, Any], switches: Sequence[str] = ()
    ) -> None:
        """Print the last line, on rank 0: what was asked, what was found out, what all ranks say of themselves.

        ``said``: this rank's `memory_bytes`, and seconds by names that end in `_s`, of which the line has a list in order of
        rank. ``switches``: what was declared as `trainer.SWITCH`.
        """
        ranks = gather({"rank": self.me.rank, "host": self.host, "device": self.name, **said}, self.device, self.me.world_size)
        if self.me.rank == 0:
            of_ranks = {key: [one[key] for one in ranks] for key in said if key.endswith("_s")}
            facts = {"backend": self.backend, **versions(), **of_ranks, **found}
            trainer.say_done(trainer.of_all(asked, ranks, facts, switches))


def join(asked: argparse.Namespace, me: Identity, device: torch.device) -> World:
    """Meet the other ranks, and print who this one is."""
    backend = str({"cuda": "nccl", "cpu": "gloo"}[device.type] if asked.backend == "auto" else asked.backend)
    extra: dict[str, Any] = {}
    if backend == "nccl" and "device_id" in inspect.signature(dist.init_process_group).parameters:
        extra["device_id"] = device  # PyTorch 2.3: says which GPU is ours, and connects now instead of in the first step
    dist.init_process_group(backend, timeout=timedelta(seconds=asked.timeout_s), **extra)
    world = World(me, device, device_name(device), socket.gethostname(), backend)
    trainer.say_rank(*me, world.host, world.name)
    return world


def gather(facts: dict[str, Any], device: torch.device, world_size: int) -> list[dict[str, Any]]:
    """Return what every rank says of itself, in order of rank. all_gather_object would need numpy on the node."""
    mine = torch.tensor(trainer.packed(facts), dtype=torch.uint8, device=device)
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    return [trainer.unpacked(one.tolist()) for one in everyone]


def prove_world(me: Identity, device: torch.device) -> None:
    """Add up all ranks. Raises RuntimeError where they are not exactly 0 … world_size-1."""
    total = torch.tensor([me.rank, 1], dtype=torch.int64, device=device)
    dist.all_reduce(total)
    trainer.check_ranks(total.tolist(), me.world_size, dist.get_world_size())


def settle(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_bytes(device: torch.device) -> int:
    """Return the most memory this rank held: of the GPU's, or resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return trainer.resident_bytes()


def versions() -> dict[str, Any]:
    """Return the versions that may change the speed; None for what is not there."""
    # Asked before: torch.cuda.nccl.version() raises in a build without CUDA.
    nccl = torch.cuda.nccl.version() if hasattr(torch._C, "_nccl_version") else None
    return {
        "framework": "pytorch",
        "framework_version": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
    }


def leave_after(main: Callable[[], None]) -> NoReturn:
    """Run a program and end its process: with 0 where it returns, with a traceback and 1 where it raises. SystemExit passes.

    NCCL is left in order, gloo never: with PyTorch 2.13 a rank whose peer had already left ended in "terminate called without
    an active exception", a SIGABRT after a run that was complete and proven. After an error nothing is left in order either.
    """
    try:
        main()
        if dist.get_backend() == "nccl":
            gc.collect()  # a graph that holds NCCL's kernels must go before its group
            dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)
    except Exception:
        trainer.leave_at_once()

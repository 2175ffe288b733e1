"""The ranks of train_paddle.py: their numbers, devices and rendezvous, and the facts of all ranks.

PaddlePaddle 2.5 or newer, Python 3.8 or newer.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import socket
from pathlib import Path
from typing import Any

import paddle
import paddle.distributed as dist
import trainer
from paddle.distributed import fleet
from paddle.distributed.collective import _set_default_store
from paddle.framework import core
from trainer import Identity

FLUSH_TO_ZERO, DENORMALS_ARE_ZERO = 1 << 15, 1 << 6
ONES = 1000  # to be added up on the device


def identity() -> Identity:
    """Read the environment. Raises SystemExit if variables are missing or contradict Paddle's
    launcher.
    """
    values = {"PADDLE_TRAINER_ID": "RANK", "PADDLE_TRAINERS_NUM": "WORLD_SIZE"}
    me = trainer.identity(". start this with paddle.distributed.launch", "NODE_RANK", *values)
    for launcher_name, name in values.items():
        expected, got = (int(os.environ[variable]) for variable in (name, launcher_name))
        if expected != got:
            hint = "the launcher identifies a node by its --host in --ips"
            raise SystemExit(
                f"{launcher_name}: expected {expected} as in {name}, got {got}. {hint}"
            )
    return me


def device_name(device: str) -> str:
    """Return the device's own name."""
    if device == "cuda":
        return str(paddle.device.cuda.get_device_name())
    return trainer.cpu_name()


def flush_subnormals() -> None:
    """Make this thread, and those that it starts, treat numbers too small for full precision as 0,
    on x86 processors.

    Images that never change are soon memorised; the remaining gradients are such numbers, and each
    step then takes five times as long. TensorFlow does the same; GPUs need not.
    """
    if platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return
    mathematics = ctypes.CDLL("libm.so.6")
    state = (ctypes.c_uint32 * 8)()  # glibc's fenv_t; MXCSR is its last word
    mathematics.fegetenv(state)
    state[7] |= FLUSH_TO_ZERO | DENORMALS_ARE_ZERO
    mathematics.fesetenv(state)


def fresh_store(me: Identity, timeout_s: float) -> Any:
    """Return an empty store, at a port that rank 0 chooses and announces in the store where all
    ranks have met.
    """
    meeting, limit = core.create_or_get_global_tcp_store(), max(1, int(timeout_s))
    host = dist.ParallelEnv().trainer_endpoints[0].rsplit(":", 1)[0]
    if me.rank > 0:
        return core.TCPStore(
            host, int(bytes(meeting.get("orch/port"))), False, me.world_size, limit
        )
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = int(probe.getsockname()[1])
    store = core.TCPStore(
        host, port, True, 1, limit
    )  # a world of one: the others connect once they know the port
    meeting.set("orch/port", str(port).encode())
    return store


def join(args: argparse.Namespace, me: Identity) -> str:
    """Select this rank's device and meet the other ranks; return the backend. Fleet rejects a world
    of one. Raises RuntimeError if the device does not compute.
    """
    # Read when the process group is created; gloo has a limit of its own, 30 s.
    os.environ["PADDLE_PG_TIMEOUT"] = str(int(args.timeout_s * 1000))
    if args.device == "cpu":
        os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
        paddle.set_device("cpu")
        flush_subnormals()
    else:
        paddle.set_device(f"gpu:{dist.ParallelEnv().device_id}")
    # On a GPU that it was not built for, Paddle starts no kernel and raises nothing: results are
    # whatever the memory held, and steps take no time.
    trainer.check_ones(float(paddle.ones([ONES]).sum()), ONES)
    if me.world_size > 1:
        strategy = fleet.DistributedStrategy()
        strategy.fuse_grad_size_in_MB = args.bucket_cap_mb
        if args.device == "cpu":
            # Every group of gloo stores its addresses under the same keys: 0, 1 … With a single
            # store, the faster rank of fleet's group would read its peer's address in the default
            # group, where nobody listens any more.
            dist.init_parallel_env()
            _set_default_store(fresh_store(me, args.timeout_s))
        fleet.init(is_collective=True, strategy=strategy)
    # The launcher's copy of its whole environment, with any secrets; fleet has already read it and
    # keeps it in memory.
    Path(os.environ.get("PADDLE_BACKUP_ENV_PATH", os.devnull)).write_text("{}")
    return {"cuda": "nccl", "cpu": "gloo"}[args.device]


def gather(facts: dict[str, Any], world_size: int) -> list[dict[str, Any]]:
    """Return the facts of every rank, in order of rank."""
    if world_size == 1:
        return [facts]
    gathered: list[Any] = []
    dist.all_gather(gathered, paddle.to_tensor(trainer.pack_facts(facts), dtype="int64"))
    return [trainer.unpack_facts(packed.tolist()) for packed in gathered]


def prove_world(me: Identity) -> None:
    """Add up all ranks. Raises RuntimeError unless they are exactly 0 … world_size-1."""
    total = paddle.to_tensor([me.rank, 1], dtype="int64")
    if me.world_size > 1:
        dist.all_reduce(total)
    trainer.check_ranks(total.tolist(), me.world_size, dist.get_world_size())


def memory_bytes(device: str) -> int:
    """Return the peak memory of this rank: allocated on the GPU, or resident."""
    if device == "cuda":
        return int(paddle.device.cuda.max_memory_allocated())
    return trainer.resident_bytes()


def versions() -> dict[str, Any]:
    """Return the versions that may affect the speed; None if missing."""
    texts = {
        name: str(getattr(paddle.version, name, lambda: "False")())
        for name in ("cuda", "cudnn", "nccl")
    }
    libraries = {
        name: None if text in ("False", "0", "None") else text for name, text in texts.items()
    }
    return {
        "framework": "paddle",
        "framework_version": paddle.__version__,
        "python": platform.python_version(),
        **libraries,
    }

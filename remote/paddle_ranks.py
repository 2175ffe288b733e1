"""The ranks of train_paddle.py: who this one is, how it takes its device and meets the others, what all say of themselves.

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


def identity() -> Identity:
    """Read the environment. Raises SystemExit naming what is missing, or what Paddle's launcher sees otherwise."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise SystemExit(f"environment: expected {', '.join(missing)} to be set. start this with paddle.distributed.launch")
    values = {name: int(os.environ[name]) for name in names}
    for ours, theirs in (("RANK", "PADDLE_TRAINER_ID"), ("WORLD_SIZE", "PADDLE_TRAINERS_NUM")):
        if values[ours] != values[theirs]:
            hint = "the launcher finds a node by its --host in --ips"
            raise SystemExit(f"{theirs}: expected {values[ours]} as {ours} says, got {values[theirs]}. {hint}")
    return Identity(values["RANK"], values["LOCAL_RANK"], values["WORLD_SIZE"], values["NODE_RANK"])


def device_name(device: str) -> str:
    """Return what the device calls itself."""
    if device == "cuda":
        return str(paddle.device.cuda.get_device_name())
    return trainer.cpu_name()


def flush_subnormals() -> None:
    """Let this thread, and those it starts, take numbers too small for full precision as 0, where the processor is x86.

    Images that never change are soon learnt by heart; the gradients that are left are such numbers, and each step then takes
    five times as long. TensorFlow does the same, a GPU need not.
    """
    if platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return
    mathematics = ctypes.CDLL("libm.so.6")
    state = (ctypes.c_uint32 * 8)()  # glibc's fenv_t; MXCSR is its last word
    mathematics.fegetenv(state)
    state[7] |= FLUSH_TO_ZERO | DENORMALS_ARE_ZERO
    mathematics.fesetenv(state)


def fresh_store(me: Identity, timeout_s: float) -> Any:
    """Return a store that holds nothing yet, at a port that rank 0 finds and tells in the one where all ranks have met."""
    meeting, limit = core.create_or_get_global_tcp_store(), max(1, int(timeout_s))
    host = dist.ParallelEnv().trainer_endpoints[0].rsplit(":", 1)[0]
    if me.rank > 0:
        return core.TCPStore(host, int(bytes(meeting.get("orch/port"))), False, me.world_size, limit)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = int(probe.getsockname()[1])
    store = core.TCPStore(host, port, True, 1, limit)  # a world of one: the others come when they know the port
    meeting.set("orch/port", str(port).encode())
    return store


def join(asked: argparse.Namespace, me: Identity) -> str:
    """Take this rank's device, meet the other ranks; return the backend. Fleet refuses a world of one, which needs it not."""
    # Read when the process group is made; gloo has a limit of its own, 30 s.
    os.environ["PADDLE_PG_TIMEOUT"] = str(int(asked.timeout_s * 1000))
    if asked.device == "cpu":
        os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
        paddle.set_device("cpu")
        flush_subnormals()
    else:
        paddle.set_device(f"gpu:{dist.ParallelEnv().device_id}")
    if me.world_size > 1:
        strategy = fleet.DistributedStrategy()
        strategy.fuse_grad_size_in_MB = asked.bucket_cap_mb
        if asked.device == "cpu":
            # Every group of gloo tells its addresses under the same keys: 0, 1 … In one store, the quicker rank of fleet's
            # group would read its peer's address in the default group, where nobody listens any more.
            dist.init_parallel_env()
            _set_default_store(fresh_store(me, asked.timeout_s))
        fleet.init(is_collective=True, strategy=strategy)
    # The launcher's copy of its whole environment, secrets too; fleet has read it by now, and keeps it in memory.
    Path(os.environ.get("PADDLE_BACKUP_ENV_PATH", os.devnull)).write_text("{}")
    return {"cuda": "nccl", "cpu": "gloo"}[asked.device]


def mesh() -> Any:
    """Return all ranks as one axis."""
    return dist.ProcessMesh(list(range(dist.get_world_size())), dim_names=["data"])


def gather(facts: dict[str, Any], world_size: int) -> list[dict[str, Any]]:
    """Return what every rank says of itself, in order of rank."""
    if world_size == 1:
        return [facts]
    everyone: list[Any] = []
    dist.all_gather(everyone, paddle.to_tensor(trainer.packed(facts), dtype="int64"))
    return [trainer.unpacked(one.tolist()) for one in everyone]


def prove_world(me: Identity) -> None:
    """Add up all ranks. Raises RuntimeError where they are not exactly 0 … world_size-1."""
    total = paddle.to_tensor([me.rank, 1], dtype="int64")
    if me.world_size > 1:
        dist.all_reduce(total)
    trainer.check_ranks(total.tolist(), me.world_size, dist.get_world_size())


def memory_bytes(device: str) -> int:
    """Return the most memory this rank held: of the GPU's, or resident."""
    if device == "cuda":
        return int(paddle.device.cuda.max_memory_allocated())
    return trainer.resident_bytes()


def versions() -> dict[str, Any]:
    """Return the versions that may change the speed; None for what is not there."""
    asked = {name: str(getattr(paddle.version, name, lambda: "False")()) for name in ("cuda", "cudnn", "nccl")}
    found = {name: None if text in ("False", "0", "None") else text for name, text in asked.items()}
    return {"framework": "paddle", "framework_version": paddle.__version__, "python": platform.python_version(), **found}

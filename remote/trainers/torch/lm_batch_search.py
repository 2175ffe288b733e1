"""The search of --find-batch-size: the largest micro-batch that every rank can train with, found by
taking steps.

A rank that runs out of memory inside a collective would leave the others waiting, and FSDP
communicates in the middle of a step. So each rank searches alone: a process beside it joins a world
of the same size whose messages are made up (PyTorch's fake process group), and holds what this rank
would hold. That process ends at its first failure, whatever kind it is, with all memory that it
had; only then the ranks meet, and agree on the smallest of their results.
"""

from __future__ import annotations

import argparse
import gc
import resource
import subprocess
import sys
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
import trainer
from lm_embedding import embedding_of
from lm_kernels import prefer_kernel
from lm_models import Shape
from lm_parallel import Layout
from lm_steps import Tokens, learner, take_step
from torch_ranks import settle
from trainer import Identity

HELD_BACK = 0.05
"""Share of the memory that the search leaves free: it has no buffers of NCCL, and a longer run may
take more.
"""
_THREADS_BYTES = 20 * 2**23
"""The stacks of gloo's threads, which count towards the limit of a process on a CPU, and which the
search does not have.
"""
FITS = "fits"
_REPLY = "attempt: "
_STEPS = 2
"""The second step has the optimizer's state beside it, which the first one makes."""


def memory_limit() -> int:
    """Return the bytes that this process may have on a CPU, by ``ulimit -v`` or ``ulimit -d``; 0
    without a limit.
    """
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=0)


# --- the rank -------------------------------------------------------------------------------------


class Attempts:
    """Attempts at batch sizes in a process beside this one, which is started again after each
    failure.
    """

    def __init__(self) -> None:
        self.process: Any = None
        self.reasons: dict[int, str] = {}

    def fits(self, batch_size: int) -> bool:
        """Return whether this rank can train with a batch size, and print it."""
        if self.process is None:
            command = [sys.executable, "-u", *sys.argv, "--attempts", "true"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{batch_size}\n")
            self.process.stdin.flush()
        lines = (line.strip() for line in self.process.stdout)
        result = next((line[len(_REPLY) :] for line in lines if line.startswith(_REPLY)), "")
        if result != FITS:
            code = self.end()
            ended = f"signal {-code}" if code < 0 else f"code {code}"
            self.reasons[batch_size] = result or f"the process that tried it ended with {ended}"
        trainer.say(f"tried batch_size={batch_size}: {self.reasons.get(batch_size, FITS)}")
        return result == FITS

    def end(self) -> int:
        """Let the process end; return its exit code."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return int(process.wait())


def largest_batch(args: argparse.Namespace) -> int:
    """Return the largest batch size up to ``args.find_batch_size`` with which this rank can train,
    before it has touched its device. Raises SystemExit if there is none."""
    if args.device == "cpu" and not memory_limit():
        limit = "a limit of memory (ulimit -d), without which the system kills a process"
        raise SystemExit(
            f"--find-batch-size: expected 0 on cpu, or {limit}, got {args.find_batch_size}"
        )
    attempts = Attempts()
    size = trainer.largest(attempts.fits, args.batch_size, args.find_batch_size)
    attempts.end()
    if not size:
        raise SystemExit(
            f"train_lm.py: --find-batch-size: no size fits: {attempts.reasons[min(attempts.reasons)]}"
        )
    return size


# --- the process beside it ------------------------------------------------------------------------


def attempt_all(
    args: argparse.Namespace,
    shape: Shape,
    layout: Layout,
    me: Identity,
    device: torch.device,
) -> None:
    """Read batch sizes from standard input; print for each whether it fits, until one does not."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=me.rank, world_size=me.world_size, store=FakeStore())
    on_gpu = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).total_memory if on_gpu else memory_limit()
    held_bytes = int(HELD_BACK * total) + (0 if on_gpu else _THREADS_BYTES)
    ballast = torch.empty(held_bytes, dtype=torch.uint8, device=device)
    for line in sys.stdin:
        args.batch_size = int(line)
        try:
            _attempt(args, shape, layout, device)
        except (
            RuntimeError,
            MemoryError,
        ) as error:  # mostly OutOfMemoryError; cuDNN and cuBLAS have their own messages
            print(
                _REPLY + (str(error).strip().split("\n")[0][:200] or type(error).__name__),
                flush=True,
            )
            return
        print(_REPLY + FITS, flush=True)
        _forget(device)
    del ballast


def _attempt(args: argparse.Namespace, shape: Shape, layout: Layout, device: torch.device) -> None:
    """Take steps with new weights. Micro-batches after the second need no more memory."""
    count = min(args.accumulation, 2)
    embedding = embedding_of(
        args, shape, layout
    )  # the run's own, which may have more micro-batches
    args = argparse.Namespace(
        **{**vars(args), "accumulation": count, "batches": 1, "embedding": embedding}
    )
    model = learner(args, shape, layout, device)
    prefer_kernel(args, model, device)
    replica: Any = model.model
    if layout.kind == "ddp":
        # No annotations: DDP compares a hook's with its own types, and here they would be texts.
        replica.register_comm_hook(None, lambda state, bucket: _skip_reduction(bucket))
    tokens, targets = Tokens(args, layout, 0, device)[0]
    for _ in range(_STEPS):
        take_step(model, tokens, targets)
    settle(device)


def _skip_reduction(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return a bucket of gradients unchanged, in place of the sum over ranks, which a fake process
    group does not give DDP.
    """
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _forget(device: torch.device) -> None:
    """Free the memory of an attempt, and what was compiled for its size: after several PyTorch
    would stop compiling.
    """
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()

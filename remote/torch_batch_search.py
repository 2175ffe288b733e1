"""The search of --find-batch-size: the largest batch that all ranks can train with, found by steps that are taken."""

from __future__ import annotations

import argparse
import gc
import json
from typing import Any

import torch
import torch.distributed as dist
import trainer
from torch_images import synthetic
from torch_ranks import settle
from torch_steps import Learner, learner, taken
from trainer import Identity

HELD_BACK = 0.05
"""Share of a GPU's memory that a search for the largest batch leaves free: NCCL and cuDNN may take more in a longer run."""


def attempt(asked: argparse.Namespace, learner: Learner, device: torch.device, batch_size: int) -> str:
    """Take steps of a size without communication; return why that did not work, or nothing. Memory is given back."""
    why = ""
    try:
        images, labels = synthetic(argparse.Namespace(**{**vars(asked), "batch_size": batch_size}), device, 0)
        for _ in range(2):
            taken(learner, learner.parallel.module, images, labels)
        settle(device)
    except RuntimeError as error:  # mostly OutOfMemoryError; cuDNN and cuBLAS have words of their own for it
        why = str(error).strip().split("\n")[0][:200] or type(error).__name__
    images = labels = None  # type: ignore[assignment]
    learner.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return why


def largest_batch(asked: argparse.Namespace, me: Identity, device: torch.device) -> int:
    """Return the largest batch size up to ``asked.find_batch_size`` that all ranks can train with, a part of memory held back.

    Steps of a model of its own, with DDP's buckets and the optimizer's state. Where one rank finds no memory, all hear of it:
    no step that may fail communicates. Raises RuntimeError where nothing fits.
    """
    held = learner(asked, device)
    first = synthetic(asked, device, me.rank)
    for _ in range(3):
        taken(held, held.parallel, *first)  # DDP forms its buckets anew behind the first
    del first
    ballast = torch.empty(
        int(HELD_BACK * torch.cuda.get_device_properties(device).total_memory), dtype=torch.uint8, device=device
    )
    reasons: dict[int, str] = {}

    def fits(batch_size: int) -> bool:
        if asked.compile == "true":
            torch._dynamo.reset()  # each size is compiled anew, and after some PyTorch would go on without
        reasons[batch_size] = attempt(asked, held, device, batch_size)
        failed = torch.tensor([bool(reasons[batch_size])], dtype=torch.int32, device=device)
        dist.all_reduce(failed)
        if me.rank == 0:
            trainer.say(f"tried batch_size={batch_size} ranks_without_room={int(failed)} {reasons[batch_size]}".rstrip())
        return not int(failed)

    found = trainer.largest(fits, asked.batch_size, asked.find_batch_size)
    if not found:
        raise RuntimeError(f"--find-batch-size: no size fits, on rank {me.rank} because of: {reasons}")
    del ballast
    return found


def searched(asked: argparse.Namespace, me: Identity, device: torch.device) -> dict[str, Any]:
    """Look for the largest batch size where that is wanted, and say it; leave memory as it was."""
    if not asked.find_batch_size:
        return {}
    found = {"largest_batch_size": largest_batch(asked, me, device)}
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    if me.rank == 0:
        trainer.say(f"batch_size={found['largest_batch_size']} " + json.dumps({"held_back": HELD_BACK, **found}))
    return found

"""The search of --find-batch-size: the largest batch size that all ranks can train with, found by
taking steps.
"""

from __future__ import annotations

import argparse
import gc
import json
from typing import Any

import torch
import trainer
from torch_images import synthetic
from torch_ranks import all_ranks, settle
from torch_steps import Learner, learner, take_step
from trainer import Identity

HELD_BACK = 0.05
"""Share of a GPU's memory that the search for the largest batch leaves free: NCCL and cuDNN may
take more in a longer run.
"""


def attempt(
    args: argparse.Namespace, learner: Learner, device: torch.device, batch_size: int
) -> str:
    """Take steps of one batch size without communication; return why they failed, or an empty text.
    Frees the memory.
    """
    why = ""
    try:
        images, labels = synthetic(
            argparse.Namespace(**{**vars(args), "batch_size": batch_size}), device, 0
        )
        for _ in range(2):
            take_step(learner, learner.parallel.module, images, labels)
        settle(device)
    except (
        RuntimeError
    ) as error:  # mostly OutOfMemoryError; cuDNN and cuBLAS have their own messages
        why = str(error).strip().split("\n")[0][:200] or type(error).__name__
    images = labels = None  # type: ignore[assignment]
    learner.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return why


def largest_batch(args: argparse.Namespace, me: Identity, device: torch.device) -> int:
    """Return the largest batch size up to ``args.find_batch_size`` that all ranks can train with,
    with some memory held back.

    The steps use a separate model, with DDP's buckets and the optimizer's state. No step that may
    fail communicates; after each the ranks exchange the result, so that all know if one ran out of
    memory. Raises RuntimeError if no size fits.
    """
    held = learner(args, device)
    first = synthetic(args, device, me.rank)
    for _ in range(3):
        take_step(held, held.parallel, *first)  # DDP rebuilds its buckets after the first
    del first
    ballast = torch.empty(
        int(HELD_BACK * torch.cuda.get_device_properties(device).total_memory),
        dtype=torch.uint8,
        device=device,
    )
    reasons: dict[int, str] = {}

    def fits(batch_size: int) -> bool:
        if args.compile:
            torch._dynamo.reset()  # each size is recompiled, and after several PyTorch would continue without compiling
        reasons[batch_size] = attempt(args, held, device, batch_size)
        failed = int(all_ranks(device, bool(reasons[batch_size]), "sum"))
        if me.rank == 0:
            trainer.say(
                f"tried batch_size={batch_size} ranks_without_room={failed} {reasons[batch_size]}".rstrip()
            )
        return not failed

    largest = trainer.largest(fits, args.batch_size, args.find_batch_size)
    if not largest:
        raise RuntimeError(
            f"--find-batch-size: no size fits, on rank {me.rank} because of: {reasons}"
        )
    del ballast
    return largest


def search_batch_size(
    args: argparse.Namespace, me: Identity, device: torch.device
) -> dict[str, Any]:
    """Search for the largest batch size if requested, and print it; leave memory as it was."""
    if not args.find_batch_size:
        return {}
    result = {"largest_batch_size": largest_batch(args, me, device)}
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    if me.rank == 0:
        trainer.say(
            f"batch_size={result['largest_batch_size']} "
            + json.dumps({"held_back": HELD_BACK, **result})
        )
    return result

"""Time the parts of a step after the last one: computation without communication, all-reduces
alone, and both at once.

The result's keys are listed in train_pytorch.py, under the facts that explain a speedup.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from step_timestamps import BESIDE, Stamps, ignore_stamp, time_beside
from torch_packed import buckets
from torch_ranks import all_ranks
from torch_steps import Learner, Replayed, take_step
from trainer import Identity


def solo(
    args: argparse.Namespace,
    learner: Learner,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    device: torch.device,
) -> dict[str, Any]:
    """Take steps without communication; return their seconds. The ranks' models diverge here, so no
    training follows.

    A rank without memory for another set of gradients reports None for these; its earlier
    measurements stay valid.
    """
    stamps = Stamps(device)
    orders = buckets(learner.parallel)[1]
    parameters = [
        parameter for parameter in learner.parallel.parameters() if parameter.requires_grad
    ]
    hooked = [
        parameters[order[-1]].register_post_accumulate_grad_hook(
            lambda _, at=at: stamps(f"bucket {at}")
        )
        for at, order in enumerate(orders)
        if not args.cuda_graphs
        and hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # PyTorch 2.1
    ]

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        take_step(
            learner,
            learner.parallel.module,
            images,
            labels,
            ignore_stamp if args.cuda_graphs else stamps,
        )

    alone: Any = Replayed(step, eager_steps=1) if args.cuda_graphs else step
    try:
        for _ in range(args.solo_steps):
            images, labels = next(data)
            stamps.begin()
            alone(images, labels)
            stamps("end")
    except torch.cuda.OutOfMemoryError:
        stamps.steps.clear()
    for hook in hooked:
        hook.remove()
    return {
        "solo_step_s": stamps.between("start", "end"),
        "solo_forward_s": stamps.between("start", "forward"),
        "solo_backward_s": stamps.between("forward", "backward"),
        "gradient_ready_s": [stamps.between("forward", f"bucket {at}") for at in range(len(hooked))]
        if stamps.steps
        else [],
    }


def parts(
    args: argparse.Namespace,
    learner: Learner,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    device: torch.device,
    me: Identity,
) -> dict[str, Any]:
    """Return the times of this rank's steps without communication, and of all-reduces alone and
    during backward passes.
    """
    wire = torch.float16 if args.compress == "fp16" else torch.float32
    overlapping = me.world_size > 1 and args.solo_steps > 0 and not args.cuda_graphs
    try:
        # Allocated before the solo steps: if those still fit, the steps during all-reduces fit too.
        sizes = buckets(learner.parallel)[0] if overlapping else []
        buffers = [torch.zeros(size // 4, dtype=wire, device=device) for size in sizes]
    except torch.cuda.OutOfMemoryError:
        buffers = []
    times = {**solo(args, learner, data, device), **dict.fromkeys(BESIDE)}
    if not overlapping or not all_ranks(
        device, bool(buffers) and times["solo_step_s"] is not None, "min"
    ):
        return times
    stamps = Stamps(device)

    def take(_: int, stamp: Callable[[str], None]) -> None:
        def both(name: str) -> None:
            stamps(name)
            stamp(name)

        images, labels = next(data)
        stamps.begin()
        take_step(learner, learner.parallel.module, images, labels, both)

    reduce = [partial(dist.all_reduce, buffer, async_op=True) for buffer in buffers]
    return {**times, **time_beside(reduce, stamps, args.solo_steps, take)}

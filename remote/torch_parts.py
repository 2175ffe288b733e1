"""Parts of a step, measured after the last one: computation without communication, all-reduces alone, and both at once.

train_pytorch.py lists what comes of it, under "what explains a speedup".
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch_packed import buckets
from torch_steps import Learner, Replayed, taken, unheard
from trainer import Identity


class Stamps:
    """Moments of steps, each by the name of what it is the end of: on the device's own clock, or on the host's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.steps: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Begin a step, whose first moment is `start`."""
        self.steps.append({})
        self("start")

    def __call__(self, name: str) -> None:
        """Note a moment."""
        if self.device.type == "cpu":
            self.steps[-1][name] = time.monotonic()
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.steps[-1][name] = event

    def reduced(self, buffers: list[torch.Tensor], aside: Any) -> Callable[[], Any]:
        """All-reduce the buffers and note the end as `reduced`; return what waits for it.

        ``aside``: a stream that nothing else uses. On a CPU the end is noted by the thread that comes to it.
        """
        works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
        if self.device.type == "cuda":
            with torch.cuda.stream(aside):
                for work in works:
                    work.wait()  # the stream waits, not the host
                self("reduced")
            return lambda: torch.cuda.current_stream().wait_stream(aside)
        futures = [work.get_future().then(lambda _: self("reduced")) for work in works]
        return torch.futures.collect_all(futures).wait

    def between(self, start: str, end: str) -> float | None:
        """Return the median seconds of the later half of the steps. None where a moment was not noted."""
        later = self.steps[len(self.steps) // 2 :]
        if not later or not all(start in step and end in step for step in later):
            return None
        if self.device.type == "cpu":
            return round(median(step[end] - step[start] for step in later), 9)
        torch.cuda.synchronize(self.device)
        return round(median(step[start].elapsed_time(step[end]) for step in later) / 1000.0, 9)


def solo(
    asked: argparse.Namespace, learner: Learner, data: Iterator[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> dict[str, Any]:
    """Take steps without communication; return their seconds. The ranks' models part here, so nothing is trained after it.

    Without room for another set of gradients a rank has no such numbers; what the run measured before stands.
    """
    stamps = Stamps(device)
    orders = buckets(learner.parallel)[1]
    parameters = [parameter for parameter in learner.parallel.parameters() if parameter.requires_grad]
    hooked = [
        parameters[order[-1]].register_post_accumulate_grad_hook(lambda _, at=at: stamps(f"bucket {at}"))
        for at, order in enumerate(orders)
        if asked.cuda_graphs == "false" and hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # PyTorch 2.1
    ]

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        taken(learner, learner.parallel.module, images, labels, unheard if asked.cuda_graphs == "true" else stamps)

    alone: Any = Replayed(step, eager_steps=1) if asked.cuda_graphs == "true" else step
    try:
        for _ in range(asked.solo_steps):
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
        "gradient_ready_s": [stamps.between("forward", f"bucket {at}") for at in range(len(hooked))] if stamps.steps else [],
    }


def beside(
    asked: argparse.Namespace, learner: Learner, data: Iterator[tuple[torch.Tensor, torch.Tensor]], buffers: list[torch.Tensor]
) -> dict[str, Any]:
    """All-reduce the buffers, alone and then beside backward passes that neither feed them nor wait; return the seconds."""
    device = buffers[0].device
    aside = torch.cuda.Stream(device) if device.type == "cuda" else None
    alone, both = Stamps(device), Stamps(device)
    for _ in range(asked.solo_steps):
        alone.begin()
        alone.reduced(buffers, aside)()
    ends: list[Callable[[], Any]] = []

    def stamp(name: str) -> None:
        both(name)
        if name == "forward":
            ends.append(both.reduced(buffers, aside))
        else:
            ends.pop()()

    for _ in range(asked.solo_steps):
        images, labels = next(data)
        both.begin()
        taken(learner, learner.parallel.module, images, labels, stamp)
    return {
        "solo_reduce_s": alone.between("start", "reduced"),
        "beside_forward_s": both.between("start", "forward"),
        "beside_backward_s": both.between("forward", "backward"),
        "beside_reduce_s": both.between("forward", "reduced"),
    }


def parts(
    asked: argparse.Namespace,
    learner: Learner,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    device: torch.device,
    me: Identity,
) -> dict[str, Any]:
    """Return what steps without communication, and all-reduces without and beside them, take on this rank."""
    wire = torch.float16 if asked.compress == "fp16" else torch.float32
    wanted = me.world_size > 1 and asked.solo_steps > 0 and asked.cuda_graphs == "false"
    try:
        # Before the steps: where these find room, those beside all-reduces will.
        buffers = [torch.zeros(size // 4, dtype=wire, device=device) for size in buckets(learner.parallel)[0]] if wanted else []
    except torch.cuda.OutOfMemoryError:
        buffers = []
    found = solo(asked, learner, data, device)
    found.update(dict.fromkeys(("solo_reduce_s", "beside_forward_s", "beside_backward_s", "beside_reduce_s")))
    if not wanted:
        return found
    ready = torch.tensor([bool(buffers) and found["solo_step_s"] is not None], dtype=torch.int32, device=device)
    dist.all_reduce(ready)
    return {**found, **beside(asked, learner, data, buffers)} if int(ready) == me.world_size else found

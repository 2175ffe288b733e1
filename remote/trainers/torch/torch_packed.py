"""DDP's buckets as it reports them, and `Packed`, which averages gradients in these buckets with
its own kernels and streams.

It replaces DDP's reducer in the steps of --reduce packed and --cuda-graphs, and is off otherwise.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def buckets(parallel: DistributedDataParallel) -> tuple[list[int], list[list[int]]]:
    """Return the bytes of DDP's buckets in order of reduction, and the parameters of each in the
    order of their gradients.

    DDP rebuilds its buckets by the order in which gradients became ready in the first backward
    pass, and reports them some steps later; a shorter run has the initial ones, and no order.
    """
    logged = parallel._get_ddp_logging_data()
    sizes = logged.get("rebuilt_bucket_sizes", "") or logged.get("bucket_sizes", "")
    orders = logged.get("rebuilt_per_bucket_param_indices", "")
    parameters = [list(map(int, order.split())) for order in orders.split(",") if order.strip()]
    return [int(size) for size in sizes.split(",") if size.strip()], parameters


class Packed:
    """A model whose gradients are averaged as by DDP and in its buckets, but with fewer kernels and
    without delaying others.

    DDP copies each gradient with a kernel of its own, on the stream that computes the next
    gradient: for ResNet-50 161 of a few microseconds each. Here all gradients of a bucket are
    copied at once, on another stream, as soon as the last is ready.
    """

    def __init__(self, parallel: DistributedDataParallel) -> None:
        parameters = [parameter for parameter in parallel.parameters() if parameter.requires_grad]
        self.model = parallel.module
        self.buckets = [[parameters[index] for index in order] for order in buckets(parallel)[1]]
        if sum(map(len, self.buckets)) != len(parameters):
            raise RuntimeError(
                f"expected DDP to report the parameters of its buckets, PyTorch {torch.__version__} does not"
            )
        self.aside = torch.cuda.Stream(parameters[0].device) if parameters[0].is_cuda else None
        self.flat_buffers: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        self.missing: list[
            int
        ] = []  # gradients still to come, by bucket; empty outside this model's backward passes
        self.copied: list[torch.Tensor] = []
        self.works: list[Any] = []
        for at, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, at=at: self._ready(at))

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return the model's output; the next backward pass reduces."""
        self.missing = [len(bucket) for bucket in self.buckets]
        return self.model(images, labels)

    def finish(self) -> None:
        """Make the device, on a CPU the host, wait until the gradients are averages. Raises
        RuntimeError if any is missing.
        """
        if len(self.works) != len(self.buckets):
            raise RuntimeError(
                f"expected gradients of {len(self.buckets)} whole buckets, got {len(self.works)}"
            )
        for work, (flat, _) in zip(self.works, self.flat_buffers):
            work.wait()
            if not self.aside:
                flat.div_(dist.get_world_size())
        if self.aside:
            torch.cuda.current_stream().wait_stream(self.aside)
        self.missing, self.copied, self.works = [], [], []

    def _ready(self, at: int) -> None:
        if not self.missing:
            return
        self.missing[at] -= 1
        while (
            len(self.works) < len(self.buckets) and not self.missing[len(self.works)]
        ):  # in the same order on all ranks
            self._reduce(self.buckets[len(self.works)])

    def _reduce(self, bucket: list[Any]) -> None:
        gradients = [parameter.grad for parameter in bucket]
        if len(self.flat_buffers) == len(self.works):
            self.flat_buffers.append(flat_buffer(gradients))
        flat, views = self.flat_buffers[len(self.works)]
        self.copied += gradients  # kept until the device has waited: otherwise their memory could be reused before it is read
        if self.aside:
            self.aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.aside):
            torch._foreach_copy_(views, gradients)
            # gloo has no average.
            self.works.append(
                dist.all_reduce(
                    flat, dist.ReduceOp.AVG if self.aside else dist.ReduceOp.SUM, async_op=True
                )
            )
        for parameter, view in zip(bucket, views):
            parameter.grad = view


def flat_buffer(gradients: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a buffer for all gradients one after another, and a view of it for each gradient, in
    that gradient's layout.
    """
    sizes = [gradient.numel() for gradient in gradients]
    flat = torch.empty(sum(sizes), dtype=gradients[0].dtype, device=gradients[0].device)
    starts = accumulate(sizes, initial=0)
    layouts = [(gradient.size(), torch.empty_like(gradient).stride()) for gradient in gradients]
    return flat, [flat.as_strided(*layout, start) for layout, start in zip(layouts, starts)]

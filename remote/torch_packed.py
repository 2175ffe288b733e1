"""What DDP tells of its buckets, and `Packed`: gradients averaged in the same buckets by kernels and streams of our own.

It takes the place of DDP's reducer in the steps of --reduce packed and --cuda-graphs, and is off without them.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def buckets(parallel: DistributedDataParallel) -> tuple[list[int], list[list[int]]]:
    """Return the bytes of DDP's buckets in order of reduction, and the parameters of each as their gradients came.

    DDP forms them anew by the order in which gradients came in the first backward pass, and tells of it some steps later;
    a shorter run has those it began with, and no order.
    """
    told = parallel._get_ddp_logging_data()
    sizes = told.get("rebuilt_bucket_sizes", "") or told.get("bucket_sizes", "")
    orders = told.get("rebuilt_per_bucket_param_indices", "")
    parameters = [list(map(int, order.split())) for order in orders.split(",") if order.strip()]
    return [int(size) for size in sizes.split(",") if size.strip()], parameters


class Packed:
    """A model whose gradients are averaged as by DDP and in its buckets, with fewer kernels and none in the way.

    DDP copies each gradient by a kernel of its own, on the stream that computes the next one: for ResNet-50 161 of some
    microseconds each. Here all gradients of a bucket are copied at once, on another stream, as soon as the last is there.
    """

    def __init__(self, parallel: DistributedDataParallel) -> None:
        parameters = [parameter for parameter in parallel.parameters() if parameter.requires_grad]
        self.model = parallel.module
        self.buckets = [[parameters[which] for which in order] for order in buckets(parallel)[1]]
        if sum(map(len, self.buckets)) != len(parameters):
            raise RuntimeError(f"expected DDP to tell what its buckets hold, PyTorch {torch.__version__} tells nothing")
        self.aside = torch.cuda.Stream(parameters[0].device) if parameters[0].is_cuda else None
        self.rooms: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        self.missing: list[int] = []  # gradients, by bucket; empty outside a backward pass of ours
        self.copied: list[torch.Tensor] = []
        self.works: list[Any] = []
        for at, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, at=at: self._came(at))

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return what the model returns; the next backward pass reduces."""
        self.missing = [len(bucket) for bucket in self.buckets]
        return self.model(images, labels)

    def done(self) -> None:
        """Let the device, or on a CPU the host, wait for the averages, which the gradients then are. Raises RuntimeError."""
        if len(self.works) != len(self.buckets):
            raise RuntimeError(f"expected gradients of {len(self.buckets)} whole buckets, got {len(self.works)}")
        for work, (flat, _) in zip(self.works, self.rooms):
            work.wait()
            if not self.aside:
                flat.div_(dist.get_world_size())
        if self.aside:
            torch.cuda.current_stream().wait_stream(self.aside)
        self.missing, self.copied, self.works = [], [], []

    def _came(self, at: int) -> None:
        if not self.missing:
            return
        self.missing[at] -= 1
        while len(self.works) < len(self.buckets) and not self.missing[len(self.works)]:  # in the same order on all ranks
            self._reduce(self.buckets[len(self.works)])

    def _reduce(self, bucket: list[Any]) -> None:
        gradients = [parameter.grad for parameter in bucket]
        if len(self.rooms) == len(self.works):
            self.rooms.append(room_for(gradients))
        flat, views = self.rooms[len(self.works)]
        self.copied += gradients  # kept until the device has waited, or their memory could be written to before it is read
        if self.aside:
            self.aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.aside):
            torch._foreach_copy_(views, gradients)
            # gloo knows no average.
            self.works.append(dist.all_reduce(flat, dist.ReduceOp.AVG if self.aside else dist.ReduceOp.SUM, async_op=True))
        for parameter, view in zip(bucket, views):
            parameter.grad = view


def room_for(gradients: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return room for gradients one after another, and the part of each, laid out as it is."""
    flat = torch.empty(sum(one.numel() for one in gradients), dtype=gradients[0].dtype, device=gradients[0].device)
    starts = accumulate((one.numel() for one in gradients), initial=0)
    return flat, [flat.as_strided(one.size(), torch.empty_like(one).stride(), at) for one, at in zip(gradients, starts)]

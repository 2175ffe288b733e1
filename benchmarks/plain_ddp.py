"""ResNet-50 under DistributedDataParallel as a careful engineer writes it, in a loop of a few
lines; see plain_ddp_ratio.py.

    torchrun --standalone --nproc_per_node 8 benchmarks/plain_ddp.py --dtype fp16 --batch-size 256 [--compile default]

Synthetic images that stay on the device in the type of the first layer, channels-last, cuDNN's
search for kernels, autocast, fused SGD, gradients that live in DDP's buckets, a static graph unless
compiled, no synchronised buffers, nothing in the loop that waits for the device; one rank trains
without DDP. --compile takes a mode of torch.compile, or tuned, see TUNED; reduce-overhead replays
CUDA graphs. The network is the one of orch's trainer, so only the code around it differs.

Rank 0 prints the images/s of all ranks together between two moments at which the device was idle,
the first and the last loss, and how many graphs torch.compile saw: one, which DDP cuts by its
buckets. The exit status is 1 unless the loss fell: at its power limit, a GPU is faster on values
that are no numbers. For the same reason the scale of the loss starts at 1024. With PyTorch's
default of 65536 the first step overflows, and fused SGD of PyTorch 2.11 and 2.13 then leaves its
momentum uninitialised.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.utils
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "remote" / "trainers" / "torch"))

from torch_models import HALF_TYPES, initialise, resnet50

MODES = [
    "none",
    "default",
    "reduce-overhead",
    "tuned",
    "max-autotune-no-cudagraphs",
    "max-autotune",
]
TUNED = {
    "triton.cudagraphs": True,
    "coordinate_descent_tuning": True,
    "max_autotune_pointwise": True,
}
"""Options of torch.compile: reduce-overhead, and a search for each of the kernels that it
generates. The first search takes five minutes for two ranks on H200 and 64 cores, and more than
three for one rank on 16 cores; that of max-autotune, which also tries convolutions of its own, more
than seven."""


class Network(nn.Module):
    """ResNet-50, with a forward pass of its own.

    torch.compile skips nn.Sequential's, compiles each block by itself, and leaves blocks after the
    eighth size to the interpreter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = resnet50(1000)
        initialise(self.layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of (batch, 3, size, size)."""
        scores: torch.Tensor = self.layers(images)
        return scores


def main() -> None:
    """Train, and print images/s."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp16")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--compile", choices=MODES, default="none", nargs="?", const="default")
    asked = parser.parse_args()
    cuda = asked.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = (
            asked.dtype != "fp32"
        )
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", **({"device_id": device} if cuda else {}))
    layout = torch.channels_last if cuda and asked.dtype != "fp32" else torch.contiguous_format
    half = HALF_TYPES.get(asked.dtype)
    torch.manual_seed(0)
    model: Any = Network().to(device, memory_format=layout)
    if dist.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device.index] if cuda else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=asked.compile == "none",
        )
    if asked.compile == "tuned":
        model = torch.compile(model, options=TUNED)
    elif asked.compile != "none":
        model = torch.compile(model, mode=asked.compile)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-5, fused=True
    )
    scaler = torch.amp.GradScaler(
        asked.device, init_scale=1024.0 if cuda else 8.0, enabled=asked.dtype == "fp16"
    )
    torch.manual_seed(1 + dist.get_rank())
    images = torch.randn(
        asked.batch_size, 3, asked.image_size, asked.image_size, device=device, dtype=half
    )
    images = images.contiguous(memory_format=layout)
    labels = torch.randint(1000, (asked.batch_size,), device=device)
    began, first = 0.0, torch.zeros(())
    for step in range(asked.steps):
        if step == asked.warmup_steps:
            began = idle(cuda)
        with torch.autocast(asked.device, dtype=half) if half else nullcontext():
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 0:
            first = loss.detach().clone()
    seconds, last = idle(cuda) - began, loss.detach()
    if dist.get_rank() == 0:
        measured = asked.steps - asked.warmup_steps
        print(f"images/s: {asked.batch_size * dist.get_world_size() * measured / seconds:.2f}")
        print(f"loss: {float(first):.4f} to {float(last):.4f}")
        print(
            f"compiled graphs: {torch._dynamo.utils.counters['stats']['unique_graphs']}", flush=True
        )
    dist.destroy_process_group()
    if not float(last) < float(first):
        sys.exit(
            f"expected a loss below {float(first):.4f}, got {float(last):.4f}: nothing was trained"
        )


def idle(cuda: bool) -> float:
    """Wait until the device is idle; return the clock in seconds."""
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()

"""ResNet-50 under DistributedDataParallel as a careful engineer writes it, in a loop of a few lines; see plain_ddp_ratio.py.

    torchrun --standalone --nproc_per_node 8 benchmarks/plain_ddp.py --dtype fp16 --batch-size 256 [--compile]

Synthetic images that stay on the device, channels-last, cuDNN's search for kernels, autocast and a loss scaler; everything
else is PyTorch's default. The network is that of orch's trainer, so that only the code around it differs. Rank 0 prints the
images/s of all ranks together between two moments at which the device was idle.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "remote"))

from torch_models import HALF_TYPES, resnet50


def main() -> None:
    """Train, and print images/s."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp16")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    cuda = asked.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = asked.dtype == "tf32"
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    layout = torch.channels_last if cuda and asked.dtype != "fp32" else torch.contiguous_format
    network: Any = resnet50(1000).to(device, memory_format=layout)
    model = nn.parallel.DistributedDataParallel(
        torch.compile(network) if asked.compile else network, device_ids=[device.index] if cuda else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-5)
    scaler = torch.amp.GradScaler(asked.device, enabled=asked.dtype == "fp16")
    half = HALF_TYPES.get(asked.dtype)
    images = torch.randn(asked.batch_size, 3, asked.image_size, asked.image_size, device=device).contiguous(
        memory_format=layout
    )
    labels = torch.randint(1000, (asked.batch_size,), device=device)
    began = 0.0
    for step in range(asked.steps):
        if step == asked.warmup_steps:
            began = idle(cuda)
        with torch.autocast(asked.device, dtype=half, enabled=half is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    seconds = idle(cuda) - began
    if dist.get_rank() == 0:
        measured = asked.steps - asked.warmup_steps
        print(f"images/s: {asked.batch_size * dist.get_world_size() * measured / seconds:.2f}", flush=True)
    dist.destroy_process_group()


def idle(cuda: bool) -> float:
    """Wait until the device is idle; return the clock in seconds."""
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()

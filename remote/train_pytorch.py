"""Train ResNet-50 v1.5 or VGG16 with DistributedDataParallel, and print one line per step.

Needs PyTorch 1.13 or newer and Python 3.8 or newer, with synthetic images nothing else. What it shares with its like is in
trainer.py and torchranks.py beside this file. One process per device; who it is, it reads from the environment (RANK,
LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which torchrun sets:

    torchrun --standalone --nproc_per_node 8 train_pytorch.py --model resnet50 --device cuda --dtype fp16 --batch-size 256
    torchrun --nnodes 4 --nproc_per_node 8 --node_rank 0 --master_addr 10.11.0.2 --master_port 29500 train_pytorch.py ...

Every rank prints one `orch rank=` line; rank 0 prints one `orch step=` line for each step and `orch done {json}` at the end.
Synthetic images are made once, on the device, in the type the first layer computes in: no loader and no copy is part of a
step. The other loaders read image folders, see loaders.py beside this file: `native` is torch's DataLoader over Pillow, whose
pixels travel as bytes and are normalised on the device; `dali-cpu` and `dali-gpu` are NVIDIA DALI. Waiting for them is part of
a step.
"""

from __future__ import annotations

import argparse
import inspect
import os
import socket
import sys
import time
from collections import deque
from contextlib import nullcontext
from itertools import repeat
from typing import Any, Iterator

import torch
import torch.distributed as dist
import trainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchranks import device_name, gather, identity, join, memory_bytes, prove_world, versions
from trainer import Identity, Step

HALF_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


# --- models ---------------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut. Version 1.5: the stride is in the 3x3; version 1 had it in the first 1x1."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != 4 * width:
            project = nn.Conv2d(channels_in, 4 * width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, at 1/stride of the size."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnet50(num_classes: int) -> nn.Sequential:
    """ResNet-50 v1.5: 25,557,032 parameters at 1000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, first_stride if block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def vgg16(num_classes: int) -> nn.Sequential:
    """VGG16 without BatchNorm: 138,357,544 parameters at 1000 classes, at any image size of 32 or more."""
    layers: list[nn.Module] = []
    channels = 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    layers += [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, num_classes)]
    return nn.Sequential(*layers)


MODELS = {"resnet50": resnet50, "vgg16": vgg16}


def initialise(model: nn.Module) -> None:
    """Draw weights as the papers do, so that the loss stays a number: He for convolutions, small normal for the head."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)


# --- what is asked for, and who asks --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = trainer.options(MODELS)
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp32", help="fp16 and bf16: autocast")
    parser.add_argument("--channels-last", choices=["auto", "on", "off"], default="auto", help="auto: on cuda, but for fp32")
    parser.add_argument("--compile", default="false", help="torch.compile, PyTorch 2.0 or newer", **trainer.SWITCH)
    parser.add_argument("--cudnn-benchmark", default="true", help="let cuDNN search for the fastest kernels", **trainer.SWITCH)
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl on cuda, gloo on cpu")
    parser.add_argument("--bucket-cap-mb", type=int, default=25, help="MiB of gradients reduced at once")
    parser.add_argument("--compress", choices=["none", "fp16"], default="none", help="type of gradients on the wire")
    parser.add_argument("--loader", choices=["synthetic", "native", "dali-cpu", "dali-gpu"], default="synthetic")
    parser.add_argument("--data-dir", default="", help="where class folders of JPEG files lie, in train/ or directly")
    parser.add_argument("--workers", type=int, default=4, help="processes, with DALI threads, that load for one rank")
    parser.add_argument("--threads", type=int, default=1, help="threads of one rank on cpu")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest wait for other ranks, at start and in a step")
    return trainer.parsed(parser, unusable)


def unusable(asked: argparse.Namespace) -> str:
    """Return why these arguments cannot be run, or nothing."""
    counts = ("batch_size", "steps", "num_classes", "bucket_cap_mb", "threads", "workers")
    if problem := trainer.unusable_values(asked, counts):
        return problem
    if asked.device == "cuda" and not torch.cuda.is_available():
        return f"--device: expected a usable GPU, PyTorch {torch.__version__} finds none"
    if asked.device == "cpu" and asked.backend == "nccl":
        return "--backend: expected gloo on cpu, got nccl"
    if problem := trainer.unusable_loader(asked):
        return problem
    if asked.loader != "synthetic":
        import loaders

        if loaders.lacking(asked.loader):
            return str(loaders.lacking(asked.loader))
    if asked.compile == "true" and not hasattr(torch, "compile"):
        return f"--compile: expected PyTorch 2.0 or newer, got {torch.__version__}"
    return ""


def claim_device(asked: argparse.Namespace, local_rank: int) -> torch.device:
    """Take this rank's device and set the arithmetic of its matrix units."""
    if asked.device == "cpu":
        torch.set_num_threads(asked.threads)
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise SystemExit(f"LOCAL_RANK: expected below the {torch.cuda.device_count()} visible GPUs, got {local_rank}")
    torch.cuda.set_device(local_rank)
    # Both are set, always: cuDNN's default is TF32 on, so that "fp32" would silently be TF32 in every convolution.
    torch.backends.cuda.matmul.allow_tf32 = asked.dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = asked.dtype == "tf32"
    torch.backends.cudnn.benchmark = asked.cudnn_benchmark == "true"
    return torch.device("cuda", local_rank)


# --- one step -------------------------------------------------------------------------------------------------------------


def arithmetic(asked: argparse.Namespace, device: torch.device) -> tuple[Any, Any]:
    """Return the context of the forward pass and the loss scaler. Raises SystemExit where PyTorch lacks the type."""
    if asked.dtype not in HALF_TYPES:
        return nullcontext(), None
    half = HALF_TYPES[asked.dtype]
    context = torch.autocast(device.type, dtype=half)
    try:
        with context:
            # Some versions without fp16 on cpu refuse it here, some only warn and go on in fp32.
            computed = (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).dtype
    except RuntimeError:
        computed = torch.float32
    if computed != half:
        raise SystemExit(f"--dtype: PyTorch {torch.__version__} computes no {asked.dtype} on {device.type}")
    if asked.dtype != "fp16":
        return context, None
    newer = getattr(torch.amp, "GradScaler", None)  # PyTorch 2.3; before, there was one for CUDA only
    if newer is None:
        return context, torch.cuda.amp.GradScaler(init_scale=asked.loss_scale)
    return context, newer(device.type, init_scale=asked.loss_scale)


def sgd(asked: argparse.Namespace, model: nn.Module) -> tuple[torch.optim.Optimizer, str]:
    """Return the fastest SGD this PyTorch has, and its kind.

    A fused one also checks for overflow on the device, so that the loss scaler never waits for it.
    """
    options: dict[str, Any] = {"lr": asked.learning_rate, "momentum": asked.momentum, "weight_decay": asked.weight_decay}
    for kind in ("fused", "foreach"):
        try:
            return torch.optim.SGD(model.parameters(), **{kind: True}, **options), kind
        except (TypeError, RuntimeError):
            continue  # unknown to this version, or not for this device
    return torch.optim.SGD(model.parameters(), **options), "plain"


def replica(asked: argparse.Namespace, device: torch.device, layout: torch.memory_format) -> DistributedDataParallel:
    """Return the model on its device, made alike on all ranks, with gradients averaged over them."""
    torch.manual_seed(asked.seed)
    model: Any = MODELS[asked.model](asked.num_classes)
    initialise(model)
    model.to(device, memory_format=layout)
    # Statistics of BatchNorm stay each rank's own. PyTorch 2.13 renamed the switch.
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    buffers: dict[str, Any] = {"forward_sync_buffers" if newer else "broadcast_buffers": False}
    parallel = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        **buffers,
        bucket_cap_mb=asked.bucket_cap_mb,
        gradient_as_bucket_view=True,
        static_graph=asked.compile == "false",  # PyTorch 2.0 and 2.1 fail with both
    )
    if asked.compress == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        parallel.register_comm_hook(None, fp16_compress_hook)
    return parallel


def synthetic(
    asked: argparse.Namespace, device: torch.device, layout: torch.memory_format, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels that never change, other ones on each rank."""
    torch.manual_seed(asked.seed + 1 + rank)
    images = torch.randn(asked.batch_size, 3, asked.image_size, asked.image_size, device=device)
    labels = torch.randint(asked.num_classes, (asked.batch_size,), device=device)
    return images.to(HALF_TYPES.get(asked.dtype, torch.float32)).contiguous(memory_format=layout), labels


# --- images from disk -----------------------------------------------------------------------------------------------------


class Folder(torch.utils.data.Dataset):
    """Image files as tensors of bytes, height x width x 3, by `Draw`."""

    def __init__(self, files: list[tuple[str, int]], size: int) -> None:
        self.files, self.size = files, size

    def __getitem__(self, draw: Any) -> tuple[torch.Tensor, int]:
        """Return pixels and label."""
        import loaders

        path, label = self.files[draw.index]
        pixels = torch.frombuffer(bytearray(loaders.decoded(path, self.size, draw.seed)), dtype=torch.uint8)
        return pixels.view(self.size, self.size, 3), label


def native(asked: argparse.Namespace, device: torch.device, me: Identity) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of torch's own DataLoader, normalised on the device."""
    import loaders

    files = loaders.image_files(asked.data_dir, asked.num_classes)
    source = torch.utils.data.DataLoader(
        Folder(files, asked.image_size),
        batch_sampler=loaders.Batches(len(files), asked.batch_size, me.rank, me.world_size, asked.seed),
        num_workers=asked.workers,
        pin_memory=device.type == "cuda",
    )
    mean, deviation = (torch.tensor(each, device=device).view(3, 1, 1) for each in (loaders.MEAN, loaders.DEVIATION))
    for pixels, labels in source:
        images = pixels.to(device, non_blocking=True).permute(0, 3, 1, 2)
        yield (images - mean) / deviation, labels.to(device, non_blocking=True)


def dali(asked: argparse.Namespace, device: torch.device, me: Identity) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of NVIDIA DALI."""
    import loaders
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    loaders.image_files(asked.data_dir, asked.num_classes)  # says what is wrong with the folder in our words
    share = loaders.Share(asked.data_dir, asked.batch_size, asked.image_size, asked.workers, asked.seed, me.rank, me.world_size)
    pipeline = loaders.dali_pipeline(share, asked.loader == "dali-gpu", device.index)
    source = DALIGenericIterator(
        [pipeline], ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.FILL, auto_reset=True
    )
    while True:
        for (batch,) in source:
            labels = batch["labels"].squeeze(-1).to(device, torch.long, non_blocking=True)
            yield batch["images"].to(device, non_blocking=True), labels


def batches(
    asked: argparse.Namespace, device: torch.device, layout: torch.memory_format, me: Identity
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's images, in the type and layout of the first layer, and labels, without end."""
    if asked.loader == "synthetic":
        yield from repeat(synthetic(asked, device, layout, me.rank))
    half = HALF_TYPES.get(asked.dtype, torch.float32)
    for images, labels in {"native": native}.get(asked.loader, dali)(asked, device, me):
        yield images.to(half).contiguous(memory_format=layout), labels


# --- time -----------------------------------------------------------------------------------------------------------------


class DeviceClock:
    """Time of steps on a GPU, by events, so that the queue of the device never runs empty for the sake of a line.

    Behind step k the host waits for step k-2. `t` is the host's clock at one synchronised moment plus the device's own
    time since then. The loss travels behind its step into pinned memory: `.item()` would wait for all that is queued.
    """

    def __init__(self, steps: int) -> None:
        self.losses = torch.zeros(steps + 1, pin_memory=True)
        self.queued: deque[tuple[int, torch.cuda.Event]] = deque()

    def start(self) -> float:
        """Wait until the device is idle; return the monotonic clock."""
        torch.cuda.synchronize()
        self.last = torch.cuda.Event(enable_timing=True)
        self.last.record()
        self.last.synchronize()
        self.t = time.monotonic()
        return self.t

    def mark(self, number: int, loss: torch.Tensor) -> list[Step]:
        """Note the end of a step, to come; return the steps that are over by now."""
        self.losses[number].copy_(loss, non_blocking=True)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.queued.append((number, event))
        return [self._oldest()] if len(self.queued) > 2 else []

    def rest(self) -> list[Step]:
        """Wait for the device; return the steps not yet returned."""
        return [self._oldest() for _ in range(len(self.queued))]

    def _oldest(self) -> Step:
        number, event = self.queued.popleft()
        event.synchronize()
        seconds = self.last.elapsed_time(event) / 1000.0
        self.last, self.t = event, self.t + seconds
        return Step(number, self.t, seconds, float(self.losses[number]))


# --- what is said ---------------------------------------------------------------------------------------------------------


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def train(asked: argparse.Namespace, me: Identity, device: torch.device, forward: Any, scaler: Any) -> dict[str, Any]:
    """Take all steps, rank 0 printing them; return what was found out on the way."""
    channels_last = {"on": True, "off": False, "auto": device.type == "cuda" and asked.dtype != "fp32"}[asked.channels_last]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    parallel = replica(asked, device, layout)
    model: Any = torch.compile(parallel) if asked.compile == "true" else parallel
    optimizer, kind = sgd(asked, parallel)
    data = batches(asked, device, layout, me)
    samples = asked.batch_size * me.world_size
    clock = DeviceClock(asked.steps) if device.type == "cuda" else trainer.HostClock()

    prove_world(me, device)  # also the barrier before the first step: from here on, all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start)
    for number in range(1, asked.steps + 1):
        images, labels = next(data)
        with forward:
            output = model(images)
            loss = cross_entropy(output, labels, label_smoothing=asked.label_smoothing)
        optimizer.zero_grad(set_to_none=True)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        finished = clock.mark(number, loss.detach())
        if me.rank == 0:
            trainer.say_steps(finished, samples)
    finished = clock.rest()
    if me.rank == 0:
        trainer.say_steps(finished, samples)

    parameters = sum(p.numel() for p in parallel.parameters())
    return {
        "parameters": parameters,
        "gradient_bytes": parameters * (2 if asked.compress == "fp16" else 4),
        "channels_last": channels_last,
        "optimizer": f"sgd {kind}",
        "output_dtype": str(output.dtype).split(".")[-1],
        "loss_scale": float(scaler.get_scale()) if scaler else None,
    }


def main() -> None:
    """Join, train, prove, report."""
    asked = arguments()
    me = identity()
    device = claim_device(asked, me.local_rank)
    forward, scaler = arithmetic(asked, device)
    backend = join(asked, device)
    name, host = device_name(device), socket.gethostname()
    trainer.say_rank(*me, host, name)
    found = train(asked, me, device, forward, scaler)
    prove_world(me, device)
    ranks = gather({"rank": me.rank, "host": host, "device": name, "memory_bytes": memory_bytes(device)}, device, me.world_size)
    if me.rank == 0:
        found = {"backend": backend, **versions(), **found}
        trainer.say_done(trainer.closing(asked, ranks, found, switches=("compile", "cudnn_benchmark")))
    if backend == "nccl":
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
        # No orderly teardown of gloo: with 2.13 a rank whose peer had already left ended in "terminate called without an
        # active exception", a SIGABRT after a run that was complete and proven.
        os._exit(0)
    except Exception:
        trainer.leave_at_once()

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

The last line also holds what explains a speedup, each of it measured and none derived from the speed:

    input_wait_s            for each rank: seconds of the window between the end of a step and the next one's images being there
    gradient_buckets_bytes  what is all-reduced at once, in order, in bytes of gradient_dtype
    solo_step_s             for each rank: a step without communication, after the last step, while all ranks do the same
    solo_forward_s          of it: network and loss; solo_backward_s: the gradients
    gradient_ready_s        on rank 0: when each bucket was complete, counted from the start of such a backward pass
    solo_reduce_s           for each rank: all-reduces of all buckets, and nothing else
    beside_reduce_s         the same begun together with a backward pass that does not wait for them
    beside_backward_s       that backward pass; beside_forward_s: the forward pass before it

From solo_step_s on these are medians of the later half of --solo-steps, null where there were none: the last four on one rank,
and all but solo_step_s where a step is one CUDA graph, which cannot be looked into.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import time
from collections import deque
from contextlib import nullcontext
from itertools import accumulate, repeat
from statistics import median
from typing import Any, Callable, Iterator, NamedTuple

import torch
import torch.distributed as dist
import trainer
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torchranks import claim, identity, join, leave_after, memory_bytes, prove_world, settle
from trainer import Identity, Step

HALF_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
COMPILE_OPTIONS: dict[str, dict[str, bool]] = {
    "default": {},
    "tuned": {"coordinate_descent_tuning": True, "max_autotune_pointwise": True},
    "max-autotune": {"coordinate_descent_tuning": True, "max_autotune": True},
}
"""What each value of --compile-level asks of inductor."""
DDP_STEPS = 11
"""Steps that DDP reduces in any case: it times ten by events, which no capture allows, and tells of its buckets behind."""
EAGER_STEPS = DDP_STEPS + 1
"""Steps before a step is captured as a CUDA graph."""
HELD_BACK = 0.05
"""Share of a GPU's memory that a search for the largest batch leaves free: NCCL and cuDNN may take more in a longer run."""


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
CUTS = {"resnet50": (11, 17), "vgg16": (17, 31)}
"""Layers before which a model is cut into stages. The last two hold nearly all gradients: of ResNet-50, the stages of 1024
and of 2048 channels; of VGG16, the later convolutions and the head."""


class Gather(torch.autograd.Function):
    """Max pooling 3x3 of stride 2 and padding 1, in operations of which inductor makes one kernel each way.

    Of PyTorch's own it makes a gradient that computes the place of each maximum anew, four times for each pixel. Here a
    maximum is known by its place in its window, 0 to 8 row by row, and each pixel asks the windows that it is in.
    """

    @staticmethod
    def forward(ctx: Any, pixels: torch.Tensor) -> torch.Tensor:
        """Return the maxima; of equal ones the first, and what is no number, has the gradient, as PyTorch has it."""
        rows, columns = ((size + 1) // 2 for size in pixels.shape[2:])
        padded = pad(pixels, (1, 2, 1, 2), value=float("-inf"))
        most = padded[:, :, 0 : 2 * rows : 2, 0 : 2 * columns : 2]
        place = torch.zeros_like(most, dtype=torch.int8)
        for at in range(1, 9):
            other = padded[:, :, at // 3 : at // 3 + 2 * rows : 2, at % 3 : at % 3 + 2 * columns : 2]
            more = (other > most) | other.isnan()
            most, place = torch.where(more, other, most), torch.where(more, at, place)
        ctx.save_for_backward(place)
        ctx.pixels = pixels.shape[2:]
        ctx.layout = torch.channels_last if pixels.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
        return most  # not made contiguous: PyTorch 2.11 would compile it without a gradient

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the pixels."""
        (place,) = ctx.saved_tensors
        height, width = ctx.pixels
        odd_row, odd_column = (torch.arange(size, device=place.device, dtype=torch.int8) % 2 for size in (height, width))
        summed: Any = 0
        # The window of half the row has a pixel in its second row or, if that is odd, in its third; the one below has it in
        # its first, if at all. Less than nothing is the place of none.
        for below, in_row in ((0, 3 + 3 * odd_row), (1, 9 * odd_row - 9)):
            for right, in_column in ((0, 1 + odd_column), (1, 9 * odd_column - 9)):
                asked, given = (
                    doubled(pad(each[:, :, below:, right:], (0, right, 0, below)), height, width) for each in (place, gradient)
                )
                summed = summed + torch.where(asked == in_row.view(-1, 1) + in_column, given, 0)
        return summed.contiguous(memory_format=ctx.layout)


def doubled(windows: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return for each pixel, row and column, what is at half of both."""
    images, channels, rows, columns = windows.shape
    wide = windows[:, :, :, None, :, None].expand(images, channels, rows, 2, columns, 2)
    return wide.reshape(images, channels, 2 * rows, 2 * columns)[:, :, :height, :width]


class GatheredPool(nn.Module):
    """`Gather` as a layer."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the maxima, at half of the size."""
        return Gather.apply(pixels)  # type: ignore[no-any-return, no-untyped-call]


def initialise(model: nn.Module) -> None:
    """Draw weights as the papers do, so that the loss stays a number: He for convolutions, small normal for the head.

    BatchNorm counts no batches: only an average without momentum reads the number, and each count is a kernel.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)


class Trained(nn.Module):
    """A network and its loss, in the arithmetic that was asked for. ``half``: the type of autocast, None for none."""

    def __init__(self, network: nn.Module, device_type: str, half: torch.dtype | None, label_smoothing: float) -> None:
        super().__init__()
        self.network = network
        self.device_type, self.half, self.label_smoothing = device_type, half, label_smoothing

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss, and the network's output, which has no gradient."""
        with torch.autocast(self.device_type, dtype=self.half, enabled=self.half is not None):
            output = self.network(images)
            return cross_entropy(output, labels, label_smoothing=self.label_smoothing), output.detach()


def compiled(model: Trained, level: str, split: str, cuts: tuple[int, ...]) -> nn.Module:
    """Return the model compiled as one graph or as several.

    All gradients of a graph are there at its end, and only then. Of one graph nothing is reduced while it computes; cut into
    ``stages``, the gradients of the last two travel while the first is still at work. ``buckets`` leaves the cuts to
    PyTorch's DDPOptimizer, one graph for each bucket.
    """
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = split == "buckets"
    how: dict[str, Any] = {"dynamic": False, "fullgraph": True, "options": COMPILE_OPTIONS[level]}
    if split != "stages":
        whole: nn.Module = torch.compile(model, **how)
        return whole
    layers = list(model.network.children())
    edges = [0, *cuts, len(layers)]
    stages = [nn.Sequential(*layers[start:end]) for start, end in zip(edges, edges[1:])]
    model.network = nn.Sequential(*(torch.compile(stage, **how) for stage in stages))
    return model


# --- what is asked for, and who asks --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = trainer.options(MODELS)
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp32", help="fp16 and bf16: autocast")
    parser.add_argument("--channels-last", choices=["auto", "on", "off"], default="auto", help="auto: on cuda, but for fp32")
    parser.add_argument("--warmup-steps", type=int, default=0, help="of the steps, those before the window of input_wait_s")
    parser.add_argument("--solo-steps", type=int, default=10, help="steps without communication, after the last step")
    parser.add_argument("--find-batch-size", type=int, default=0, metavar="MOST", help="say the largest that fits, at first")
    parser.add_argument("--compile", default="false", help="torch.compile, PyTorch 2.0 or newer", **trainer.SWITCH)
    parser.add_argument("--compile-level", choices=list(COMPILE_OPTIONS), default="default", help="search of --compile")
    parser.add_argument("--compile-split", choices=["stages", "whole", "buckets"], default="stages", help="graphs of --compile")
    parser.add_argument("--max-pool", choices=["torch", "gathered"], default="torch", help="kernels of --compile for the stem")
    parser.add_argument("--cuda-graphs", default="false", help="replay each step as one CUDA graph", **trainer.SWITCH)
    parser.add_argument("--optimizer", choices=["auto", "fused", "foreach", "plain"], default="auto", help="kernels of SGD")
    parser.add_argument("--cudnn-benchmark", default="true", help="let cuDNN search for the fastest kernels", **trainer.SWITCH)
    parser.add_argument("--cudnn-benchmark-limit", type=int, default=10, help="kernels it times for each convolution, 0: all")
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl on cuda, gloo on cpu")
    parser.add_argument("--reduce", choices=["auto", "ddp", "packed"], default="auto", help="auto: packed in a CUDA graph")
    parser.add_argument("--bucket-cap-mb", type=int, default=25, help="MiB of gradients reduced at once")
    parser.add_argument("--bucket-view", default="true", help="gradients live in the buckets that travel", **trainer.SWITCH)
    parser.add_argument("--static-graph", choices=["auto", "on", "off"], default="auto", help="auto: on unless compiled")
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
    if asked.max_pool == "gathered" and (asked.compile == "false" or asked.model != "resnet50"):
        return "--max-pool: expected torch but for resnet50 with --compile, got gathered"
    if not 0 <= asked.warmup_steps < asked.steps:
        return f"--warmup-steps: expected 0 or more and below the {asked.steps} steps, got {asked.warmup_steps}"
    for name in ("solo_steps", "find_batch_size", "cudnn_benchmark_limit"):
        if getattr(asked, name) < 0:
            return f"--{name.replace('_', '-')}: expected 0 or more, got {getattr(asked, name)}"
    if asked.find_batch_size and asked.device == "cpu":
        return f"--find-batch-size: expected 0 on cpu, got {asked.find_batch_size}: the system ends processes where memory ends"
    return unusable_reduction(asked) if reduction(asked) == "packed" or asked.cuda_graphs == "true" else ""


def unusable_reduction(asked: argparse.Namespace) -> str:
    """Return why gradients cannot be packed, or a step not be captured as one CUDA graph, or nothing."""
    graphs = asked.cuda_graphs == "true"
    switch, before = ("--cuda-graphs", EAGER_STEPS) if graphs else ("--reduce packed", DDP_STEPS)
    if graphs and (asked.device == "cpu" or asked.backend == "gloo"):
        return f"{switch}: expected cuda and nccl, got {asked.device} and {asked.backend}"
    captures = "capture_error_mode" in inspect.signature(torch.cuda.graph.__init__).parameters
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook") or (graphs and not captures):
        return f"{switch}: expected PyTorch 2.1 or newer, got {torch.__version__}"
    if asked.compress != "none":
        return f"--compress: expected none with {switch}, got {asked.compress}: its hook waits in Python for each bucket"
    if asked.steps <= before:
        return f"--steps: expected more than the {before} before {switch} takes over, got {asked.steps}"
    return ""


def claim_device(asked: argparse.Namespace, local_rank: int) -> torch.device:
    """Take this rank's device and set the arithmetic of its matrix units."""
    device = claim(asked, local_rank)
    if device.type == "cpu":
        return device
    # Both are set, always: cuDNN's default is TF32 on, so that "fp32" would silently be TF32 in every convolution.
    torch.backends.cuda.matmul.allow_tf32 = asked.dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = asked.dtype == "tf32"
    torch.backends.cudnn.benchmark = asked.cudnn_benchmark == "true"
    torch.backends.cudnn.benchmark_limit = asked.cudnn_benchmark_limit
    return device


# --- one step -------------------------------------------------------------------------------------------------------------


def refuse(asked: argparse.Namespace, device: torch.device) -> None:
    """Raise SystemExit where this PyTorch lacks the type or the optimizer on this device, which is known only by trying."""
    kind = sgd(asked, nn.Linear(1, 1).to(device))[1]
    if asked.cuda_graphs == "true" and asked.dtype == "fp16" and kind != "fused":
        raise SystemExit(
            f"--optimizer: expected fused with --cuda-graphs and fp16, got {kind}: it waits for the overflow check"
        )
    if asked.max_pool == "gathered":
        refuse_pool(device)
    half = HALF_TYPES.get(asked.dtype)
    if half is None:
        return
    try:
        with torch.autocast(device.type, dtype=half):
            # Some versions without fp16 on cpu refuse it here, some only warn and go on in fp32.
            computed = (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).dtype
    except RuntimeError:
        computed = torch.float32
    if computed != half:
        raise SystemExit(f"--dtype: PyTorch {torch.__version__} computes no {asked.dtype} on {device.type}")


def refuse_pool(device: torch.device) -> None:
    """Raise SystemExit where this PyTorch does not compile `GatheredPool` to what its own pooling gives."""
    torch.manual_seed(0)
    images = torch.randn(2, 8, 9, 8, device=device).relu().contiguous(memory_format=torch.channels_last)
    found = []
    try:
        for pool in (nn.MaxPool2d(3, 2, 1), torch.compile(GatheredPool(), dynamic=False, fullgraph=True)):
            pixels = images.clone().requires_grad_()
            most = pool(pixels)
            most.square().sum().backward()
            found.append((most.detach(), pixels.grad))
        why = "" if all(map(torch.allclose, *found)) else "its gradient is not that of torch"
    except RuntimeError as error:  # as torch._dynamo's are
        why = str(error).strip().split("\n")[0][:200]
    if why:
        raise SystemExit(f"--max-pool: expected torch with PyTorch {torch.__version__}, got gathered: {why}")


def loss_scaler(asked: argparse.Namespace, device: torch.device) -> Any:
    """Return what scales the loss, None where nothing does."""
    if asked.dtype != "fp16":
        return None
    newer = getattr(torch.amp, "GradScaler", None)  # PyTorch 2.3; before, there was one for CUDA only
    if newer is None:
        return torch.cuda.amp.GradScaler(init_scale=asked.loss_scale)
    return newer(device.type, init_scale=asked.loss_scale)


def sgd(asked: argparse.Namespace, model: nn.Module) -> tuple[torch.optim.Optimizer, str]:
    """Return SGD and the kind of its kernels: the fastest that there is, or the one asked for. Raises SystemExit without it.

    A fused one also checks for overflow on the device. For the others the loss scaler waits in each step until the device
    has come that far, and its queue runs empty.
    """
    options: dict[str, Any] = {"lr": asked.learning_rate, "momentum": asked.momentum, "weight_decay": asked.weight_decay}
    for kind in ("fused", "foreach", "plain") if asked.optimizer == "auto" else (asked.optimizer,):
        try:
            # Nothing at all would be foreach on a GPU.
            return torch.optim.SGD(
                model.parameters(), **({"foreach": False} if kind == "plain" else {kind: True}), **options
            ), kind
        except (TypeError, RuntimeError):
            continue  # unknown to this version, or not for this device
    raise SystemExit(f"--optimizer: PyTorch {torch.__version__} has no {asked.optimizer} SGD on {asked.device}")


def channels_last(asked: argparse.Namespace) -> bool:
    """Tell whether the channels of a pixel lie side by side in memory."""
    return bool({"on": True, "off": False, "auto": asked.device == "cuda" and asked.dtype != "fp32"}[asked.channels_last])


def static_graph(asked: argparse.Namespace) -> bool:
    """Tell whether DDP relies on each step using the same parameters."""
    # PyTorch 2.0 and 2.1 fail with both.
    return bool({"on": True, "off": False, "auto": asked.compile == "false"}[asked.static_graph])


def replica(asked: argparse.Namespace, device: torch.device) -> DistributedDataParallel:
    """Return the model and its loss on the device, made alike on all ranks, with gradients averaged over them."""
    torch.manual_seed(asked.seed)
    network: Any = MODELS[asked.model](asked.num_classes)
    initialise(network)
    if asked.max_pool == "gathered":
        for at, layer in enumerate(network):
            if isinstance(layer, nn.MaxPool2d):
                network[at] = GatheredPool()
    network.to(device, memory_format=torch.channels_last if channels_last(asked) else torch.contiguous_format)
    model: Any = Trained(network, device.type, HALF_TYPES.get(asked.dtype), asked.label_smoothing)
    if asked.compile == "true":
        model = compiled(model, asked.compile_level, asked.compile_split, CUTS[asked.model])
    # Statistics of BatchNorm stay each rank's own. PyTorch 2.13 renamed the switch.
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    buffers: dict[str, Any] = {"forward_sync_buffers" if newer else "broadcast_buffers": False}
    parallel = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        **buffers,
        bucket_cap_mb=asked.bucket_cap_mb,
        gradient_as_bucket_view=asked.bucket_view == "true",
        static_graph=static_graph(asked),
    )
    if asked.compress == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        parallel.register_comm_hook(None, fp16_compress_hook)
    return parallel


def reduction(asked: argparse.Namespace) -> str:
    """Return who reduces gradients, `ddp` or `packed`."""
    return {"true": "packed", "false": "ddp"}[asked.cuda_graphs] if asked.reduce == "auto" else str(asked.reduce)


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


class Learner(NamedTuple):
    """All that a step of training needs but its images."""

    parallel: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    kind: str
    scaler: Any


def learner(asked: argparse.Namespace, device: torch.device) -> Learner:
    """Return a model before its first step."""
    parallel = replica(asked, device)
    return Learner(parallel, *sgd(asked, parallel), loss_scaler(asked, device))


def unheard(_: str) -> None:
    """Note no moment."""


def taken(
    learner: Learner, model: Any, images: torch.Tensor, labels: torch.Tensor, stamp: Callable[[str], None] = unheard
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a step; return its loss and the network's output.

    ``model`` is `learner.parallel`, a `Packed` one, or `learner.parallel.module` for a step without communication: DDP reduces
    in those backward passes only that its own forward pass prepared. ``stamp`` is called behind the forward and the backward
    pass.
    """
    loss, output = model(images, labels)
    stamp("forward")
    learner.optimizer.zero_grad(set_to_none=True)
    (loss if learner.scaler is None else learner.scaler.scale(loss)).backward()
    stamp("backward")
    if isinstance(model, Packed):
        model.done()
    if learner.scaler is None:
        learner.optimizer.step()
    else:
        learner.scaler.step(learner.optimizer)
        learner.scaler.update()
    return loss.detach(), output


class Replayed:
    """A step that is captured as a CUDA graph after some that are not, and replayed from then on.

    It must be called on the stream on which the model was made, and that must not be the default one: gradients are added up
    on the stream of their parameters. Images are copied into the graph's own, unless they are the very tensor as before. What
    it returns is overwritten by the next call.
    """

    def __init__(self, step: Callable[[torch.Tensor, torch.Tensor], Any], eager_steps: int) -> None:
        self.step, self.eager_steps = step, eager_steps
        self.graph: Any = None

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        """Take the step."""
        if self.eager_steps > 0:
            self.eager_steps -= 1
            return self.step(images, labels)
        if self.graph is None:
            self._capture(images, labels)
        for held, given in ((self.images, images), (self.labels, labels)):
            if held is not given:
                held.copy_(given)
        self.graph.replay()
        return self.result

    def _capture(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels
        self.graph = torch.cuda.CUDAGraph()
        # Only this thread: NCCL's watchdog asks for events meanwhile.
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self.result = self.step(self.images, self.labels)


def averaging(asked: argparse.Namespace, learner: Learner) -> Iterator[Any]:
    """Yield what each step calls, without end: DDP, and once it has formed its buckets, `Packed` where that is wanted."""
    yield from repeat(learner.parallel, DDP_STEPS)
    yield from repeat(Packed(learner.parallel) if reduction(asked) == "packed" else learner.parallel)


def synthetic(asked: argparse.Namespace, device: torch.device, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels that never change, other ones on each rank."""
    torch.manual_seed(asked.seed + 1 + rank)
    images = torch.randn(asked.batch_size, 3, asked.image_size, asked.image_size, device=device)
    labels = torch.randint(asked.num_classes, (asked.batch_size,), device=device)
    return laid_out(asked, images), labels


def laid_out(asked: argparse.Namespace, images: torch.Tensor) -> torch.Tensor:
    """Return images in the type and layout of the first layer."""
    layout = torch.channels_last if channels_last(asked) else torch.contiguous_format
    return images.to(HALF_TYPES.get(asked.dtype, torch.float32)).contiguous(memory_format=layout)


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


def batches(asked: argparse.Namespace, device: torch.device, me: Identity) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's images, in the type and layout of the first layer, and labels, without end.

    On a GPU, copies and conversions have a stream of their own: they run beside the step that still computes.
    """
    if asked.loader == "synthetic":
        yield from repeat(synthetic(asked, device, me.rank))
    source = {"native": native}.get(asked.loader, dali)(asked, device, me)
    if device.type == "cpu":
        yield from ((laid_out(asked, images), labels) for images, labels in source)
    stream = torch.cuda.Stream(device)
    while True:
        with torch.cuda.stream(stream):
            images, labels = next(source)
            images = laid_out(asked, images)
        computes = torch.cuda.current_stream(device)
        computes.wait_stream(stream)
        for tensor in (images, labels):
            tensor.record_stream(computes)  # its memory is not given to the next batch before the step has read it
        yield images, labels


# --- time -----------------------------------------------------------------------------------------------------------------


class DeviceClock:
    """Time of steps on a GPU, by events, so that the queue of the device never runs empty for the sake of a line.

    Behind step k the host waits for step k-2. `t` is the host's clock at one synchronised moment plus the device's own
    time since then. The loss travels behind its step into pinned memory: `.item()` would wait for all that is queued. What the
    device waits for its input is the time between two events of its own: a host that waits while it computes costs nothing.
    """

    def __init__(self, steps: int) -> None:
        self.losses = torch.zeros(steps + 1, pin_memory=True)
        self.queued: deque[tuple[int, torch.cuda.Event, torch.cuda.Event]] = deque()

    def start(self) -> float:
        """Wait until the device is idle; return the monotonic clock."""
        torch.cuda.synchronize()
        self.last = torch.cuda.Event(enable_timing=True)
        self.last.record()
        self.last.synchronize()
        self.t = time.monotonic()
        return self.t

    def begin(self) -> None:
        """Note that the images of the next step are there, or will be when the device comes to this."""
        self.begun = torch.cuda.Event(enable_timing=True)
        self.begun.record()

    def mark(self, number: int, loss: torch.Tensor) -> list[Step]:
        """Note the end of a step, to come; return the steps that are over by now."""
        self.losses[number].copy_(loss, non_blocking=True)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.queued.append((number, self.begun, event))
        return [self._oldest()] if len(self.queued) > 2 else []

    def rest(self) -> list[Step]:
        """Wait for the device; return the steps not yet returned."""
        return [self._oldest() for _ in range(len(self.queued))]

    def _oldest(self) -> Step:
        number, begun, event = self.queued.popleft()
        event.synchronize()
        waited, seconds = (self.last.elapsed_time(each) / 1000.0 for each in (begun, event))
        self.last, self.t = event, self.t + seconds
        return Step(number, self.t, seconds, float(self.losses[number]), waited)


# --- what is said ---------------------------------------------------------------------------------------------------------


# --- what explains a speedup ----------------------------------------------------------------------------------------------


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


# --- the largest batch ----------------------------------------------------------------------------------------------------


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


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def train(asked: argparse.Namespace, me: Identity, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take all steps, rank 0 printing them; return what this rank says of itself, and what holds for all."""
    model = learner(asked, device)
    data = batches(asked, device, me)
    samples = asked.batch_size * me.world_size
    clock = DeviceClock(asked.steps) if device.type == "cuda" else trainer.HostClock()

    models = averaging(asked, model)

    def step(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return taken(model, next(models), images, labels)

    take: Any = Replayed(step, EAGER_STEPS) if asked.cuda_graphs == "true" else step
    input_wait_s = 0.0

    def tell(finished: list[Step]) -> float:
        if me.rank == 0:
            trainer.say_steps(finished, samples)
        return sum(each.input_wait_s for each in finished if each.number > asked.warmup_steps)

    prove_world(me, device)  # also the barrier before the first step: from here on, all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start)
    for number in range(1, asked.steps + 1):
        images, labels = next(data)
        clock.begin()
        loss, output = take(images, labels)
        input_wait_s += tell(clock.mark(number, loss))
    input_wait_s += tell(clock.rest())

    held, output_dtype = memory_bytes(device), str(output.dtype).split(".")[-1]
    del take, loss, output  # and with them the memory of a graph
    prove_world(me, device)  # also the barrier before the steps without communication
    alone = parts(asked, model, data, device, me)
    wire = 2 if asked.compress == "fp16" else 4
    parameters = sum(p.numel() for p in model.parallel.parameters())
    ready = alone.pop("gradient_ready_s")
    return {"memory_bytes": held, "input_wait_s": round(input_wait_s, 6), **alone}, {
        "global_batch": samples,
        "parameters": parameters,
        "gradient_bytes": parameters * wire,
        "gradient_buckets_bytes": [size * wire // 4 for size in buckets(model.parallel)[0]],
        "gradient_dtype": {2: "float16", 4: "float32"}[wire],
        "gradient_ready_s": ready,
        "channels_last": channels_last(asked),
        "static_graph": static_graph(asked),
        "reduce": reduction(asked),
        "optimizer": f"sgd {model.kind}",
        "output_dtype": output_dtype,
        "loss_scale": float(model.scaler.get_scale()) if model.scaler else None,
    }


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


def main() -> None:
    """Join, train, prove, report."""
    asked = arguments()
    me = identity()
    device = claim_device(asked, me.local_rank)
    refuse(asked, device)
    world = join(asked, me, device)
    found = searched(asked, me, device)
    # A capture cannot be made on the default stream, nor of parameters that were made there.
    with torch.cuda.stream(torch.cuda.Stream(device)) if asked.cuda_graphs == "true" else nullcontext():
        said, more = train(asked, me, device)
    switches = ("compile", "cuda_graphs", "cudnn_benchmark", "bucket_view")
    world.report(asked, said, {**found, **more}, switches)


if __name__ == "__main__":
    leave_after(main)

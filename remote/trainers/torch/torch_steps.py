"""A step of train_pytorch.py: its parts, how it is taken, and replayed as a CUDA graph."""

from __future__ import annotations

import argparse
import inspect
from itertools import repeat
from typing import Any, Callable, Iterator, NamedTuple

import torch
from step_timestamps import ignore_stamp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_gathered_pool import GatheredPool
from torch_models import CUTS, HALF_TYPES, MODELS, Trained, channels_last, compile_model, initialise
from torch_packed import Packed

DDP_STEPS = 11
"""Steps that DDP always reduces: it times ten by events, which a capture does not allow, and
reports its buckets after that.
"""
EAGER_STEPS = DDP_STEPS + 1
"""Steps before a step is captured as a CUDA graph."""


# --- parts of a step ------------------------------------------------------------------------------


def loss_scaler(args: argparse.Namespace, device: torch.device) -> Any:
    """Return the loss scaler, None if the loss is not scaled."""
    if args.dtype != "fp16":
        return None
    newer = getattr(
        torch.amp, "GradScaler", None
    )  # PyTorch 2.3; older versions have one for CUDA only
    if newer is None:
        return torch.cuda.amp.GradScaler(init_scale=args.loss_scale)
    return newer(device.type, init_scale=args.loss_scale)


def sgd(args: argparse.Namespace, model: nn.Module) -> tuple[torch.optim.Optimizer, str]:
    """Return SGD and the kind of its kernels: the requested kind, or the fastest available. Raises
    SystemExit if unavailable.

    The fused kind also checks for overflow on the device. With the others the loss scaler waits in
    each step until the device has caught up, and the device's queue runs empty.
    """
    options: dict[str, Any] = {
        "lr": args.learning_rate,
        "momentum": args.momentum,
        "weight_decay": args.weight_decay,
    }
    for kind in ("fused", "foreach", "plain") if args.optimizer == "auto" else (args.optimizer,):
        try:
            # Without either argument SGD would be foreach on a GPU.
            optimizer = torch.optim.SGD(
                model.parameters(),
                **({"foreach": False} if kind == "plain" else {kind: True}),
                **options,
            )
        except (TypeError, RuntimeError):
            continue  # unknown in this version, or not available on this device
        start_momentum(optimizer)
        return optimizer, kind
    raise SystemExit(
        f"--optimizer: PyTorch {torch.__version__} has no {args.optimizer} SGD on {args.device}"
    )


def start_momentum(optimizer: torch.optim.SGD) -> None:
    """Give each parameter a momentum of zero, which leaves the first step as it would be without.

    Fused SGD allocates the buffers in its first step and fills them on the device, but not if that
    step overflows: the next one would then train with whatever was in that memory (seen with
    PyTorch 2.11 and 2.13).
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(
                parameter, requires_grad=False
            )


def static_graph(args: argparse.Namespace) -> bool:
    """Return True if DDP relies on each step using the same parameters."""
    # PyTorch 2.0 and 2.1 fail with both a static graph and compilation.
    return bool({"on": True, "off": False, "auto": not args.compile}[args.static_graph])


def replica(args: argparse.Namespace, device: torch.device) -> DistributedDataParallel:
    """Return the model and its loss on the device, identical on all ranks, with gradients averaged
    over them.
    """
    torch.manual_seed(args.seed)
    network: Any = MODELS[args.model](args.num_classes)
    initialise(network)
    if args.max_pool == "gathered":
        for at, layer in enumerate(network):
            if isinstance(layer, nn.MaxPool2d):
                network[at] = GatheredPool()
    network.to(
        device,
        memory_format=torch.channels_last if channels_last(args) else torch.contiguous_format,
    )
    model: Any = Trained(network, device.type, HALF_TYPES.get(args.dtype), args.label_smoothing)
    if args.compile:
        model = compile_model(model, args.compile_level, args.compile_split, CUTS[args.model])
    # Each rank keeps its own BatchNorm statistics. PyTorch 2.13 renamed the option.
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    buffers: dict[str, Any] = {"forward_sync_buffers" if newer else "broadcast_buffers": False}
    parallel = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        **buffers,
        bucket_cap_mb=args.bucket_cap_mb,
        gradient_as_bucket_view=args.bucket_view,
        static_graph=static_graph(args),
    )
    if args.compress == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        parallel.register_comm_hook(None, fp16_compress_hook)
    return parallel


def reduction(args: argparse.Namespace, world_size: int) -> str:
    """Return the method that reduces gradients after the first steps: `ddp` or `packed`, by default
    `none` on a single rank.
    """
    if args.reduce != "auto":
        return str(args.reduce)
    if world_size == 1:
        return "none"
    return "packed" if args.cuda_graphs else "ddp"


class Learner(NamedTuple):
    """Everything that a training step needs except images."""

    parallel: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    kind: str
    scaler: Any


def scale_of(learner: Learner, one: torch.Tensor) -> Any:
    """Return the loss scale, on the device of ``one``, without waiting for it; 1 if the loss is not
    scaled.
    """
    return 1.0 if learner.scaler is None else learner.scaler.scale(one)


def learner(args: argparse.Namespace, device: torch.device) -> Learner:
    """Return a new model, its optimizer and loss scaler."""
    parallel = replica(args, device)
    return Learner(parallel, *sgd(args, parallel), loss_scaler(args, device))


# --- taking a step --------------------------------------------------------------------------------


def take_step(
    learner: Learner,
    model: Any,
    images: torch.Tensor,
    labels: torch.Tensor,
    stamp: Callable[[str], None] = ignore_stamp,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a step; return its loss and the network's output.

    ``model`` is `learner.parallel`, a `Packed` one, or `learner.parallel.module` for a step without
    communication: DDP reduces only in backward passes that follow its own forward pass. ``stamp``
    is called after the forward and after the backward pass.
    """
    loss, output = model(images, labels)
    stamp("forward")
    learner.optimizer.zero_grad(set_to_none=True)
    (loss if learner.scaler is None else learner.scaler.scale(loss)).backward()
    stamp("backward")
    if isinstance(model, Packed):
        model.finish()
    if learner.scaler is None:
        learner.optimizer.step()
    else:
        learner.scaler.step(learner.optimizer)
        learner.scaler.update()
    return loss.detach(), output


def averaging(args: argparse.Namespace, learner: Learner, world_size: int) -> Iterator[Any]:
    """Yield the model for each step, without end: DDP, and once DDP has rebuilt its buckets,
    `Packed` if requested, or the bare model if there is nothing to reduce: DDP copies each gradient
    on a single rank too."""
    parallel = learner.parallel
    yield from repeat(parallel, DDP_STEPS)
    kind = reduction(args, world_size)
    yield from repeat(
        Packed(parallel) if kind == "packed" else parallel.module if kind == "none" else parallel
    )


class Replayed:
    """A step that is captured as a CUDA graph after some eager steps, and replayed from then on.

    Call it on the stream on which the model was made, which must not be the default one: gradients
    are accumulated on the stream of their parameters. Images are copied into the graph's own
    tensor, unless they are that same tensor. The result is overwritten by the next call.
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
        # Restricted to this thread: NCCL's watchdog queries events at the same time.
        with torch.cuda.graph(
            self.graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
        ):
            self.result = self.step(self.images, self.labels)

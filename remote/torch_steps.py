"""A step of train_pytorch.py: what it needs, how it is taken, replayed as a CUDA graph, and timed on the device."""

from __future__ import annotations

import argparse
import inspect
import time
from collections import deque
from itertools import repeat
from typing import Any, Callable, Iterator, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_gathered_pool import GatheredPool
from torch_models import CUTS, HALF_TYPES, MODELS, Trained, channels_last, compiled, initialise
from torch_packed import Packed
from trainer import Step

DDP_STEPS = 11
"""Steps that DDP reduces in any case: it times ten by events, which no capture allows, and tells of its buckets behind."""
EAGER_STEPS = DDP_STEPS + 1
"""Steps before a step is captured as a CUDA graph."""


# --- what it needs --------------------------------------------------------------------------------------------------------


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


# --- how it is taken ------------------------------------------------------------------------------------------------------


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


def averaging(asked: argparse.Namespace, learner: Learner) -> Iterator[Any]:
    """Yield what each step calls, without end: DDP, and once it has formed its buckets, `Packed` where that is wanted."""
    yield from repeat(learner.parallel, DDP_STEPS)
    yield from repeat(Packed(learner.parallel) if reduction(asked) == "packed" else learner.parallel)


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


# --- how it is timed ------------------------------------------------------------------------------------------------------


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

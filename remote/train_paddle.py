"""Train ResNet-50 v1.5 or VGG16 with Paddle's fleet, and print one line per step.

Needs PaddlePaddle 2.5 or newer and Python 3.8 or newer. Beside this file lie the images (paddle_images.py), the ranks
(paddle_ranks.py) and what other trainers share (trainer.py, loaders.py).

One process per device; who it is, it reads from the environment: RANK, LOCAL_RANK, WORLD_SIZE, NODE_RANK, and what
paddle.distributed.launch sets, with which they must agree:

    python -m paddle.distributed.launch --ips 10.11.0.2,10.11.0.3 --host 10.11.0.2 --start_port 29500 --nnodes 2 rank.sh

where rank.sh derives the four from PADDLE_TRAINER_ID and its like, and starts this file. Every rank prints one `orch rank=`
line; rank 0 prints one `orch step=` line for each step and `orch done {json}` at the end. Synthetic images are made once, on
the device: no loader and no copy is part of a step. The other loaders read image folders, see loaders.py: `native`
is paddle.io over Pillow, whose pixels travel as bytes and are normalised on the device; `dali-cpu` and `dali-gpu` are NVIDIA
DALI. Waiting for them is part of a step.

Two strategies. `collective` is fleet's data parallelism: each rank has its batch, gradients are averaged. `auto` gives Paddle 3
one sharded global batch and lets its placement rules find the communication.
"""

from __future__ import annotations

import argparse
import faulthandler
import socket
import time
from collections import deque
from contextlib import nullcontext
from typing import Any, NamedTuple

import paddle
import paddle.distributed as dist
import trainer
from paddle import nn
from paddle.distributed import fleet
from paddle_images import batches
from paddle_ranks import device_name, gather, identity, join, memory_bytes, mesh, prove_world, versions
from trainer import Identity, Step

HALF_TYPES = {"fp16": "float16", "bf16": "bfloat16"}
# Paddle's own definitions: the stride of resnet50 is in its 3x3 convolutions, which is version 1.5.
MODELS = {"resnet50": paddle.vision.models.resnet50, "vgg16": paddle.vision.models.vgg16}


# --- options --------------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = trainer.options(MODELS)
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp32", help="fp16 and bf16: AMP")
    parser.add_argument("--amp-level", choices=["O1", "O2"], default="O1", help="O2: weights in that type as well")
    parser.add_argument("--strategy", choices=["collective", "auto"], default="collective")
    parser.add_argument("--bucket-cap-mb", type=int, default=25, help="MiB of gradients reduced at once")
    parser.add_argument("--loader", choices=["synthetic", "native", "dali-cpu", "dali-gpu"], default="synthetic")
    parser.add_argument("--data-dir", default="", help="where class folders of JPEG files lie, in train/ or directly")
    parser.add_argument("--workers", type=int, default=4, help="processes, with DALI threads, that load for one rank")
    parser.add_argument("--threads", type=int, default=1, help="threads of one rank on cpu")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest wait for other ranks")
    return trainer.parsed(parser, unusable)


def unusable(asked: argparse.Namespace) -> str:
    """Return why these arguments cannot be run, or nothing."""
    counts = ("batch_size", "steps", "num_classes", "bucket_cap_mb", "threads", "workers")
    if problem := trainer.unusable_values(asked, counts):
        return problem
    if asked.device == "cuda" and not paddle.is_compiled_with_cuda():
        return f"--device: expected a Paddle built for CUDA, {paddle.__version__} is not"
    if problem := trainer.unusable_loader(asked):
        return problem
    if asked.loader != "synthetic":
        import loaders

        if loaders.lacking(asked.loader):
            return str(loaders.lacking(asked.loader))
    if asked.strategy == "auto" and not hasattr(dist, "shard_layer"):
        return f"--strategy: auto needs the placement rules of Paddle 3, this is {paddle.__version__}"
    return ""


# --- one step -------------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """What a step is made of."""

    model: Any
    optimizer: Any
    scaler: Any
    cast: Any
    """Makes the context of the forward pass."""


def parts(asked: argparse.Namespace, world_size: int) -> Parts:
    """Return the model, made alike on all ranks, with what trains it. A single rank has nobody to share with."""
    collective, auto = (asked.strategy == name and world_size > 1 for name in ("collective", "auto"))
    paddle.seed(asked.seed)
    model = MODELS[asked.model](num_classes=asked.num_classes)
    initialise(model)
    if auto:
        model = dist.shard_layer(model, mesh(), whole_on_every_rank)
    optimizer = paddle.optimizer.Momentum(
        asked.learning_rate, asked.momentum, parameters=model.parameters(), weight_decay=asked.weight_decay
    )
    half = HALF_TYPES.get(asked.dtype)
    if half and asked.amp_level == "O2":
        model, optimizer = paddle.amp.decorate(model, optimizer, level="O2", dtype=half)
    scaler = paddle.amp.GradScaler(init_loss_scaling=asked.loss_scale) if asked.dtype == "fp16" else None
    if scaler and not scaler.is_enable():
        scaler = None  # as on a CPU, where AMP has no effect: it warns, and all is computed in fp32
    if auto and scaler:
        scaler = dist.shard_scaler(scaler)
    if collective:
        model = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(optimizer)
    return Parts(model, optimizer, scaler, lambda: autocast(asked, half))


def autocast(asked: argparse.Namespace, half: Any) -> Any:
    """Return the context of one forward pass."""
    return paddle.amp.auto_cast(level=asked.amp_level, dtype=half) if half else nullcontext()


def initialise(model: nn.Layer) -> None:
    """Draw weights as the papers do, so that the loss stays a number: He for convolutions, small normal for the head."""
    for layer in model.sublayers():
        if isinstance(layer, nn.Conv2D):
            fan_out = layer.weight.shape[0] * layer.weight.shape[2] * layer.weight.shape[3]
            layer.weight.set_value(paddle.randn(layer.weight.shape) * (2.0 / fan_out) ** 0.5)
        elif isinstance(layer, nn.Linear):
            layer.weight.set_value(paddle.randn(layer.weight.shape) * 0.01)


def whole_on_every_rank(_: str, layer: nn.Layer, where: Any) -> None:
    """Place a layer's weights and statistics on all ranks."""
    for name, parameter in layer._parameters.items():
        if parameter is not None:
            layer.add_parameter(name, dist.shard_tensor(parameter, where, [dist.Replicate()]))
    for name, buffer in layer._buffers.items():
        if buffer is not None:
            layer._buffers[name] = dist.shard_tensor(buffer, where, [dist.Replicate()])


def unsharded(model: nn.Layer, images: Any) -> str:
    """Return the first kind of layer that makes whole copies of a sharded batch, or nothing: data parallelism ends there."""
    found: list[str] = []

    def look(layer: nn.Layer, _: Any, output: Any) -> None:
        if not output.placements[0].is_shard(0):
            found.append(type(layer).__name__)

    hooks = [layer.register_forward_post_hook(look) for layer in model.sublayers() if not list(layer.children())]
    with paddle.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return found[0] if found else ""


def take(asked: argparse.Namespace, whole: Parts, images: Any, labels: Any) -> tuple[Any, Any]:
    """Take one step; return its loss, on the device, and the type of the model's output."""
    with whole.cast():
        output = whole.model(images)
        # Without the last axis: of labels that have it, Paddle makes no one-hot ones to smooth.
        loss = nn.functional.cross_entropy(output, labels.squeeze(-1), label_smoothing=asked.label_smoothing)
    if whole.scaler is None:
        loss.backward()
        whole.optimizer.step()
    else:
        whole.scaler.scale(loss).backward()
        whole.scaler.step(whole.optimizer)
        whole.scaler.update()
    whole.optimizer.clear_grad()
    return loss.detach(), output.dtype


class DeviceClock:
    """Time of steps on a GPU, by events, so that the queue of the device never runs empty for the sake of a line.

    Behind step k the host waits for step k-2. `t` is the host's clock at one synchronised moment plus the device's own
    time since then. The loss travels behind its step into pinned memory.
    """

    def __init__(self) -> None:
        self.queued: deque[tuple[int, Any, Any]] = deque()

    def start(self) -> float:
        """Wait until the device is idle; return the monotonic clock."""
        paddle.device.synchronize()
        self.last = self._event()
        self.last.synchronize()
        self.t = time.monotonic()
        return self.t

    def mark(self, number: int, loss: Any) -> list[Step]:
        """Note the end of a step, to come; return the steps that are over by now."""
        on_host = loss._copy_to(paddle.CUDAPinnedPlace(), False)
        self.queued.append((number, self._event(), on_host))
        return [self._oldest()] if len(self.queued) > 2 else []

    def rest(self) -> list[Step]:
        """Wait for the device; return the steps not yet returned."""
        return [self._oldest() for _ in range(len(self.queued))]

    def _event(self) -> Any:
        event = paddle.device.Event(enable_timing=True)
        event.record()
        return event

    def _oldest(self) -> Step:
        number, event, loss = self.queued.popleft()
        event.synchronize()
        seconds = self.last.elapsed_time(event) / 1000.0
        self.last, self.t = event, self.t + seconds
        return Step(number, self.t, seconds, float(loss))


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def train(asked: argparse.Namespace, me: Identity) -> dict[str, Any]:
    """Take all steps, rank 0 printing them; return what was found out on the way."""
    whole = parts(asked, me.world_size)
    data = batches(asked, me)
    samples = asked.batch_size * me.world_size
    clock = DeviceClock() if asked.device == "cuda" else trainer.HostClock()
    if asked.strategy == "auto" and me.world_size > 1:
        layer = unsharded(whole.model, next(data)[0])
        if layer:
            raise SystemExit(
                f"--strategy: auto is refused: Paddle {paddle.__version__} has no placement rule for {layer} and would copy the"
                " whole global batch to every rank there, each computing all of it. take collective"
            )

    prove_world(me)  # also the barrier before the first step: from here on, all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start)
    for number in range(1, asked.steps + 1):
        images, labels = next(data)
        loss, output_dtype = take(asked, whole, images, labels)
        finished = clock.mark(number, loss)
        if me.rank == 0:
            trainer.say_steps(finished, samples)
    finished = clock.rest()
    if me.rank == 0:
        trainer.say_steps(finished, samples)

    # Statistics of BatchNorm are parameters as well, in Paddle; they are not trained.
    parameters = sum(p.size for p in whole.model.parameters() if not p.stop_gradient)
    computed = str(output_dtype).split(".")[-1]
    return {
        "parameters": parameters,
        "gradient_bytes": parameters * (2 if asked.amp_level == "O2" and computed in HALF_TYPES.values() else 4),
        "optimizer": "momentum",
        "output_dtype": computed,
        "loss_scale": float(whole.scaler._scale) if whole.scaler else None,
    }


def main() -> None:
    """Join, train, prove, report."""
    asked = arguments()
    me = identity()
    backend = join(asked, me)
    name, host = device_name(asked.device), socket.gethostname()
    trainer.say_rank(*me, host, name)
    found = train(asked, me)
    prove_world(me)
    ranks = gather({"rank": me.rank, "host": host, "device": name, "memory_bytes": memory_bytes(asked.device)}, me.world_size)
    if me.rank == 0:
        found = {"backend": backend, **versions(), **found}
        trainer.say_done(trainer.closing(asked, ranks, found))


if __name__ == "__main__":
    # Paddle's own handler takes memory: a rank that was taking some itself when it was told to end would hang for ever.
    paddle.disable_signal_handler()
    faulthandler.enable()
    try:
        main()
    except Exception:
        trainer.leave_at_once()

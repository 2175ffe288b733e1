"""Train ResNet-50 v1.5 or VGG16 with Paddle's fleet, and print one line per step.

Needs PaddlePaddle 2.5 or newer and Python 3.8 or newer. Next to this file are the images
(paddle_images.py), the ranks (paddle_ranks.py) and the code shared with other trainers (trainer.py,
loaders.py).

One process per device, which reads its rank from the environment: RANK, LOCAL_RANK, WORLD_SIZE,
NODE_RANK. These must agree with the variables that paddle.distributed.launch sets:

    python -m paddle.distributed.launch --ips 10.11.0.2,10.11.0.3 --host 10.11.0.2 --start_port 29500 --nnodes 2 rank.sh

rank.sh derives the four from PADDLE_TRAINER_ID and related variables, and starts this file. Every
rank prints one `orch rank=` line; rank 0 prints one `orch step=` line per step and `orch done
{json}` at the end. Synthetic images are made once, on the device: a step contains no loading and no
copy. The other loaders read image folders, see loaders.py: `native` is paddle.io with Pillow, which
sends pixels as bytes and normalises them on the device; `dali-cpu` and `dali-gpu` are NVIDIA DALI.
Waiting for them is part of a step.

Two strategies. `collective` is fleet's data parallelism: each rank has its own batch, and gradients
are averaged. `auto` gives Paddle 3 one sharded global batch and leaves the communication to its
placement rules.
"""

from __future__ import annotations

import argparse
import faulthandler
import socket
import time
from collections import deque
from contextlib import nullcontext
from typing import Any, Callable, NamedTuple

import paddle
import paddle.distributed as dist
import rank_progress
import trainer
from paddle import nn
from paddle.distributed import fleet
from paddle_images import batches
from paddle_ranks import (
    device_name,
    gather,
    identity,
    join,
    memory_bytes,
    mesh,
    prove_world,
    versions,
)
from rank_parts import RankParts
from trainer import Identity, Step

HALF_TYPES = {"fp16": "float16", "bf16": "bfloat16"}
# Paddle's own definitions: the stride of resnet50 is in its 3x3 convolutions, which is version 1.5.
MODELS = {"resnet50": paddle.vision.models.resnet50, "vgg16": paddle.vision.models.vgg16}


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.options(MODELS)
    parser.add_argument(
        "--warmup-steps", type=int, default=0, help="steps before the measured window"
    )
    parser.add_argument(
        "--dtype",
        choices=["fp32", "tf32", "fp16", "bf16"],
        default="fp32",
        help="fp16 and bf16: AMP",
    )
    parser.add_argument(
        "--amp-level", choices=["O1", "O2"], default="O1", help="O2: also keep weights in that type"
    )
    parser.add_argument("--strategy", choices=["collective", "auto"], default="collective")
    parser.add_argument(
        "--bucket-cap-mb", type=int, default=25, help="MiB of gradients reduced at once"
    )
    parser.add_argument(
        "--loader", choices=["synthetic", "native", "dali-cpu", "dali-gpu"], default="synthetic"
    )
    parser.add_argument(
        "--data-dir",
        default="",
        help="where class folders of JPEG files are, in train/ or directly",
    )
    parser.add_argument(
        "--workers", type=int, default=4, help="loader processes per rank, threads with DALI"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads per rank on cpu")
    parser.add_argument(
        "--timeout-s", type=float, default=120.0, help="longest wait for other ranks"
    )
    return trainer.parsed(parser, unusable)


def unusable(args: argparse.Namespace) -> str:
    """Return why these arguments cannot be used, or an empty text."""
    counts = ("batch_size", "steps", "num_classes", "bucket_cap_mb", "threads", "workers")
    if problem := trainer.unusable_values(args, counts):
        return problem
    if not 0 <= args.warmup_steps < args.steps:
        return f"--warmup-steps: expected 0 to {args.steps - 1}, fewer than the steps, got {args.warmup_steps}"
    if args.device == "cuda" and not paddle.is_compiled_with_cuda():
        return f"--device: expected a Paddle built for CUDA, {paddle.__version__} is not"
    if problem := trainer.unusable_loader(args):
        return problem
    if args.loader != "synthetic":
        import loaders

        if loaders.lacking(args.loader):
            return str(loaders.lacking(args.loader))
    if args.strategy == "auto" and not hasattr(dist, "shard_layer"):
        return (
            f"--strategy: auto needs the placement rules of Paddle 3, this is {paddle.__version__}"
        )
    return ""


# --- one step -------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """Everything that a step needs except images."""

    model: Any
    optimizer: Any
    scaler: Any
    cast: Any
    """Returns the context of the forward pass."""


def parts(args: argparse.Namespace, world_size: int) -> Parts:
    """Return the model, identical on all ranks, and the parts that train it. A single rank shares
    nothing.
    """
    collective, auto = (args.strategy == name and world_size > 1 for name in ("collective", "auto"))
    paddle.seed(args.seed)
    model = MODELS[args.model](num_classes=args.num_classes)
    initialise(model)
    if auto:
        model = dist.shard_layer(model, mesh(), whole_on_every_rank)
    optimizer = paddle.optimizer.Momentum(
        args.learning_rate,
        args.momentum,
        parameters=model.parameters(),
        weight_decay=args.weight_decay,
    )
    half = HALF_TYPES.get(args.dtype)
    if half and args.amp_level == "O2":
        model, optimizer = paddle.amp.decorate(model, optimizer, level="O2", dtype=half)
    scaler = (
        paddle.amp.GradScaler(init_loss_scaling=args.loss_scale) if args.dtype == "fp16" else None
    )
    if scaler and not scaler.is_enable():
        scaler = None  # as on a CPU, where AMP has no effect: it warns, and everything is computed in fp32
    if auto and scaler:
        scaler = dist.shard_scaler(scaler)
    if collective:
        model = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(optimizer)
    return Parts(model, optimizer, scaler, lambda: autocast(args, half))


def autocast(args: argparse.Namespace, half: Any) -> Any:
    """Return the context of one forward pass."""
    return paddle.amp.auto_cast(level=args.amp_level, dtype=half) if half else nullcontext()


def initialise(model: nn.Layer) -> None:
    """Initialise weights as in the papers, so that the loss stays finite: He for convolutions,
    small normal for the head.
    """
    for layer in model.sublayers():
        if isinstance(layer, nn.Conv2D):
            fan_out = layer.weight.shape[0] * layer.weight.shape[2] * layer.weight.shape[3]
            layer.weight.set_value(paddle.randn(layer.weight.shape) * (2.0 / fan_out) ** 0.5)
        elif isinstance(layer, nn.Linear):
            layer.weight.set_value(paddle.randn(layer.weight.shape) * 0.01)


def whole_on_every_rank(_: str, layer: nn.Layer, ranks: Any) -> None:
    """Replicate a layer's weights and statistics on all ranks."""
    for name, parameter in layer._parameters.items():
        if parameter is not None:
            layer.add_parameter(name, dist.shard_tensor(parameter, ranks, [dist.Replicate()]))
    for name, buffer in layer._buffers.items():
        if buffer is not None:
            layer._buffers[name] = dist.shard_tensor(buffer, ranks, [dist.Replicate()])


def unsharded(model: nn.Layer, images: Any) -> str:
    """Return the first kind of layer that copies a sharded batch as a whole, or an empty text: data
    parallelism ends there.
    """
    copying: list[str] = []

    def look(layer: nn.Layer, _: Any, output: Any) -> None:
        if not output.placements[0].is_shard(0):
            copying.append(type(layer).__name__)

    hooks = [
        layer.register_forward_post_hook(look)
        for layer in model.sublayers()
        if not list(layer.children())
    ]
    with paddle.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return copying[0] if copying else ""


def take(
    args: argparse.Namespace, whole: Parts, images: Any, labels: Any, stamp: Callable[[str], None]
) -> tuple[Any, Any]:
    """Take one step; return its loss, on the device, and the type of the model's output. ``stamp``
    gets the end of the forward pass: gradients are averaged in the backward pass alone."""
    with whole.cast():
        output = whole.model(images)
        # Without the last axis: Paddle cannot convert labels that have it to the one-hot form that
        # smoothing needs.
        loss = nn.functional.cross_entropy(
            output, labels.squeeze(-1), label_smoothing=args.label_smoothing
        )
    stamp("forward")
    if whole.scaler is None:
        loss.backward()
        whole.optimizer.step()
    else:
        whole.scaler.scale(loss).backward()
        whole.scaler.step(whole.optimizer)
        whole.scaler.update()
    whole.optimizer.clear_grad()
    return loss.detach(), output.dtype


def ignored(_: str) -> None:
    """Record no moment."""


class DeviceClock:
    """Timing of steps on a GPU, by events, so that the device's queue never runs empty for the sake
    of a log line.

    After step k the host waits for step k-2. `t` is the host's clock at one synchronised moment
    plus the device's own time since then. The loss is copied into pinned memory after its step.
    Whether the GPU has begun with a step is asked without waiting for it.
    """

    def __init__(self) -> None:
        self.queued: deque[tuple[int, Any, Any, Any, Any]] = deque()
        self.forward: Any = None

    def start(self) -> float:
        """Wait until the device is idle; return the monotonic clock."""
        paddle.device.synchronize()
        self.last = self._event()
        self.last.synchronize()
        self.t = time.monotonic()
        return self.t

    def begin(self) -> None:
        """Record that the images of the next step are ready, or will be when the device gets here."""
        self.begun = self._event()
        self.begun_host_s = time.perf_counter()

    def stamp(self, name: str) -> None:
        """Record the end of a part of the step; only that of `forward` is kept."""
        if name == "forward":
            event = self._event()
            self.forward = event, time.perf_counter() - self.begun_host_s, bool(self.begun.query())

    def mark(self, number: int, loss: Any) -> list[Step]:
        """Record the end of a step that is still queued; return the steps that are finished by now."""
        on_host = loss._copy_to(paddle.CUDAPinnedPlace(), False)
        self.queued.append((number, self.begun, self.forward, self._event(), on_host))
        self.forward = None
        return [self._oldest()] if len(self.queued) > 2 else []

    def rest(self) -> list[Step]:
        """Wait for the device; return the steps not yet returned."""
        return [self._oldest() for _ in range(len(self.queued))]

    def _event(self) -> Any:
        event = paddle.device.Event(enable_timing=True)
        event.record()
        return event

    def _oldest(self) -> Step:
        number, begun, forward, event, loss = self.queued.popleft()
        event.synchronize()
        waited, seconds = (self.last.elapsed_time(end) / 1000.0 for end in (begun, event))
        computed, waits = trainer.computed_in(begun, forward)
        self.last, self.t = event, self.t + seconds
        return Step(
            number, self.t, seconds, float(loss), waited, compute_s=computed, gpu_waits=waits
        )


# --- main -----------------------------------------------------------------------------------------


def train(args: argparse.Namespace, me: Identity) -> dict[str, Any]:
    """Take all steps, rank 0 printing them; return the facts of the run."""
    whole = parts(args, me.world_size)
    data = batches(args, me)
    samples = args.batch_size * me.world_size
    clock: Any = DeviceClock() if args.device == "cuda" else trainer.HostClock()
    window = RankParts(args.warmup_steps + 1, args.steps)
    stamp = (
        ignored if args.strategy == "auto" else clock.stamp
    )  # whose forward pass may communicate too

    def tell(finished: list[Step]) -> None:
        if me.rank == 0:
            trainer.say_steps(finished, samples)
        for step in finished:
            window.add(
                step.number,
                step.seconds,
                step.input_wait_s,
                step.compute_s,
                step.compute_cpu_s,
                step.gpu_waits,
            )

    if args.strategy == "auto" and me.world_size > 1:
        layer = unsharded(whole.model, next(data)[0])
        if layer:
            raise SystemExit(
                f"--strategy: expected collective, got auto: Paddle {paddle.__version__} has no placement rule for {layer} and"
                " would copy the whole global batch to every rank there, each computing all of it"
            )

    prove_world(me)  # also the barrier before the first step: from here on all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start)
    for number in range(1, args.steps + 1):
        rank_progress.mark(number, "input")
        images, labels = next(data)
        clock.begin()
        rank_progress.mark(number, "step")
        loss, output_dtype = take(args, whole, images, labels, stamp)
        tell(clock.mark(number, loss))
    tell(clock.rest())
    trainer.say(window.line(me.rank))
    rank_progress.mark(args.steps, "end")

    # In Paddle BatchNorm's statistics are parameters as well; they are not trained.
    parameters = sum(p.size for p in whole.model.parameters() if not p.stop_gradient)
    computed = str(output_dtype).split(".")[-1]
    return {
        "parameters": parameters,
        "gradient_bytes": parameters
        * (2 if args.amp_level == "O2" and computed in HALF_TYPES.values() else 4),
        "optimizer": "momentum",
        "output_dtype": computed,
        "loss_scale": float(whole.scaler._scale) if whole.scaler else None,
    }


def main() -> None:
    """Join, train, verify, report."""
    rank_progress.declare_pauses()
    args = arguments()
    me = identity()
    backend = join(args, me)
    name, host = device_name(args.device), socket.gethostname()
    trainer.say_rank(*me, host, name)
    run_facts = train(args, me)
    prove_world(me)
    ranks = gather(
        {"rank": me.rank, "host": host, "device": name, "memory_bytes": memory_bytes(args.device)},
        me.world_size,
    )
    if me.rank == 0:
        run_facts = {"backend": backend, **versions(), **run_facts}
        trainer.say_done(trainer.closing(args, ranks, run_facts))


if __name__ == "__main__":
    # Paddle's own handler allocates memory: a rank that receives SIGTERM while allocating would
    # hang forever.
    paddle.disable_signal_handler()
    faulthandler.enable()
    try:
        main()
    except Exception:
        trainer.leave_at_once()

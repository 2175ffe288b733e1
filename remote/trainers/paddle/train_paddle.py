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

Each rank has its own batch, and fleet averages the gradients.
"""

from __future__ import annotations

import argparse
import faulthandler
import socket
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, NamedTuple

import loaders
import paddle
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
    prove_world,
    versions,
)
from rank_parts import StepLog
from trainer import Identity

HALF_TYPES = {"fp16": "float16", "bf16": "bfloat16"}
# Paddle's own definitions: the stride of resnet50 is in its 3x3 convolutions, which is version 1.5.
MODELS = {"resnet50": paddle.vision.models.resnet50, "vgg16": paddle.vision.models.vgg16}


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.image_options(MODELS, "loader")
    add = partial(trainer.add_option, parser)
    add("dtype", "fp32", "fp16 and bf16: AMP", ["fp32", "tf32", "fp16", "bf16"])
    add("amp_level", "O1", "O2: also keep weights in that type", ["O1", "O2"])
    return parser.parse_args()


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
    paddle.seed(args.seed)
    model = MODELS[args.model](num_classes=args.num_classes)
    initialise(model)
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
    if world_size > 1:
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


class DeviceClock(trainer.EventClock):
    """Timing of steps on a GPU. The loss is copied into pinned memory after its step."""

    def event(self) -> Any:
        """Return an event of the device."""
        event = paddle.device.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Wait until the device is idle."""
        paddle.device.synchronize()

    def keep(self, number: int, loss: Any, scale: Any) -> tuple[Any, Any]:
        """Copy the loss, without waiting."""
        return loss._copy_to(paddle.CUDAPinnedPlace(), False), scale


# --- main -----------------------------------------------------------------------------------------


def train(args: argparse.Namespace, me: Identity) -> dict[str, Any]:
    """Take all steps, rank 0 printing them; return the facts of the run."""
    whole = parts(args, me.world_size)
    data = batches(args, me)
    clock: Any = DeviceClock() if args.device == "cuda" else trainer.HostClock()
    log = StepLog(args, me.rank, args.batch_size * me.world_size, clock)

    prove_world(me)  # also the barrier before the first step: from here on all ranks are ready
    log.start()
    for number in range(1, args.steps + 1):
        rank_progress.mark(number, "input")
        images, labels = next(data)
        clock.begin()
        rank_progress.mark(number, "step")
        loss, output_dtype = take(args, whole, images, labels, clock.stamp)
        log.tell(clock.mark(number, loss))
    log.end()

    # In Paddle BatchNorm's statistics are parameters as well; they are not trained.
    parameters = sum(p.size for p in whole.model.parameters() if not p.stop_gradient)
    computed = str(output_dtype).split(".")[-1]
    return {
        "global_batch": log.samples,
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
    loaders.require(args.loader)
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
        trainer.say_done(
            trainer.of_all(args, ranks, {"backend": backend, **versions(), **run_facts})
        )


if __name__ == "__main__":
    # Paddle's own handler allocates memory: a rank that receives SIGTERM while allocating would
    # hang forever.
    paddle.disable_signal_handler()
    faulthandler.enable()
    try:
        main()
    except Exception:
        trainer.leave_at_once()

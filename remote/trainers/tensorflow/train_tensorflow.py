"""Train ResNet-50 v1.5 or VGG16 with MultiWorkerMirroredStrategy, and print one line per step.

Needs TensorFlow 2.4 or newer and Python 3.8 or newer. Next to this file are the models (tf_models.py), the images
(tf_images.py), the ranks (tf_ranks.py) and the code shared with other trainers (trainer.py).

One process per node, as is usual in TensorFlow, drives all GPUs of the node; each GPU, or the CPU, is one replica and counts as
one rank. The environment has TF_CONFIG with all workers and this one's index, WORLD_SIZE, RANK, the first of this node's
ranks, and LOCAL_RANK, 0:

    TF_CONFIG='{"cluster": {"worker": ["10.11.0.2:2222", "10.11.0.3:2222"]}, "task": {"type": "worker", "index": 0}}' \\
        RANK=0 LOCAL_RANK=0 WORLD_SIZE=16 python train_tensorflow.py --device cuda --dtype fp16 --batch-size 256

Every node prints one `orch rank=` line for each of its ranks, and on a CPU `orch parts {json}` after the last step
(rank_parts.py); the first one prints one `orch step=` line per step and `orch done {json}` at the end. Synthetic images are
made once, on the device: a step contains no input pipeline. The other loaders are tf.data over image folders (`native`) or
TFRecords (`tfrecord`); waiting for them is part of a step.

Plain TensorFlow, no Keras: `fit` and the optimizers of Keras 2 and 3 behave differently under this strategy, Keras 3 has no
fused batch norm, and keras.applications' ResNet50 is version 1, not 1.5.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections import deque
from functools import partial
from typing import Any

import rank_progress
import tensorflow as tf
import trainer
from rank_parts import StepLog
from tf_images import batches
from tf_models import COMPUTE_TYPES, MODELS, Seeds
from tf_ranks import (
    Identity,
    device_name,
    gather,
    identity,
    join,
    memory_bytes,
    prove_world,
    versions,
)

# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.image_options(MODELS)
    add = partial(trainer.add_option, parser)
    add("dtype", "fp32", "fp16 and bf16: weights stay fp32", sorted(COMPUTE_TYPES))
    add("replicas", 1, "devices on this node")
    add("xla", False, "compile the forward and backward pass with XLA")
    add("grappler", True, "let TensorFlow rewrite the graph before it runs")
    add("all_reduce", "auto", "auto: nccl on cuda, ring on cpu", ["auto", "nccl", "ring"])
    add("compress", "none", "dtype of gradients on the wire", ["none", "fp16"])
    add("loader", "synthetic", "", ["synthetic", "native", "tfrecord"])
    return parser.parse_args()


def claim_devices(args: argparse.Namespace) -> list[str]:
    """Set up this process before its first operation; return the devices of its replicas."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not args.grappler})
    # Make fp32 mean fp32: TensorFlow's default is TF32 on GPUs that have it.
    tf.config.experimental.enable_tensor_float_32_execution(args.dtype == "tf32")
    if args.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(args.threads)
        devices = ["/cpu:0"]
    else:
        gpus = tf.config.list_physical_devices("GPU")
        devices = [f"/gpu:{index}" for index in range(len(gpus))]
    if len(devices) != args.replicas:
        raise SystemExit(
            f"--device: expected {args.replicas} devices, TensorFlow {tf.__version__} finds {len(devices)}:"
            " a CPU is one replica, for --gpus 1"
        )
    return devices


# --- one step -------------------------------------------------------------------------------------


class Trainer:
    """The model and its training: SGD with momentum on mirrored variables, gradients averaged over
    all replicas.
    """

    def __init__(self, args: argparse.Namespace, strategy: tf.distribute.Strategy) -> None:
        self.args, self.strategy = args, strategy
        self.compute_type = COMPUTE_TYPES[args.dtype]
        with strategy.scope():
            self.model = MODELS[args.model](Seeds(args.seed), args.num_classes)
            self.variables = list(self.model.trainable_variables)
            self.velocities = [
                tf.Variable(tf.zeros(variable.shape), trainable=False)
                for variable in self.variables
            ]
            self.loss_scale = tf.Variable(
                args.loss_scale if args.dtype == "fp16" else 1.0, trainable=False
            )
        # On a GPU the graph runs ahead of its kernels, and XLA knows no clock.
        self.tells_forward = args.device == "cpu" and not args.xla
        # Only this part is compiled: XLA does not support the collectives of this strategy.
        self.gradients = tf.function(self._gradients, jit_compile=args.xla)
        self.reduction = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=args.bucket_cap_mb << 20, timeout_seconds=args.timeout_s
        )

    @tf.function
    def step(self, images: Any, labels: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Take one step on all replicas; return the loss of this node's first replica, and when its
        forward pass ended, in seconds of the system's clock: on a CPU, 0 where that is not known.
        """
        results = self.strategy.run(self._replica, args=(images, labels))
        loss, forward = (self.strategy.experimental_local_results(result)[0] for result in results)
        return loss, forward

    def _gradients(
        self, images: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape() as tape:
            output = self.model(tf.cast(images, self.compute_type))
            self.output_dtype = output.dtype.name  # recorded once, while tracing
            logits = tf.cast(output, tf.float32)
            smoothing, classes = self.args.label_smoothing, self.args.num_classes
            targets = tf.one_hot(labels, classes) * (1.0 - smoothing) + smoothing / classes
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits))
            scaled = loss * self.loss_scale
        forward = tf.constant(0.0, tf.float64)
        if self.tells_forward:
            with tf.control_dependencies([loss]):
                forward = tf.timestamp()
        return loss, tape.gradient(scaled, self.variables), forward

    def _replica(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss, gradients, forward = self.gradients(images, labels)
        replica = tf.distribute.get_replica_context()
        if self.args.compress == "fp16":
            gradients = [tf.cast(gradient, tf.float16) for gradient in gradients]
        gradients = replica.all_reduce(tf.distribute.ReduceOp.MEAN, gradients, self.reduction)
        gradients = [tf.cast(gradient, tf.float32) for gradient in gradients]
        finite = tf.constant(True)
        if self.args.dtype == "fp16" or self.args.compress == "fp16":
            finite = tf.reduce_all(
                [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients]
            )
        replica.merge_call(self._update, args=(gradients, finite))
        return loss, forward

    def _update(self, strategy: tf.distribute.Strategy, gradients: list[Any], finite: Any) -> None:
        for variable, velocity, gradient in zip(self.variables, self.velocities, gradients):
            strategy.extended.update(
                variable,
                self._descend,
                args=(velocity, gradient, finite, self.loss_scale),
                group=True,
            )
        if self.args.dtype == "fp16":
            strategy.extended.update(self.loss_scale, halve_unless, args=(finite,), group=True)

    def _descend(
        self, variable: Any, velocity: Any, gradient: Any, finite: Any, loss_scale: Any
    ) -> tf.Operation:
        """Take one step of SGD, on one device. After an overflow the kernel still runs, but changes
        nothing.
        """
        args = self.args
        scale = tf.cast(finite, tf.float32)
        gradient = tf.math.multiply_no_nan(
            gradient + loss_scale * args.weight_decay * variable, scale / loss_scale
        )
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=velocity.handle,
            lr=args.learning_rate * scale,
            grad=gradient,
            momentum=1.0 - scale * (1.0 - args.momentum),
        )


def halve_unless(scale: Any, finite: Any) -> Any:
    """Halve the loss scale after an overflow."""
    return scale.assign(tf.where(finite, scale, tf.maximum(scale / 2.0, 1.0)))


# --- main -----------------------------------------------------------------------------------------


def train(
    args: argparse.Namespace, me: Identity, strategy: tf.distribute.Strategy, devices: list[str]
) -> dict[str, Any]:
    """Take all steps, the first node printing them; return the facts of the run."""
    whole = Trainer(args, strategy)
    data = batches(args, me, strategy, devices)
    # A GPU gets its next step before the host waits for this one. One extra step follows the last,
    # so that it is timed alike.
    ahead = 1 if args.device == "cuda" else 0
    queued: deque[tuple[int, tf.Tensor]] = deque()
    clock = trainer.HostClock()
    log = StepLog(args, me.rank, args.batch_size * me.world_size, clock)

    prove_world(
        me, strategy
    )  # also the barrier before the first step: from here on all ranks are ready
    log.start()
    for number in range(1, args.steps + ahead + 1):
        rank_progress.mark(number, "input")
        samples_of_step = next(data)
        clock.begin()
        begun = time.time()
        rank_progress.mark(number, "step")
        loss, forward = whole.step(*samples_of_step)
        queued.append((number, loss))
        if len(queued) > ahead:
            oldest, loss = queued.popleft()
            finished = clock.mark(oldest, float(loss))  # waits for the loss, and so for the step
            if whole.tells_forward:
                forward_s = float(forward) - begun
                finished = [step._replace(compute_s=forward_s) for step in finished]
            log.tell(finished)
    # On a GPU the host does not see when a step begins.
    log.end(has_parts=args.device == "cpu")
    parameters = sum(variable.shape.num_elements() for variable in whole.variables)
    return {
        "global_batch": log.samples,
        "parameters": parameters,
        "gradient_bytes": parameters * (2 if args.compress == "fp16" else 4),
        "optimizer": "sgd momentum",
        "output_dtype": whole.output_dtype,
        "loss_scale": float(tf.convert_to_tensor(whole.loss_scale))
        if args.dtype == "fp16"
        else None,
    }


def main() -> None:
    """Join, train, verify, report."""
    rank_progress.declare_pauses()
    args = arguments()
    me = identity(args.replicas)
    devices = claim_devices(args)
    names, host = [device_name(device) for device in devices], socket.gethostname()
    strategy, backend = join(args, me)
    for index, name in enumerate(names):
        trainer.say_rank(me.rank + index, index, me.world_size, me.node_rank, host, name)
    run_facts = train(args, me, strategy, devices)
    prove_world(me, strategy)
    facts = [
        {
            "rank": me.rank + index,
            "host": host,
            "device": name,
            "memory_bytes": memory_bytes(devices[index]),
        }
        for index, name in enumerate(names)
    ]
    ranks = gather(facts, me, strategy)
    if me.rank == 0:
        trainer.say_done(
            trainer.of_all(args, ranks, {"backend": backend, **versions(), **run_facts})
        )


if __name__ == "__main__":
    try:
        main()
    except Exception:
        trainer.leave_at_once()

"""Train ResNet-50 v1.5 or VGG16 with MultiWorkerMirroredStrategy, and print one line per step.

Needs TensorFlow 2.4 or newer and Python 3.8 or newer. What it shares with its like is in trainer.py beside this file. One
process per node, as TensorFlow has it, drives all GPUs of the node; each GPU, or the CPU, is one replica and counts as one
rank. Who it is, it reads from the environment: TF_CONFIG with all workers and this one's index, WORLD_SIZE, and RANK, the
first of this node's ranks:

    TF_CONFIG='{"cluster": {"worker": ["10.11.0.2:2222", "10.11.0.3:2222"]}, "task": {"type": "worker", "index": 0}}' \\
        RANK=0 WORLD_SIZE=16 python train_tensorflow.py --model resnet50 --device cuda --dtype fp16 --batch-size 256

Every node prints one `orch rank=` line for each of its ranks; the first one prints one `orch step=` line for each step and
`orch done {json}` at the end. Synthetic images are made once, on the device: no input pipeline is part of a step. The other
loaders are tf.data over image folders (`native`) or TFRecords (`tfrecord`); waiting for them is part of a step.

Plain TensorFlow, no Keras: `fit` and the optimizers of Keras 2 and 3 behave differently under this strategy, Keras 3 has no
fused batch norm, and keras.applications' ResNet50 is version 1, not 1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
from collections import deque
from itertools import repeat
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import tensorflow as tf
import trainer

COMPUTE_TYPES = {"fp32": tf.float32, "tf32": tf.float32, "fp16": tf.float16, "bf16": tf.bfloat16}
MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
DEVIATION = (0.229 * 255, 0.224 * 255, 0.225 * 255)


# --- models ---------------------------------------------------------------------------------------------------------------


class Seeds:
    """Numbers for the weights: the same on all nodes, other ones for each variable."""

    def __init__(self, seed: int) -> None:
        self.seed, self.count = seed, 0

    def normal(self, shape: Sequence[int], deviation: float) -> tf.Tensor:
        """Return normally distributed values."""
        self.count += 1
        return tf.random.stateless_normal(shape, seed=[self.seed, self.count], stddev=deviation)


class Conv(tf.Module):
    """A convolution with padding as PyTorch has it, the same on both sides."""

    def __init__(self, seeds: Seeds, channels_in: int, width: int, size: int, stride: int = 1, bias: bool = False) -> None:
        super().__init__()
        he = (2.0 / (size * size * width)) ** 0.5
        self.kernel = tf.Variable(seeds.normal([size, size, channels_in, width], he))
        self.bias = tf.Variable(tf.zeros([width])) if bias else None
        self.stride = stride
        self.padding = [[0, 0], [size // 2] * 2, [size // 2] * 2, [0, 0]]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the convolved images, computed in the type of ``x``."""
        y = tf.nn.conv2d(x, tf.cast(self.kernel, x.dtype), self.stride, self.padding)
        return y if self.bias is None else tf.nn.bias_add(y, tf.cast(self.bias, x.dtype))


class BatchNorm(tf.Module):
    """Batch norm in one kernel; scale, offset and statistics stay fp32, statistics each replica's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        own: dict[str, Any] = {
            "trainable": False,
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.MEAN,
        }
        self.scale, self.offset = tf.Variable(tf.ones([width])), tf.Variable(tf.zeros([width]))
        self.mean, self.variance = tf.Variable(tf.zeros([width]), **own), tf.Variable(tf.ones([width]), **own)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the normalised images, as in training."""
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=self.scale, offset=self.offset, mean=[], variance=[], epsilon=1e-5, is_training=True
        )
        self.mean.assign_sub(0.1 * (self.mean - mean))
        self.variance.assign_sub(0.1 * (self.variance - variance))
        return y


class Bottleneck(tf.Module):
    """1x1, 3x3, 1x1 and a shortcut. Version 1.5: the stride is in the 3x3; version 1 had it in the first 1x1."""

    def __init__(self, seeds: Seeds, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv(seeds, channels_in, width, 1), BatchNorm(width)
        self.conv2, self.bn2 = Conv(seeds, width, width, 3, stride), BatchNorm(width)
        self.conv3, self.bn3 = Conv(seeds, width, 4 * width, 1), BatchNorm(4 * width)
        self.project: Any = None
        if stride != 1 or channels_in != 4 * width:
            self.project, self.bn4 = Conv(seeds, channels_in, 4 * width, 1, stride), BatchNorm(4 * width)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the block's output, at 1/stride of the size."""
        y = tf.nn.relu(self.bn1(self.conv1(x)))
        y = tf.nn.relu(self.bn2(self.conv2(y)))
        shortcut = x if self.project is None else self.bn4(self.project(x))
        return tf.nn.relu(self.bn3(self.conv3(y)) + shortcut)


class Dense(tf.Module):
    """A fully connected layer."""

    def __init__(self, seeds: Seeds, channels_in: int, width: int) -> None:
        super().__init__()
        self.kernel, self.bias = tf.Variable(seeds.normal([channels_in, width], 0.01)), tf.Variable(tf.zeros([width]))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the products, computed in the type of ``x``."""
        return tf.nn.bias_add(tf.matmul(x, tf.cast(self.kernel, x.dtype)), tf.cast(self.bias, x.dtype))


class ResNet50(tf.Module):
    """ResNet-50 v1.5: 25,557,032 trainable parameters at 1000 classes."""

    def __init__(self, seeds: Seeds, num_classes: int) -> None:
        super().__init__()
        self.stem, self.bn = Conv(seeds, 3, 64, 7, 2), BatchNorm(64)
        self.blocks: list[Bottleneck] = []
        channels = 64
        for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(blocks):
                self.blocks.append(Bottleneck(seeds, channels, width, first_stride if block == 0 else 1))
                channels = 4 * width
        self.head = Dense(seeds, channels, num_classes)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Return the logits."""
        x = tf.nn.relu(self.bn(self.stem(images)))
        # Zeros around what relu gave cannot win, so this is the padding of PyTorch's max pooling.
        x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
        for block in self.blocks:
            x = block(x)
        return self.head(tf.reduce_mean(x, [1, 2]))


class VGG16(tf.Module):
    """VGG16 without BatchNorm: 138,357,544 parameters at 1000 classes, at any image size of 32 or more.

    The head takes 7x7 values of each channel: the mean of a larger grid's cells, or a smaller grid's values repeated.
    """

    def __init__(self, seeds: Seeds, num_classes: int) -> None:
        super().__init__()
        self.stages: list[list[Conv]] = []
        channels = 3
        for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            self.stages.append([])
            for _ in range(convolutions):
                self.stages[-1].append(Conv(seeds, channels, width, 3, bias=True))
                channels = width
        self.dense = [Dense(seeds, 512 * 7 * 7, 4096), Dense(seeds, 4096, 4096), Dense(seeds, 4096, num_classes)]

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Return the logits."""
        x = images
        for stage in self.stages:
            for convolution in stage:
                x = tf.nn.relu(convolution(x))
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.reshape(seven_by_seven(x), [-1, 512 * 7 * 7])
        for dense in self.dense[:-1]:
            x = tf.nn.dropout(tf.nn.relu(dense(x)), 0.5)
        return self.dense[-1](x)


def seven_by_seven(x: tf.Tensor) -> tf.Tensor:
    """Return a 7x7 grid: each cell the mean of the part of ``x`` that it covers, as adaptive pooling has it."""
    size = x.shape[1]
    if size == 7:
        return x
    edges = [(cell * size // 7, -(-(cell + 1) * size // 7)) for cell in range(7)]
    rows = tf.stack([tf.reduce_mean(x[:, low:high], 1) for low, high in edges], 1)
    return tf.stack([tf.reduce_mean(rows[:, :, low:high], 2) for low, high in edges], 2)


MODELS: dict[str, Callable[[Seeds, int], tf.Module]] = {"resnet50": ResNet50, "vgg16": VGG16}


# --- what is asked for, and who asks --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = trainer.options(MODELS)
    parser.add_argument("--dtype", choices=sorted(COMPUTE_TYPES), default="fp32", help="fp16 and bf16: weights stay fp32")
    parser.add_argument("--replicas", type=int, default=1, help="devices of this node")
    parser.add_argument("--xla", default="false", help="compile forward and backward pass with XLA", **trainer.SWITCH)
    parser.add_argument("--grappler", default="true", help="let TensorFlow rewrite the graph before it runs", **trainer.SWITCH)
    parser.add_argument(
        "--all-reduce", choices=["auto", "nccl", "ring"], default="auto", help="auto: nccl on cuda, ring on cpu"
    )
    parser.add_argument("--bucket-cap-mb", type=int, default=25, help="MiB of gradients reduced at once; 0: no packing")
    parser.add_argument("--compress", choices=["none", "fp16"], default="none", help="type of gradients on the wire")
    parser.add_argument("--loader", choices=["synthetic", "native", "tfrecord"], default="synthetic")
    parser.add_argument("--data-dir", default="", help="holds train/<class>/*.jpg, or tfrecord/train-*; or these directly")
    parser.add_argument("--workers", type=int, default=4, help="images made at the same time, on each node")
    parser.add_argument("--threads", type=int, default=1, help="threads of one kernel on cpu")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest wait of an all-reduce")
    return trainer.parsed(parser, unusable)


def unusable(asked: argparse.Namespace) -> str:
    """Return why these arguments cannot be run, or nothing."""
    counts = ("batch_size", "steps", "num_classes", "threads", "replicas", "workers")
    if problem := trainer.unusable_values(asked, counts):
        return problem
    if asked.device == "cpu" and asked.replicas > 1:
        return f"--replicas: expected 1 on cpu, got {asked.replicas}: a node's CPU is one replica. take --gpus 1"
    if problem := trainer.unusable_loader(asked):
        return problem
    if asked.device == "cpu" and asked.all_reduce == "nccl":
        return "--all-reduce: expected ring on cpu, got nccl"
    return ""


class Identity(NamedTuple):
    """Who this process is among all: its ranks are ``rank`` … ``rank + replicas - 1``."""

    rank: int
    replicas: int
    world_size: int
    node_rank: int


def identity(replicas: int) -> Identity:
    """Read the environment. Raises SystemExit naming what is missing or does not fit."""
    missing = [name for name in ("RANK", "WORLD_SIZE", "TF_CONFIG") if name not in os.environ]
    if missing:
        raise SystemExit(f"environment: expected {', '.join(missing)} to be set")
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        workers, task = config["cluster"]["worker"], config["task"]
        index = int(task["index"])
        if task["type"] != "worker" or not 0 <= index < len(workers):
            raise ValueError(f"task {task} of {len(workers)} workers")
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"TF_CONFIG: expected workers and the index of this one, got {error}") from None
    me = Identity(int(os.environ["RANK"]), replicas, int(os.environ["WORLD_SIZE"]), index)
    if (me.rank, me.world_size) != (index * replicas, len(workers) * replicas):
        expected = f"RANK {index * replicas} and WORLD_SIZE {len(workers) * replicas} with {replicas} replicas on each node"
        raise SystemExit(f"TF_CONFIG: expected {expected}, got {me.rank} and {me.world_size}")
    return me


def claim_devices(asked: argparse.Namespace) -> list[str]:
    """Set up this process before its first operation; return the devices of its replicas."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": asked.grappler == "false"})
    # fp32 is to mean fp32: the default is TF32 wherever a GPU has it.
    tf.config.experimental.enable_tensor_float_32_execution(asked.dtype == "tf32")
    if asked.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(asked.threads)
        return ["/cpu:0"]
    found = tf.config.list_physical_devices("GPU")
    if len(found) != asked.replicas:
        raise SystemExit(f"--device: expected {asked.replicas} visible GPUs, TensorFlow {tf.__version__} finds {len(found)}")
    return [f"/gpu:{index}" for index in range(asked.replicas)]


def device_name(device: str) -> str:
    """Return what a device calls itself."""
    if device.startswith("/gpu:"):
        gpu = tf.config.list_physical_devices("GPU")[int(device.split(":")[1])]
        return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))
    return trainer.cpu_name()


def join(asked: argparse.Namespace, me: Identity) -> tuple[tf.distribute.Strategy, str]:
    """Meet the other nodes; return the strategy and its way of reducing."""
    backend = {"cuda": "nccl", "cpu": "ring"}[asked.device] if asked.all_reduce == "auto" else asked.all_reduce
    implementation = getattr(tf.distribute.experimental.CommunicationImplementation, backend.upper())
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if strategy.num_replicas_in_sync != me.world_size:
        raise SystemExit(f"WORLD_SIZE: expected {me.world_size} replicas, TensorFlow made {strategy.num_replicas_in_sync}")
    return strategy, backend


# --- one step -------------------------------------------------------------------------------------------------------------


class Trainer:
    """The model with what trains it: SGD with momentum on mirrored variables, gradients averaged over all replicas."""

    def __init__(self, asked: argparse.Namespace, strategy: tf.distribute.Strategy) -> None:
        self.asked, self.strategy = asked, strategy
        self.compute_type = COMPUTE_TYPES[asked.dtype]
        with strategy.scope():
            self.model = MODELS[asked.model](Seeds(asked.seed), asked.num_classes)
            self.variables = list(self.model.trainable_variables)
            self.velocities = [tf.Variable(tf.zeros(variable.shape), trainable=False) for variable in self.variables]
            self.loss_scale = tf.Variable(asked.loss_scale if asked.dtype == "fp16" else 1.0, trainable=False)
        # Only this part is compiled: XLA does not know the collectives of this strategy.
        self.gradients = tf.function(self._gradients, jit_compile=asked.xla == "true")
        self.reduction = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=asked.bucket_cap_mb << 20, timeout_seconds=asked.timeout_s
        )

    @tf.function
    def step(self, images: Any, labels: Any) -> tf.Tensor:
        """Take one step on all replicas; return the loss of this node's first."""
        losses = self.strategy.run(self._replica, args=(images, labels))
        return self.strategy.experimental_local_results(losses)[0]

    def _gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            output = self.model(tf.cast(images, self.compute_type))
            self.output_dtype = output.dtype.name  # noted once, when this is traced
            logits = tf.cast(output, tf.float32)
            smoothing, classes = self.asked.label_smoothing, self.asked.num_classes
            wanted = tf.one_hot(labels, classes) * (1.0 - smoothing) + smoothing / classes
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(wanted, logits))
            scaled = loss * self.loss_scale
        return loss, tape.gradient(scaled, self.variables)

    def _replica(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, gradients = self.gradients(images, labels)
        here = tf.distribute.get_replica_context()
        if self.asked.compress == "fp16":
            gradients = [tf.cast(gradient, tf.float16) for gradient in gradients]
        gradients = here.all_reduce(tf.distribute.ReduceOp.MEAN, gradients, self.reduction)
        gradients = [tf.cast(gradient, tf.float32) for gradient in gradients]
        finite = tf.constant(True)
        if self.asked.dtype == "fp16" or self.asked.compress == "fp16":
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        here.merge_call(self._update, args=(gradients, finite))
        return loss

    def _update(self, strategy: tf.distribute.Strategy, gradients: list[Any], finite: Any) -> None:
        for variable, velocity, gradient in zip(self.variables, self.velocities, gradients):
            strategy.extended.update(variable, self._descend, args=(velocity, gradient, finite, self.loss_scale), group=True)
        if self.asked.dtype == "fp16":
            strategy.extended.update(self.loss_scale, halve_unless, args=(finite,), group=True)

    def _descend(self, variable: Any, velocity: Any, gradient: Any, finite: Any, loss_scale: Any) -> tf.Operation:
        """Take one step of SGD, on one device. After an overflow the kernel runs all the same and changes nothing."""
        asked = self.asked
        good = tf.cast(finite, tf.float32)
        gradient = tf.math.multiply_no_nan(gradient + loss_scale * asked.weight_decay * variable, good / loss_scale)
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=velocity.handle,
            lr=asked.learning_rate * good,
            grad=gradient,
            momentum=1.0 - good * (1.0 - asked.momentum),
        )


def halve_unless(scale: Any, finite: Any) -> Any:
    """Halve the loss scale after an overflow."""
    return scale.assign(tf.where(finite, scale, tf.maximum(scale / 2.0, 1.0)))


def synthetic(
    asked: argparse.Namespace, me: Identity, strategy: tf.distribute.Strategy, devices: list[str]
) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels that never change, other ones on each rank."""

    def local(rank: int, what: Callable[[list[int]], tf.Tensor]) -> tf.Tensor:
        with tf.device(devices[rank - me.rank]):
            return what([asked.seed + 1, rank])

    def images(seed: list[int]) -> tf.Tensor:
        made = tf.random.stateless_normal([asked.batch_size, asked.image_size, asked.image_size, 3], seed)
        return tf.cast(made, COMPUTE_TYPES[asked.dtype])

    def labels(seed: list[int]) -> tf.Tensor:
        return tf.random.stateless_uniform([asked.batch_size], seed, 0, asked.num_classes, tf.int32)

    pair = tuple(
        strategy.experimental_distribute_values_from_function(
            lambda context, what=what: local(int(context.replica_id_in_sync_group), what)
        )
        for what in (images, labels)
    )
    return repeat((pair[0], pair[1]))


# --- images from disk -----------------------------------------------------------------------------------------------------


def image_files(asked: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Return paths and labels of all images, in order of name."""
    folder = Path(asked.data_dir).expanduser()
    folder = folder / "train" if (folder / "train").is_dir() else folder
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    endings = (".jpg", ".jpeg")
    found = [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in endings
    ]
    if not found:
        raise SystemExit(f"--data-dir: expected folders of JPEG files in {folder}, found none. see: orch dataset make")
    if len(classes) > asked.num_classes:
        raise SystemExit(f"--num-classes: expected {len(classes)} or more for {folder}, got {asked.num_classes}")
    return [path for path, _ in found], [label for _, label in found]


def record_files(asked: argparse.Namespace) -> list[str]:
    """Return the TFRecord files, in order of name."""
    folder = Path(asked.data_dir).expanduser()
    folder = folder / "tfrecord" if (folder / "tfrecord").is_dir() else folder
    found = sorted(str(path) for path in folder.glob("train-*"))
    if not found:
        raise SystemExit(f"--data-dir: expected TFRecords train-* in {folder}, found none. see: orch dataset make")
    return found


def epoch(asked: argparse.Namespace, nodes: int, node: int) -> tf.data.Dataset:
    """Return a node's share of an epoch as (JPEG, label), in another random order each time that it is gone through.

    The order is drawn alike on all nodes before it is shared out: no image goes to two of them.
    """
    if asked.loader == "native":
        paths, labels = image_files(asked)
        pairs = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths), asked.seed).shard(nodes, node)
        return pairs.map(lambda path, label: (tf.io.read_file(path), label), asked.workers)
    files = record_files(asked)
    records: Any = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files), asked.seed)
    # Whole files for each node where there are enough of them: nobody reads what another one uses.
    if len(files) >= nodes:
        records = records.shard(nodes, node).interleave(
            tf.data.TFRecordDataset, cycle_length=asked.workers, num_parallel_calls=asked.workers
        )
    else:
        records = records.interleave(tf.data.TFRecordDataset).shard(nodes, node)
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def pair(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, features)
        return parsed["image/encoded"], tf.cast(parsed["image/class/label"], tf.int32) - 1  # ImageNet's count from 1

    return records.shuffle(1024).map(pair, asked.workers)


def pixels(asked: argparse.Namespace, jpeg: tf.Tensor) -> tf.Tensor:
    """Return a random part of an image, resized, in half of the cases mirrored, normalised."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(jpeg),
        tf.zeros([1, 0, 4]),
        seed=asked.seed,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.image.decode_and_crop_jpeg(jpeg, tf.stack([begin[0], begin[1], size[0], size[1]]), channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, [asked.image_size] * 2), asked.seed)
    return tf.cast((image - MEAN) / DEVIATION, COMPUTE_TYPES[asked.dtype])


def from_disk(asked: argparse.Namespace, strategy: tf.distribute.Strategy) -> Iterator[tuple[Any, Any]]:
    """Yield batches of tf.data."""

    def made(context: Any) -> tf.data.Dataset:
        encoded = epoch(asked, context.num_input_pipelines, context.input_pipeline_id).repeat()
        images = encoded.map(lambda jpeg, label: (pixels(asked, jpeg), label), asked.workers)
        return images.batch(asked.batch_size, drop_remainder=True).prefetch(2)

    return iter(strategy.distribute_datasets_from_function(made))


def batches(
    asked: argparse.Namespace, me: Identity, strategy: tf.distribute.Strategy, devices: list[str]
) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels of this node's replicas, without end."""
    if asked.loader == "synthetic":
        return synthetic(asked, me, strategy, devices)
    return from_disk(asked, strategy)


# --- what is said ---------------------------------------------------------------------------------------------------------


def of_ranks(me: Identity, strategy: tf.distribute.Strategy, values: Sequence[Sequence[float]]) -> Any:
    """Return one row of numbers of each local rank as a value of the strategy. Numbers up to 2**24 stay exact."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([values[int(context.replica_id_in_sync_group) - me.rank]], tf.float32)
    )


def gather(facts: Sequence[dict[str, Any]], me: Identity, strategy: tf.distribute.Strategy) -> list[dict[str, Any]]:
    """Return what every rank says of itself, in order of rank."""
    rows = strategy.gather(of_ranks(me, strategy, [trainer.packed(one) for one in facts]), axis=0)
    return [trainer.unpacked(row) for row in rows.numpy().tolist()]


def prove_world(me: Identity, strategy: tf.distribute.Strategy) -> None:
    """Add up all ranks. Raises RuntimeError where they are not exactly 0 … world_size-1."""
    mine = of_ranks(me, strategy, [[me.rank + index, 1] for index in range(me.replicas)])
    total = strategy.reduce("SUM", mine, axis=None).numpy()[0]
    trainer.check_ranks([int(value) for value in total], me.world_size)


def memory_bytes(device: str) -> int:
    """Return the most memory held: of the GPU's, or resident."""
    if device.startswith("/gpu:"):
        return int(tf.config.experimental.get_memory_info(device[1:].upper())["peak"])
    return trainer.resident_bytes()


def versions() -> dict[str, Any]:
    """Return the versions that may change the speed; None for what is not there or not said: TensorFlow keeps NCCL's."""
    build = tf.sysconfig.get_build_info()
    return {
        "framework": "tensorflow",
        "framework_version": tf.__version__,
        "python": platform.python_version(),
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
        "nccl": None,
    }


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def train(asked: argparse.Namespace, me: Identity, strategy: tf.distribute.Strategy, devices: list[str]) -> dict[str, Any]:
    """Take all steps, the first node printing them; return what was found out on the way."""
    whole = Trainer(asked, strategy)
    data = batches(asked, me, strategy, devices)
    samples = asked.batch_size * me.world_size
    # A GPU gets its next step before the host waits for this one. The last step is seen like all others, with one behind it.
    ahead = 1 if asked.device == "cuda" else 0
    queued: deque[tuple[int, tf.Tensor]] = deque()
    clock = trainer.HostClock()

    prove_world(me, strategy)  # also the barrier before the first step: from here on, all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start)
    for number in range(1, asked.steps + ahead + 1):
        queued.append((number, whole.step(*next(data))))
        if len(queued) > ahead:
            oldest, loss = queued.popleft()
            finished = clock.mark(oldest, float(loss))  # waits for the loss, and so for the step
            if me.rank == 0:
                trainer.say_steps(finished, samples)

    parameters = sum(variable.shape.num_elements() for variable in whole.variables)
    return {
        "parameters": parameters,
        "gradient_bytes": parameters * (2 if asked.compress == "fp16" else 4),
        "optimizer": "sgd momentum",
        "output_dtype": whole.output_dtype,
        "loss_scale": float(tf.convert_to_tensor(whole.loss_scale)) if asked.dtype == "fp16" else None,
    }


def main() -> None:
    """Join, train, prove, report."""
    asked = arguments()
    me = identity(asked.replicas)
    devices = claim_devices(asked)
    names, host = [device_name(device) for device in devices], socket.gethostname()
    strategy, backend = join(asked, me)
    for index, name in enumerate(names):
        trainer.say_rank(me.rank + index, index, me.world_size, me.node_rank, host, name)
    found = train(asked, me, strategy, devices)
    prove_world(me, strategy)
    facts = [
        {"rank": me.rank + index, "host": host, "device": name, "memory_bytes": memory_bytes(devices[index])}
        for index, name in enumerate(names)
    ]
    ranks = gather(facts, me, strategy)
    if me.rank == 0:
        found = {"backend": backend, **versions(), **found}
        trainer.say_done(trainer.closing(asked, ranks, found, switches=("xla", "grappler")))


if __name__ == "__main__":
    try:
        main()
    except Exception:
        trainer.leave_at_once()

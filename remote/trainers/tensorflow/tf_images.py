"""Images and labels for train_tensorflow.py, on the devices of a node's replicas: `batches`.

Synthetic ones never change; the others are tf.data over image folders or TFRecords.
"""

from __future__ import annotations

import argparse
from itertools import repeat
from pathlib import Path
from typing import Any, Callable, Iterator

import loaders
import tensorflow as tf
from tf_models import COMPUTE_TYPES
from tf_ranks import Identity


def synthetic(
    args: argparse.Namespace, me: Identity, strategy: tf.distribute.Strategy, devices: list[str]
) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels that never change and differ between ranks."""

    def local(rank: int, make: Callable[[list[int]], tf.Tensor]) -> tf.Tensor:
        with tf.device(devices[rank - me.rank]):
            return make([args.seed + 1, rank])

    def images(seed: list[int]) -> tf.Tensor:
        normal = tf.random.stateless_normal(
            [args.batch_size, args.image_size, args.image_size, 3], seed
        )
        return tf.cast(normal, COMPUTE_TYPES[args.dtype])

    def labels(seed: list[int]) -> tf.Tensor:
        return tf.random.stateless_uniform([args.batch_size], seed, 0, args.num_classes, tf.int32)

    pair = tuple(
        strategy.experimental_distribute_values_from_function(
            lambda context, make=make: local(int(context.replica_id_in_sync_group), make)
        )
        for make in (images, labels)
    )
    return repeat((pair[0], pair[1]))


def record_files(args: argparse.Namespace) -> list[str]:
    """Return the TFRecord files, in order of name."""
    folder = Path(args.data_dir).expanduser()
    folder = folder / "tfrecord" if (folder / "tfrecord").is_dir() else folder
    paths = sorted(str(path) for path in folder.glob("train-*"))
    if not paths:
        raise SystemExit(
            f"--data-dir: expected TFRecords train-* in {folder}, found none. see: orch dataset make"
        )
    return paths


def epoch(args: argparse.Namespace, nodes: int, node: int) -> tf.data.Dataset:
    """Return a node's share of an epoch as (JPEG, label), in another random order on each pass.

    All nodes draw the same order before it is divided, so that no image goes to two nodes.
    """
    if args.loader == "native":
        files = loaders.image_files(args.data_dir, args.num_classes, (".jpg", ".jpeg"))
        paths, labels = map(list, zip(*files))
        pairs = (
            tf.data.Dataset.from_tensor_slices((paths, labels))
            .shuffle(len(paths), args.seed)
            .shard(nodes, node)
        )
        return pairs.map(lambda path, label: (tf.io.read_file(path), label), args.workers)
    files = record_files(args)
    records: Any = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files), args.seed)
    # Whole files for each node if there are enough of them, so that no two nodes read the same
    # file.
    if len(files) >= nodes:
        records = records.shard(nodes, node).interleave(
            tf.data.TFRecordDataset, cycle_length=args.workers, num_parallel_calls=args.workers
        )
    else:
        records = records.interleave(tf.data.TFRecordDataset).shard(nodes, node)
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def pair(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, features)
        return parsed["image/encoded"], tf.cast(
            parsed["image/class/label"], tf.int32
        ) - 1  # ImageNet's labels start at 1

    return records.shuffle(1024).map(pair, args.workers)


def pixels(args: argparse.Namespace, jpeg: tf.Tensor) -> tf.Tensor:
    """Return a random part of an image, resized, mirrored in half of the cases, normalised."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(jpeg),
        tf.zeros([1, 0, 4]),
        seed=args.seed,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.image.decode_and_crop_jpeg(
        jpeg, tf.stack([begin[0], begin[1], size[0], size[1]]), channels=3
    )
    image = tf.image.random_flip_left_right(
        tf.image.resize(image, [args.image_size] * 2), args.seed
    )
    return tf.cast((image - loaders.MEAN) / loaders.DEVIATION, COMPUTE_TYPES[args.dtype])


def from_disk(
    args: argparse.Namespace, strategy: tf.distribute.Strategy
) -> Iterator[tuple[Any, Any]]:
    """Yield batches of tf.data."""

    def pipeline(context: Any) -> tf.data.Dataset:
        encoded = epoch(args, context.num_input_pipelines, context.input_pipeline_id).repeat()
        images = encoded.map(lambda jpeg, label: (pixels(args, jpeg), label), args.workers)
        return images.batch(args.batch_size, drop_remainder=True).prefetch(2)

    return iter(strategy.distribute_datasets_from_function(pipeline))


def batches(
    args: argparse.Namespace, me: Identity, strategy: tf.distribute.Strategy, devices: list[str]
) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels of this node's replicas, without end."""
    if args.loader == "synthetic":
        return synthetic(args, me, strategy, devices)
    return from_disk(args, strategy)

"""Images and labels for train_tensorflow.py, on the devices of a node's replicas: `batches`.

Synthetic ones never change; the others are tf.data over image folders or TFRecords.
"""

from __future__ import annotations

import argparse
from itertools import repeat
from pathlib import Path
from typing import Any, Callable, Iterator

import tensorflow as tf
from tf_models import COMPUTE_TYPES
from tf_ranks import Identity

MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
DEVIATION = (0.229 * 255, 0.224 * 255, 0.225 * 255)


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

"""Images and labels of this rank for train_paddle.py: `batches`.

Synthetic ones need nothing else; the other loaders need loaders.py next to this file, and Pillow or
NVIDIA DALI.
"""

from __future__ import annotations

import argparse
import sys
from itertools import repeat
from typing import Any, Iterator

import loaders
import paddle
import paddle.distributed as dist
from trainer import Identity


def synthetic(args: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels that never change and differ between ranks."""
    paddle.seed(args.seed + 1 + me.rank)
    images = paddle.randn([args.batch_size, 3, args.image_size, args.image_size])
    labels = paddle.randint(0, args.num_classes, [args.batch_size, 1])
    return repeat((images, labels))


class Folder(paddle.io.Dataset):  # type: ignore[misc]
    """Image files as arrays of bytes, height x width x 3, by `Draw`."""

    def __init__(self, files: list[tuple[str, int]], size: int) -> None:
        super().__init__()
        self.files, self.size = files, size

    def __getitem__(self, draw: Any) -> tuple[Any, Any]:
        """Return pixels and label."""
        import numpy

        path, label = self.files[draw.index]
        pixels = numpy.frombuffer(loaders.decode_crop(path, self.size, draw.seed), numpy.uint8)
        return pixels.reshape(self.size, self.size, 3), numpy.array([label], numpy.int64)

    def __len__(self) -> int:
        """Return the number of files, which the endless sequence does not use."""
        return len(self.files)


class Endless(paddle.io.BatchSampler):  # type: ignore[misc]
    """The `Batches` of loaders.py, as the sampler class that Paddle requires."""

    def __init__(self, source: Any) -> None:
        self.source, self.batch_size = source, source.batch_size

    def __iter__(self) -> Iterator[Any]:
        """Yield lists of `Draw`s."""
        return iter(self.source)

    def __len__(self) -> int:
        """Return the largest integer: the sequence has no end."""
        return sys.maxsize


def native(args: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield batches of Paddle's DataLoader, normalised on the device."""
    files = loaders.image_files(args.data_dir, args.num_classes)
    order = loaders.Batches(len(files), args.batch_size, me.rank, me.world_size, args.seed)
    source = paddle.io.DataLoader(
        Folder(files, args.image_size), batch_sampler=Endless(order), num_workers=args.workers
    )
    mean, deviation = (
        paddle.to_tensor(values).reshape([3, 1, 1]) for values in (loaders.MEAN, loaders.DEVIATION)
    )
    for pixels, labels in source:
        yield (pixels.transpose([0, 3, 1, 2]).astype("float32") - mean) / deviation, labels


def dali(args: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield batches of NVIDIA DALI."""
    device_id = dist.ParallelEnv().device_id if args.device == "cuda" else None
    if args.loader == "dali-cpu":
        # Without DALI's iterator for Paddle, which requires a GPU even if nothing is on it.
        pipeline = loaders.dali_pipeline(args, me, device_id)
        while True:
            images, labels = (paddle.to_tensor(output.as_array()) for output in pipeline.run())
            yield images, labels.astype("int64")
    from nvidia.dali.plugin.paddle import DALIGenericIterator

    for images, labels in loaders.dali_batches(args, me, device_id, DALIGenericIterator):
        yield paddle.to_tensor(images), paddle.to_tensor(labels).astype("int64")


def batches(args: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield this rank's images and labels, without end."""
    return {"synthetic": synthetic, "native": native}.get(args.loader, dali)(args, me)

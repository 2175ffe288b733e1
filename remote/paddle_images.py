"""Images and labels for train_paddle.py, of this rank: `batches`.

Synthetic ones need nothing else; the other loaders need loaders.py beside this file, and Pillow or NVIDIA DALI.
"""

from __future__ import annotations

import argparse
import sys
from itertools import repeat
from typing import Any, Iterator

import paddle
import paddle.distributed as dist
from paddle_ranks import mesh
from trainer import Identity


def synthetic(asked: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels that never change, other ones on each rank."""
    paddle.seed(asked.seed + 1 + me.rank)
    images = paddle.randn([asked.batch_size, 3, asked.image_size, asked.image_size])
    labels = paddle.randint(0, asked.num_classes, [asked.batch_size, 1])
    return repeat((images, labels))


class Folder(paddle.io.Dataset):  # type: ignore[misc]
    """Image files as arrays of bytes, height x width x 3, by `Draw`."""

    def __init__(self, files: list[tuple[str, int]], size: int) -> None:
        super().__init__()
        self.files, self.size = files, size

    def __getitem__(self, draw: Any) -> tuple[Any, Any]:
        """Return pixels and label."""
        import loaders
        import numpy

        path, label = self.files[draw.index]
        pixels = numpy.frombuffer(loaders.decoded(path, self.size, draw.seed), numpy.uint8)
        return pixels.reshape(self.size, self.size, 3), numpy.array([label], numpy.int64)

    def __len__(self) -> int:
        """Return the number of files, which the endless sequence does not ask for."""
        return len(self.files)


class Endless(paddle.io.BatchSampler):  # type: ignore[misc]
    """The `Batches` of loaders.py; Paddle takes nothing but a sampler of its own kind."""

    def __init__(self, source: Any) -> None:
        self.source, self.batch_size = source, source.batch_size

    def __iter__(self) -> Iterator[Any]:
        """Yield lists of `Draw`s."""
        return iter(self.source)

    def __len__(self) -> int:
        """Return what stands for no end."""
        return sys.maxsize


def native(asked: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield batches of Paddle's own DataLoader, normalised on the device."""
    import loaders

    files = loaders.image_files(asked.data_dir, asked.num_classes)
    order = loaders.Batches(len(files), asked.batch_size, me.rank, me.world_size, asked.seed)
    source = paddle.io.DataLoader(Folder(files, asked.image_size), batch_sampler=Endless(order), num_workers=asked.workers)
    mean, deviation = (paddle.to_tensor(each).reshape([3, 1, 1]) for each in (loaders.MEAN, loaders.DEVIATION))
    for pixels, labels in source:
        yield (pixels.transpose([0, 3, 1, 2]).astype("float32") - mean) / deviation, labels


def dali(asked: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield batches of NVIDIA DALI."""
    import loaders

    loaders.image_files(asked.data_dir, asked.num_classes)  # says what is wrong with the folder in our words
    share = loaders.Share(asked.data_dir, asked.batch_size, asked.image_size, asked.workers, asked.seed, me.rank, me.world_size)
    device_id = dist.ParallelEnv().device_id if asked.device == "cuda" else None
    pipeline = loaders.dali_pipeline(share, asked.loader == "dali-gpu", device_id)
    if asked.loader == "dali-cpu":
        # Not through DALI's iterator for Paddle: that one wants a GPU even where nothing is on it.
        while True:
            images, labels = (paddle.to_tensor(made.as_array()) for made in pipeline.run())
            yield images, labels.astype("int64")
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.paddle import DALIGenericIterator

    source = DALIGenericIterator(
        [pipeline], ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.FILL, auto_reset=True
    )
    while True:
        for (batch,) in source:
            yield paddle.to_tensor(batch["images"]), paddle.to_tensor(batch["labels"]).astype("int64")


def batches(asked: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield this rank's images and labels, without end."""
    source = {"synthetic": synthetic, "native": native}.get(asked.loader, dali)(asked, me)
    if asked.strategy == "collective" or me.world_size == 1:
        return source
    from paddle.distributed.auto_parallel.api import dtensor_from_local

    whole, parts_of = mesh(), [dist.Shard(0)]
    return (tuple(dtensor_from_local(one, whole, parts_of) for one in pair) for pair in source)  # type: ignore[misc]

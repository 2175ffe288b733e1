"""Images and labels for train_pytorch.py, on the device, in the type and layout of the first layer: `batches`.

Synthetic ones need nothing else; the other loaders need loaders.py beside this file, and Pillow or NVIDIA DALI.
"""

from __future__ import annotations

import argparse
from itertools import repeat
from typing import Any, Iterator

import torch
from torch_models import HALF_TYPES, channels_last
from trainer import Identity


def synthetic(asked: argparse.Namespace, device: torch.device, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels that never change, other ones on each rank."""
    torch.manual_seed(asked.seed + 1 + rank)
    images = torch.randn(asked.batch_size, 3, asked.image_size, asked.image_size, device=device)
    labels = torch.randint(asked.num_classes, (asked.batch_size,), device=device)
    return laid_out(asked, images), labels


def laid_out(asked: argparse.Namespace, images: torch.Tensor) -> torch.Tensor:
    """Return images in the type and layout of the first layer."""
    layout = torch.channels_last if channels_last(asked) else torch.contiguous_format
    return images.to(HALF_TYPES.get(asked.dtype, torch.float32)).contiguous(memory_format=layout)


class Folder(torch.utils.data.Dataset):
    """Image files as tensors of bytes, height x width x 3, by `Draw`."""

    def __init__(self, files: list[tuple[str, int]], size: int) -> None:
        self.files, self.size = files, size

    def __getitem__(self, draw: Any) -> tuple[torch.Tensor, int]:
        """Return pixels and label."""
        import loaders

        path, label = self.files[draw.index]
        pixels = torch.frombuffer(bytearray(loaders.decoded(path, self.size, draw.seed)), dtype=torch.uint8)
        return pixels.view(self.size, self.size, 3), label


def native(asked: argparse.Namespace, device: torch.device, me: Identity) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of torch's own DataLoader, normalised on the device."""
    import loaders

    files = loaders.image_files(asked.data_dir, asked.num_classes)
    source = torch.utils.data.DataLoader(
        Folder(files, asked.image_size),
        batch_sampler=loaders.Batches(len(files), asked.batch_size, me.rank, me.world_size, asked.seed),
        num_workers=asked.workers,
        pin_memory=device.type == "cuda",
    )
    mean, deviation = (torch.tensor(each, device=device).view(3, 1, 1) for each in (loaders.MEAN, loaders.DEVIATION))
    for pixels, labels in source:
        images = pixels.to(device, non_blocking=True).permute(0, 3, 1, 2)
        yield (images - mean) / deviation, labels.to(device, non_blocking=True)


def dali(asked: argparse.Namespace, device: torch.device, me: Identity) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of NVIDIA DALI."""
    import loaders
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    loaders.image_files(asked.data_dir, asked.num_classes)  # says what is wrong with the folder in our words
    share = loaders.Share(asked.data_dir, asked.batch_size, asked.image_size, asked.workers, asked.seed, me.rank, me.world_size)
    pipeline = loaders.dali_pipeline(share, asked.loader == "dali-gpu", device.index)
    source = DALIGenericIterator(
        [pipeline], ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.FILL, auto_reset=True
    )
    while True:
        for (batch,) in source:
            labels = batch["labels"].squeeze(-1).to(device, torch.long, non_blocking=True)
            yield batch["images"].to(device, non_blocking=True), labels


def batches(asked: argparse.Namespace, device: torch.device, me: Identity) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's images, in the type and layout of the first layer, and labels, without end.

    On a GPU, copies and conversions have a stream of their own: they run beside the step that still computes.
    """
    if asked.loader == "synthetic":
        yield from repeat(synthetic(asked, device, me.rank))
    source = {"native": native}.get(asked.loader, dali)(asked, device, me)
    if device.type == "cpu":
        yield from ((laid_out(asked, images), labels) for images, labels in source)
    stream = torch.cuda.Stream(device)
    while True:
        with torch.cuda.stream(stream):
            images, labels = next(source)
            images = laid_out(asked, images)
        computes = torch.cuda.current_stream(device)
        computes.wait_stream(stream)
        for tensor in (images, labels):
            tensor.record_stream(computes)  # its memory is not given to the next batch before the step has read it
        yield images, labels

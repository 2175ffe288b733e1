"""Images and labels for train_pytorch.py, on the device, in the type and layout of the first layer:
`batches`.

Synthetic ones need nothing else; the other loaders need loaders.py next to this file, and Pillow or
NVIDIA DALI.
"""

from __future__ import annotations

import argparse
from itertools import repeat
from typing import Any, Iterator

import loaders
import torch
from torch_models import HALF_TYPES, channels_last
from trainer import Identity


def synthetic(
    args: argparse.Namespace, device: torch.device, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels that never change and differ between ranks."""
    torch.manual_seed(args.seed + 1 + rank)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    labels = torch.randint(args.num_classes, (args.batch_size,), device=device)
    return laid_out(args, images), labels


def laid_out(args: argparse.Namespace, images: torch.Tensor) -> torch.Tensor:
    """Return images in the type and layout of the first layer."""
    layout = torch.channels_last if channels_last(args) else torch.contiguous_format
    return images.to(HALF_TYPES.get(args.dtype, torch.float32)).contiguous(memory_format=layout)


class Folder(torch.utils.data.Dataset):
    """Image files as tensors of bytes, height x width x 3, by `Draw`."""

    def __init__(self, files: list[tuple[str, int]], size: int) -> None:
        self.files, self.size = files, size

    def __getitem__(self, draw: Any) -> tuple[torch.Tensor, int]:
        """Return pixels and label."""
        path, label = self.files[draw.index]
        pixels = torch.frombuffer(
            bytearray(loaders.decode_crop(path, self.size, draw.seed)), dtype=torch.uint8
        )
        return pixels.view(self.size, self.size, 3), label


def native(
    args: argparse.Namespace, device: torch.device, me: Identity
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of torch's DataLoader, normalised on the device."""
    files = loaders.image_files(args.data_dir, args.num_classes)
    source = torch.utils.data.DataLoader(
        Folder(files, args.image_size),
        batch_sampler=loaders.Batches(
            len(files), args.batch_size, me.rank, me.world_size, args.seed
        ),
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    mean, deviation = (
        torch.tensor(values, device=device).view(3, 1, 1)
        for values in (loaders.MEAN, loaders.DEVIATION)
    )
    for pixels, labels in source:
        images = pixels.to(device, non_blocking=True).permute(0, 3, 1, 2)
        yield (images - mean) / deviation, labels.to(device, non_blocking=True)


def dali(
    args: argparse.Namespace, device: torch.device, me: Identity
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of NVIDIA DALI."""
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    for images, labels in loaders.dali_batches(args, me, device.index, DALIGenericIterator):
        labels = labels.squeeze(-1).to(device, torch.long, non_blocking=True)
        yield images.to(device, non_blocking=True), labels


def batches(
    args: argparse.Namespace, device: torch.device, me: Identity
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's images, in the type and layout of the first layer, and labels, without end.

    On a GPU, copies and conversions run on a separate stream, while the previous step is still
    computing.
    """
    if args.loader == "synthetic":
        yield from repeat(synthetic(args, device, me.rank))
    source = {"native": native}.get(args.loader, dali)(args, device, me)
    if device.type == "cpu":
        yield from ((laid_out(args, images), labels) for images, labels in source)
    stream = torch.cuda.Stream(device)
    while True:
        with torch.cuda.stream(stream):
            images, labels = next(source)
            images = laid_out(args, images)
        computes = torch.cuda.current_stream(device)
        computes.wait_stream(stream)
        for tensor in (images, labels):
            tensor.record_stream(
                computes
            )  # so that its memory is not reused for the next batch before the step has read it
        yield images, labels

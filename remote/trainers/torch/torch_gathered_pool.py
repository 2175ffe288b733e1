"""Max pooling of ResNet's stem, rewritten for torch.compile: `GatheredPool`, with --compile on a
GPU.

It replaces torch.nn.MaxPool2d(3, 2, 1), so it is verified against that before a run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad


class Gather(torch.autograd.Function):
    """Max pooling 3x3 with stride 2 and padding 1, in operations that inductor compiles to one
    kernel per direction.

    For PyTorch's own pooling inductor compiles a gradient that recomputes the position of each
    maximum, four times per pixel. Here a maximum is stored as its position in its window, 0 to 8
    row by row, and each pixel looks it up in its windows.
    """

    @staticmethod
    def forward(ctx: Any, pixels: torch.Tensor) -> torch.Tensor:
        """Return the maxima; the gradient goes to the first of equal ones and to NaN, as in
        PyTorch.
        """
        rows, columns = ((size + 1) // 2 for size in pixels.shape[2:])
        padded = pad(pixels, (1, 2, 1, 2), value=float("-inf"))
        most = padded[:, :, 0 : 2 * rows : 2, 0 : 2 * columns : 2]
        place = torch.zeros_like(most, dtype=torch.int8)
        for at in range(1, 9):
            other = padded[
                :, :, at // 3 : at // 3 + 2 * rows : 2, at % 3 : at % 3 + 2 * columns : 2
            ]
            larger = (other > most) | other.isnan()
            most, place = torch.where(larger, other, most), torch.where(larger, at, place)
        ctx.save_for_backward(place)
        ctx.pixels = pixels.shape[2:]
        ctx.layout = (
            torch.channels_last
            if pixels.is_contiguous(memory_format=torch.channels_last)
            else torch.contiguous_format
        )
        return most  # not made contiguous: PyTorch 2.11 would compile that without a gradient

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the pixels."""
        (place,) = ctx.saved_tensors
        height, width = ctx.pixels
        odd_row, odd_column = (
            torch.arange(size, device=place.device, dtype=torch.int8) % 2
            for size in (height, width)
        )
        summed: Any = 0
        # The window at half the row has a pixel in its second row or, if the row is odd, in its
        # third; the window below has it in its first row, if at all. Negative positions stand for
        # none.
        for below, in_row in ((0, 3 + 3 * odd_row), (1, 9 * odd_row - 9)):
            for right, in_column in ((0, 1 + odd_column), (1, 9 * odd_column - 9)):
                chosen, upstream = (
                    upsample(pad(part[:, :, below:, right:], (0, right, 0, below)), height, width)
                    for part in (place, gradient)
                )
                summed = summed + torch.where(chosen == in_row.view(-1, 1) + in_column, upstream, 0)
        return summed.contiguous(memory_format=ctx.layout)


def upsample(windows: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return for each pixel the value at half its row and half its column."""
    images, channels, rows, columns = windows.shape
    wide = windows[:, :, :, None, :, None].expand(images, channels, rows, 2, columns, 2)
    return wide.reshape(images, channels, 2 * rows, 2 * columns)[:, :, :height, :width]


class GatheredPool(nn.Module):
    """`Gather` as a layer."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the maxima, at half the size."""
        return Gather.apply(pixels)  # type: ignore[no-any-return, no-untyped-call]


def difference(device: torch.device) -> str:
    """Return how `GatheredPool`, compiled by this PyTorch, differs from its own pooling, or an
    empty text.
    """
    torch.manual_seed(0)
    images = (
        torch.randn(2, 8, 9, 8, device=device).relu().contiguous(memory_format=torch.channels_last)
    )
    results = []
    try:
        for pool in (
            nn.MaxPool2d(3, 2, 1),
            torch.compile(GatheredPool(), dynamic=False, fullgraph=True),
        ):
            pixels = images.clone().requires_grad_()
            most = pool(pixels)
            most.square().sum().backward()
            results.append((most.detach(), pixels.grad))
    except Exception as error:  # torch.compile raises errors of many kinds
        return str(error).strip().split("\n")[0][:200] or type(error).__name__
    return "" if all(map(torch.allclose, *results)) else "its gradient differs from torch's"

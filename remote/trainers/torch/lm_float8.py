"""Matrix products of 8-bit floating-point numbers, scaled by the largest value of each tensor, for
GPUs from compute capability 8.9 on. Micikevicius et al., "FP8 Formats for Deep Learning", 2022:
E4M3 for activations and weights, E5M2 for gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def quantize(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor as 8-bit numbers that use the whole range of the type, and the factor that
    gives its values back.
    """
    largest = torch.finfo(dtype).max
    factor = x.abs().amax().float().clamp(min=1e-12) / largest
    return (x.float() / factor).clamp(-largest, largest).to(dtype), factor


def product(
    a: torch.Tensor, of_a: torch.Tensor, b: torch.Tensor, of_b: torch.Tensor, fast: bool
) -> torch.Tensor:
    """Return the product of (m, k) in rows and (k, n) in columns, in bf16. ``fast``: accumulate
    with fewer bits.
    """
    return torch._scaled_mm(
        a, b, scale_a=of_a, scale_b=of_b, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def in_columns(x: torch.Tensor) -> torch.Tensor:
    """Return the same matrix, stored by columns."""
    return x.t().contiguous().t()


class Float8Product(torch.autograd.Function):
    """A linear layer without bias; all three products are of 8-bit numbers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return (rows, out) in bf16 of (rows, in) and (out, in)."""
        ctx.save_for_backward(x, weight)
        return product(
            *quantize(x, torch.float8_e4m3fn),
            *_transpose(quantize(weight, torch.float8_e4m3fn)),
            fast=True,
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the gradients of both."""
        x, weight = ctx.saved_tensors
        g8, of_g = quantize(gradients[0], torch.float8_e5m2)
        w8, of_w = quantize(weight, torch.float8_e4m3fn)
        x8, of_x = quantize(x, torch.float8_e4m3fn)
        of_input = product(g8, of_g, in_columns(w8), of_w, fast=False)
        of_weight = product(g8.t().contiguous(), of_g, in_columns(x8), of_x, fast=False)
        return of_input.to(x.dtype), of_weight.to(weight.dtype)


def _transpose(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return pair[0].t(), pair[1]


class Float8Linear(nn.Linear):
    """A linear layer whose parameters stay as they are and are multiplied as 8-bit numbers. All
    sizes are multiples of 16.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (…, out) in bf16."""
        with torch.autocast(input.device.type, enabled=False):
            y = Float8Product.apply(input.flatten(0, -2), self.weight).view(*input.shape[:-1], -1)
            return y if self.bias is None else y + self.bias.to(y.dtype)


def use_float8(part: nn.Module) -> None:
    """Multiply all linear layers inside ``part`` as 8-bit numbers, except routers of experts, whose
    choices would change.
    """
    for name, module in part.named_modules():
        if type(module) is nn.Linear and not name.endswith("router"):
            module.__class__ = Float8Linear

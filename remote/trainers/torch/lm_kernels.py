"""The attention kernel of a language model, and its arguments where keys are grouped."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from lm_models import attend
from lm_steps import Learner


def prefer_kernel(
    args: argparse.Namespace, model: Learner, device: torch.device
) -> tuple[str, str]:
    """Choose what attention gets where keys are grouped; return the name of the kernel, and what it
    gets (`Attention.keys`).

    PyTorch prefers cuDNN's kernel where it is fastest, and with grouped keys another one. cuDNN's
    then gets grouped keys all the same, or keys of each head if it does not take them.
    """
    from torch.nn.attention import SDPBackend

    shape = model.decoder.shape
    dtype = model.decoder.arithmetic.compute
    sizes = (args.batch_size, shape.heads, args.seq_len, shape.head_width)
    q = torch.empty(sizes, dtype=dtype, device=device, requires_grad=True)
    k = q[:, : shape.kv_heads]

    def choice(keys: torch.Tensor, grouped: bool) -> str:
        number = torch._fused_sdp_choice(q, keys, keys, None, 0.0, True, enable_gqa=grouped)
        return next(
            name.lower() for name, member in SDPBackend.__members__.items() if int(member) == number
        )

    grouped, expanded = choice(k, shape.kv_heads != shape.heads), choice(q, False)
    if shape.kv_heads == shape.heads or expanded == grouped:
        return grouped, "grouped"
    direct = expanded == "cudnn_attention" and takes_groups(
        q.shape[1], k.shape[1], shape.head_width, dtype, device
    )
    keys = "cudnn" if direct else "expanded"
    for block in model.decoder.blocks.values():
        attention: Any = block.attention
        attention.keys = keys
    return expanded, keys


def takes_groups(
    heads: int, kv_heads: int, head_width: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Return whether cuDNN's attention computes the same with grouped keys as with keys of each
    head, on a few tokens.
    """
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, gradient = (
        torch.randn(2, 256, number, head_width, generator=generator, device=device)
        .to(dtype)
        .transpose(1, 2)
        for number in (heads, kv_heads, kv_heads, heads)
    )

    def results(keys: str) -> list[torch.Tensor]:
        given = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        y = attend(*given, keys)
        return [y.detach(), *torch.autograd.grad(y, given, gradient)]

    try:
        pairs = list(zip(results("cudnn"), results("expanded")))
    except RuntimeError:  # no kernel for this
        return False
    return all(
        float((got.float() - right.float()).norm()) < 2**-6 * float(right.float().norm())
        for got, right in pairs
    )

"""Decoder-only transformers of any shape: GPT-2, Llama and mixtures of experts, as modules of
PyTorch 2.6 or newer.

A model is built from its sizes alone. Numbers of parameters match the published models. Internal
additions are not counted: rows that make the vocabulary a multiple of 128, without which the output
layer is a slow matrix product, and positions for sequences that are longer than the published ones.

Activations between layers have the type of matrix products, `Arithmetic.compute`; norms, softmax,
rotations and the loss compute in fp32 inside. Dropout and the balancing loss of mixtures of experts
are left out.
"""

from __future__ import annotations

import math
import zlib
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from lm_experts import Experts
from lm_recompute import recomputing
from torch import nn
from torch.nn import functional

VOCAB_MULTIPLE = 128
"""Rows of embedding and output layer are rounded up to a multiple of this, as matrix units want
them.
"""
DEVIATION = 0.02
"""Standard deviation of initial weights, as in GPT-2."""


class Shape(NamedTuple):
    """The sizes of a model, as flags of the trainer. ``mlp`` is the hidden width of an MLP or of
    one expert; ``gated``: SwiGLU instead of GELU; ``norm``: layer or rms; ``positions``: learned or
    rotary; ``bias``: of all matrix products but the last."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp: int
    gated: bool
    vocab: int
    tied: bool
    experts: int
    active_experts: int
    norm: str
    positions: str
    max_positions: int
    rope_theta: float
    bias: bool

    @property
    def rows(self) -> int:
        """Rows of the embedding table."""
        return -(-self.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class Arithmetic(NamedTuple):
    """The arithmetic of a model.

    It has the type of parameters, the type of matrix products and activations, whether autocast
    casts the one to the other, and the recomputation: none, selective, full.
    """

    weights: torch.dtype
    compute: torch.dtype
    autocast: bool
    recomputation: str = "none"


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the width, in fp32 inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.width))
        self.bias = nn.Parameter(torch.empty(shape.width)) if shape.norm == "layer" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (…, width), of the type of ``x``."""
        # Autocast would compute, and return, fp32: twice the memory between layers.
        with torch.autocast(x.device.type, enabled=False):
            weight = self.weight.to(x.dtype)
            if self.bias is None:
                return functional.rms_norm(x, weight.shape, weight, 1e-5)
            return functional.layer_norm(x, weight.shape, weight, self.bias.to(x.dtype), 1e-5)


def rotation(tokens: int, head_width: int, theta: float, device: torch.device) -> torch.Tensor:
    """Return cosines and sines of rotary positions (Su et al., "RoFormer", 2021), (2, tokens,
    head_width / 2), fp32.
    """
    frequencies = theta ** (
        -torch.arange(0, head_width, 2, device=device, dtype=torch.float64) / head_width
    )
    angles = torch.outer(torch.arange(tokens, device=device, dtype=torch.float64), frequencies)
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return queries or keys (batch, heads, tokens, head_width) turned by their positions; halves
    are paired, as in Llama's Hugging Face weights."""
    cos, sin = table
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: str) -> torch.Tensor:
    """Return causal attention, of the size of ``q`` (batch, heads, tokens, head_width). ``keys``:
    see `Attention.keys`.
    """
    group = q.shape[1] // k.shape[1]
    if keys == "cudnn":
        # PyTorch 2.11 gives grouped keys to other kernels, though cuDNN's takes them.
        return torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, True, False
        )[0]
    if keys == "expanded":
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=group > 1 and keys == "grouped"
    )


class Attention(nn.Module):
    """Causal attention with grouped keys and values.

    The rows of the one matrix for queries, keys and values go by groups: the queries of a group,
    its key, its value.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.group, self.head_width = shape.heads // shape.kv_heads, shape.head_width
        self.qkv = nn.Linear(
            shape.width, (shape.heads + 2 * shape.kv_heads) * shape.head_width, bias=shape.bias
        )
        self.out = nn.Linear(shape.heads * shape.head_width, shape.width, bias=shape.bias)
        self.rotation: torch.Tensor | None = (
            None  # shared by all layers; no buffer, which sharding would cast
        )
        # What attention gets: grouped; expanded, each head its own; cudnn: grouped, by a direct
        # call of cuDNN's kernel.
        self.keys = "grouped"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, tokens, width)."""
        batch, tokens, _ = x.shape
        groups = self.qkv(x).view(batch, tokens, -1, self.group + 2, self.head_width)
        q, k, v = groups.split((self.group, 1, 1), dim=3)
        q, k, v = (
            q.flatten(2, 3).transpose(1, 2),
            k.squeeze(3).transpose(1, 2),
            v.squeeze(3).transpose(1, 2),
        )
        if self.rotation is not None:
            q, k = rotate(q, self.rotation), rotate(k, self.rotation)
        return self.out(attend(q, k, v, self.keys).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """GELU between two matrix products, or SwiGLU, which has three."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.mlp, bias=shape.bias)
        self.gate = nn.Linear(shape.width, shape.mlp, bias=shape.bias) if shape.gated else None
        self.down = nn.Linear(shape.mlp, shape.width, bias=shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (…, width)."""
        if self.gate is None:
            return self.down(functional.gelu(self.up(x), approximate="tanh"))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A layer: attention, then an MLP or experts, each after a norm and added to what came in."""

    def __init__(self, shape: Shape, recomputation: str) -> None:
        super().__init__()
        self.attention_norm, self.attention = Norm(shape), Attention(shape)
        self.mlp_norm = Norm(shape)
        self.mlp: nn.Module = Experts(shape) if shape.experts > 1 else Mlp(shape)
        self.computed = recomputing(self._compute, recomputation)

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, tokens, width)."""
        return self.computed(x)


class Output(nn.Module):
    """The end of the model: the last norm, the output layer, and the loss, ``loss(hidden, output
    layer, targets)``.

    A module of its own, so that FSDP can gather its parameters, and reduce their gradients, while
    layers compute.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = Norm(shape)
        self.head = nn.Linear(shape.width, shape.rows, bias=False)
        self.loss: Any = None  # see lm_loss.py

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return the loss, or logits without ``targets``."""
        x = self.norm(x)
        return self.head(x) if targets is None else self.loss(x, self.head, targets)


class Decoder(nn.Module):
    """A model.

    Built on the meta device; `fill` gives a part of it memory and initial values, so that a model
    of which each rank keeps only shards never exists as a whole.
    """

    def __init__(self, shape: Shape, arithmetic: Arithmetic, seq_len: int) -> None:
        super().__init__()
        self.shape, self.arithmetic, self.seq_len = shape, arithmetic, seq_len
        learned = shape.positions == "learned"
        with torch.device("meta"):
            self.embedding: nn.Module = nn.Embedding(shape.rows, shape.width)
            self.positions = (
                nn.Embedding(max(shape.max_positions, seq_len), shape.width) if learned else None
            )
            self.blocks = nn.ModuleDict(
                {
                    str(number): Block(shape, arithmetic.recomputation)
                    for number in range(shape.layers)
                }
            )
            self.output = Output(shape)
        self.tie()

    def tie(self) -> None:
        """Make the output layer the embedding table, if the shape says so. Again after sharding."""
        if self.shape.tied:
            self.output.head.weight = self.embedding.weight

    def outer(self) -> dict[str, nn.Module]:
        """Return the parts that are no layers, by name."""
        head = None if self.shape.tied else self.output.head
        parts = {
            "embedding": self.embedding,
            "positions": self.positions,
            "norm": self.output.norm,
            "head": head,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def own_parameters(self) -> int:
        """Return the number of published parameters; a tied table counts once."""
        shape = self.shape
        total = sum(parameter.numel() for parameter in self.parameters())
        tables = 1 if shape.tied else 2
        total -= (shape.rows - shape.vocab) * shape.width * tables
        return total - (
            max(0, self.seq_len - shape.max_positions) * shape.width
            if self.positions is not None
            else 0
        )

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer, (batch, tokens, width)."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: x.shape[1]]
        return x.to(self.arithmetic.compute)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return the loss of (batch, tokens) of token numbers, or logits without ``targets``."""
        dtype, device = self.arithmetic.compute, tokens.device.type
        with torch.autocast(device, dtype) if self.arithmetic.autocast else nullcontext():
            x = self.embed(tokens)
            for block in self.blocks.values():
                x = block(x)
            return self.output(x, targets)


# --- memory and initial values --------------------------------------------------------------------


def fill(part: nn.Module, name: str, decoder: Decoder, device: torch.device, seed: int) -> None:
    """Give a part memory on the device and its initial values, which depend only on the seed and on
    the parameter's name.

    However a model is spread over ranks, it begins with the same numbers. ``name`` is the part's
    name in the whole model.
    """
    shape = decoder.shape
    name = "embedding" if name == "head" and shape.tied else name
    part.to_empty(device=device)
    generator = torch.Generator(device)
    for own_name, parameter in part.named_parameters():
        generator.manual_seed(zlib.crc32(f"{seed} {name}.{own_name}".encode()))
        with torch.no_grad():
            if own_name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                residual = own_name.endswith(
                    ("attention.out.weight", "mlp.down.weight", "mlp.down")
                )
                parameter.normal_(
                    0.0,
                    DEVIATION / math.sqrt(2 * shape.layers) if residual else DEVIATION,
                    generator=generator,
                )
    part.to(decoder.arithmetic.weights)


def set_rotations(decoder: Decoder, device: torch.device) -> None:
    """Give every layer the table of rotary positions, if the model has them."""
    shape = decoder.shape
    if shape.positions == "rotary":
        table = rotation(decoder.seq_len, shape.head_width, shape.rope_theta, device)
        for block in decoder.blocks.values():
            block.attention.rotation = table
